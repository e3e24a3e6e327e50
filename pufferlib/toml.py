"""The former location of ``pufferlib.util.toml``, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("pufferlib.toml", "pufferlib.util.toml")
