"""The former location of pufferlib.training.runs, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.runs", "pufferlib.training.runs")
