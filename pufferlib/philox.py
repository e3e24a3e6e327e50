"""The former location of ``pufferlib.util.philox``, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("pufferlib.philox", "pufferlib.util.philox")
