"""The former location of ocean.suite.tasks, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.suite.tasks", "ocean.suite.tasks")
