"""The former location of pufferlib.training.cuda_graphs, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.cuda_graphs", "pufferlib.training.cuda_graphs")
