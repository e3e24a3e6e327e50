"""The former location of pufferlib.training.reward_processing, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.reward_processing", "pufferlib.training.reward_processing")
