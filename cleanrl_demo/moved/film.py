"""The former location of pufferlib.evaluation.film, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.film", "pufferlib.evaluation.film")
