"""The former location of pufferlib.training.checkpoints, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.checkpoints", "pufferlib.training.checkpoints")
