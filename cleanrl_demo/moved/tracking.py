"""The former location of pufferlib.training.tracking, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.tracking", "pufferlib.training.tracking")
