"""The former location of ocean.suite.watching, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.suite.watching", "ocean.suite.watching")
