"""The former location of ocean.suite.table, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.suite.table", "ocean.suite.table")
