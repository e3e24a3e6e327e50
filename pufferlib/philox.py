"""The old place of pufferlib.util.philox, for one release."""

from pufferlib.util.renamed import moved_module

moved_module("pufferlib.philox", "pufferlib.util.philox")
