"""The former location of pufferlib.training.settings, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.settings", "pufferlib.training.settings")
