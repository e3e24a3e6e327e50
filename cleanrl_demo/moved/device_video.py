"""The former location of pufferlib.training.device_video, kept for one release."""

from pufferlib.util.renamed import moved_module

moved_module("cleanrl_demo.device_video", "pufferlib.training.device_video")
