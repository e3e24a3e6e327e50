"""The former location of ``pufferlib.tuning.plans``, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("pufferlib.plans", "pufferlib.tuning.plans")
