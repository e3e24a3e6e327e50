"""The former locations of the modules of pufferlib.training, kept for one release.

``cleanrl_demo`` has this folder on its ``__path__``: ``import cleanrl_demo.session`` finds ``session.py`` here.
"""
