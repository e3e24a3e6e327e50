"""The former location of pufferlib.training.minibatches, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.minibatches", "pufferlib.training.minibatches")
