"""The former location of pufferlib.training.evaluation, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.evaluation", "pufferlib.training.evaluation")
