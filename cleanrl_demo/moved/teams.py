"""The former location of pufferlib.training.teams, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.teams", "pufferlib.training.teams")
