"""The former locations of the modules of pufferlib.training and ocean.suite, kept for one release.

``cleanrl_demo`` has this folder on its ``__path__``, so that ``import cleanrl_demo.session`` finds ``session.py`` here.
"""
