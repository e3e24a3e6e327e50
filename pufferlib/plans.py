"""The old place of pufferlib.tuning.plans, for one release."""

from pufferlib.util.renamed import moved_module

moved_module("pufferlib.plans", "pufferlib.tuning.plans")
