"""The former location of pufferlib.training.random_policy, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.random_policy", "pufferlib.training.random_policy")
