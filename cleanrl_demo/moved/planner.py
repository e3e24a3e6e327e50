"""The former location of pufferlib.training.planner, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.planner", "pufferlib.training.planner")
