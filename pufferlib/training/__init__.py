"""Shared parts of the trainers: runs and their folders, checkpoints, settings, reports, evaluation and films.

    run_config         the settings that all trainers share
    session            runs training: environments, stretches between checkpoints, evaluation
    checkpoints        the checkpoint files in a run's folder
    settings           merges flags, files and the settings for an environment's family (defaults.toml)
    plain_flags        parses flags where tyro is not installed
    runs               creates and reads a run's folder
    results            the results of a run: episodes as they end, and a summary
    minibatches        minibatches of the rows to learn from
    replay_buffer      transitions to learn from off policy, with sum_tree for draws by priority
    team_replay        sequences of the joint steps of an environment's agents, to learn from off policy
    segments, vtrace, clipped_losses   rollouts in segments, their advantages, and PPO's losses of them, for PuffeRL
                       (pufferlib/compat)
    fused_policy       the compiled learner behind a policy
    weights            a policy's weights as one vector
    compilation        networks that torch.compile compiles while they learn
    optimizers         Adam, and Muon for matrices
    schedules          the learning rate after a number of steps
    reward_processing  scales and bounds rewards for a learner, and treats lost lives as terminations
    report             shows and stores the progress of training, with recent_statistics, dashboard and tracking
    plot               draws the curves of runs
    evaluation         plays episodes with the policies of subjects, or random_policy; evaluation_results has statistics
    copies             the same in environments that are vectorized already
    video              films environments; terminal_view shows one in a terminal
    self_play          opponents for a policy that plays against its past versions
    oracles            trains policies for populations with PPO or DQN; league_oracles does so for leagues

On a device:

    cuda_graphs        CUDA graphs of training iterations
    planner            the number of environments that fit in memory
    teams              groups of agents that share a policy and its optimizer
    kernel_actions     actions of kernel environments, between policies and environments
    device_runs        settings of runs on a device, their processes and their number of environments
    device_video       films of kernel environments
    ddp                training by several processes

Over Ray:

    fleet              requests rollouts from actors on many machines
    rollout_actor      the actors: environments, and a copy of the policy that plays them
    lines              rollouts as arrays with a line of rows for each agent

The trainers are in ``cleanrl_demo``, and run with NumPy and torch alone. The extra ``train`` adds what they use if it
is installed: tensorboard, rich, tyro, matplotlib, SciPy and Pillow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pufferlib.training.device_runs import DeviceConfig
    from pufferlib.training.device_video import DeviceVideo
    from pufferlib.training.fleet import Fleet, FleetConfig
    from pufferlib.training.fused_policy import FusedPolicy
    from pufferlib.training.minibatches import by_weight, shares
    from pufferlib.training.replay_buffer import ReplayBuffer
    from pufferlib.training.results import Result
    from pufferlib.training.reward_processing import RewardProcessing
    from pufferlib.training.run_config import RunConfig
    from pufferlib.training.schedules import SCHEDULES, rate_at
    from pufferlib.training.session import Session, main, resumed, run
    from pufferlib.training.team_replay import TeamReplay
    from pufferlib.training.weights import as_one

_MODULE_OF = {
    "DeviceConfig": "device_runs",
    "DeviceVideo": "device_video",
    "Fleet": "fleet",
    "FleetConfig": "fleet",
    "FusedPolicy": "fused_policy",
    "ReplayBuffer": "replay_buffer",
    "Result": "results",
    "RewardProcessing": "reward_processing",
    "RunConfig": "run_config",
    "SCHEDULES": "schedules",
    "Session": "session",
    "TeamReplay": "team_replay",
    "as_one": "weights",
    "by_weight": "minibatches",
    "main": "session",
    "rate_at": "schedules",
    "resumed": "session",
    "run": "session",
    "shares": "minibatches",
}
__all__ = [
    "SCHEDULES",
    "DeviceConfig",
    "DeviceVideo",
    "Fleet",
    "FleetConfig",
    "FusedPolicy",
    "ReplayBuffer",
    "Result",
    "RewardProcessing",
    "RunConfig",
    "Session",
    "TeamReplay",
    "as_one",
    "by_weight",
    "main",
    "rate_at",
    "resumed",
    "run",
    "shares",
]


def __getattr__(name: str) -> Any:
    """Import a name of this package on first use, because not every part can be imported everywhere."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    return value
