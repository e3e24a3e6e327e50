"""The former location of ocean.suite.demo, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.suite.demo", "ocean.suite.demo")
