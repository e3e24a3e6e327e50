"""The former location of pufferlib.training.results, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.results", "pufferlib.training.results")
