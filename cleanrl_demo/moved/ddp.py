"""The former location of pufferlib.training.ddp, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.ddp", "pufferlib.training.ddp")
