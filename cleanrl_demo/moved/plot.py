"""The former location of pufferlib.training.plot, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.plot", "pufferlib.training.plot")
