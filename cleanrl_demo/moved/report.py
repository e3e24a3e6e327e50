"""The former location of pufferlib.training.report, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.report", "pufferlib.training.report")
