"""The former location of pufferlib.training.league_oracles, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.league_oracles", "pufferlib.training.league_oracles")
