"""The former location of pufferlib.training.session, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.session", "pufferlib.training.session")
