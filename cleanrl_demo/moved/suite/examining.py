"""The former location of ocean.suite.examining, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.suite.examining", "ocean.suite.examining")
