"""The former location of pufferlib.training.recent_statistics, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.recent_statistics", "pufferlib.training.recent_statistics")
