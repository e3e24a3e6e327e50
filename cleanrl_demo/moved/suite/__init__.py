"""The former locations of the modules of ocean.suite, on the ``__path__`` of cleanrl_demo.suite."""
