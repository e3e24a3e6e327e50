"""The former location of pufferlib.training.video, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.video", "pufferlib.training.video")
