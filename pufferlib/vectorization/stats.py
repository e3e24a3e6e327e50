"""The former location of pufferlib.telemetry.stats, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("pufferlib.vectorization.stats", "pufferlib.telemetry.stats")
