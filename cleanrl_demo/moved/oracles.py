"""The former location of pufferlib.training.oracles, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.oracles", "pufferlib.training.oracles")
