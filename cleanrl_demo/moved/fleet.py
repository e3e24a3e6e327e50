"""The former location of pufferlib.training.fleet, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.fleet", "pufferlib.training.fleet")
