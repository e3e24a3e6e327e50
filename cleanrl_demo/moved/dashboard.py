"""The former location of pufferlib.training.dashboard, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.dashboard", "pufferlib.training.dashboard")
