"""The former location of pufferlib.training.terminal_view, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.terminal_view", "pufferlib.training.terminal_view")
