"""PufferLib 3's module ``pufferlib``, all of whose names ``import pufferlib`` has as well."""

import os
import warnings
from types import SimpleNamespace

import gymnasium
import numpy as np

from pufferlib.compat.exceptions import APIUsageError, EnvironmentSetupError, InvalidAgentError
from pufferlib.compat.puffer_env import set_buffers
from pufferlib.compat.utils import Suppress, silence_warnings, unroll_nested_dict
from pufferlib.compat.wrappers import (
    ClipAction,
    EpisodeStats,
    GymToGymnasium,
    MeanOverAgents,
    MultiagentEpisodeStats,
    PettingZooTruncatedWrapper,
    PettingZooWrapper,
    ResizeObservation,
)
from pufferlib.environment import PufferEnv

__all__ = [
    "APIUsageError",
    "ClipAction",
    "EnvironmentSetupError",
    "EpisodeStats",
    "GymToGymnasium",
    "InvalidAgentError",
    "MeanOverAgents",
    "MultiagentEpisodeStats",
    "PettingZooTruncatedWrapper",
    "PettingZooWrapper",
    "PufferEnv",
    "ResizeObservation",
    "SimpleNamespace",
    "Suppress",
    "gymnasium",
    "np",
    "os",
    "set_buffers",
    "silence_warnings",
    "unroll_nested_dict",
    "warnings",
]
