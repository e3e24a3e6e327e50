"""The old place of pufferlib.util.toml, for one release."""

from pufferlib.util.renamed import moved_module

moved_module("pufferlib.toml", "pufferlib.util.toml")
