"""PufferLib 3's PuffeRL: its loop of ``evaluate`` and ``train``, on the rollouts and losses of pufferlib.training."""

from __future__ import annotations

import math
import shutil
import sys
import time
import warnings
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal

from pufferlib.compat import pytorch
from pufferlib.compat.advantage_op import compute_puff_advantage
from pufferlib.compat.exceptions import APIUsageError, raises_usage_errors
from pufferlib.compat.loggers import NoLogger
from pufferlib.compat.timing import Profile, Utilization
from pufferlib.compat.utils import unroll_nested_dict
from pufferlib.training.clipped_losses import clipped_losses
from pufferlib.training.optimizers import OPTIMIZERS, make_optimizer
from pufferlib.training.segments import Segments, prioritized
from pufferlib.training.vtrace import vtrace_advantages
from pufferlib.util.annotations import Array

__all__ = ["PuffeRL", "compute_puff_advantage"]

LOG_INTERVAL_S = 0.25
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}
COLUMNS = ("observations", "actions", "values", "logprobs", "rewards", "terminals", "truncations", "masks")


def _on_host(values: Any, dtype: Any = None) -> Array:
    """Return an array of what an environment returned, which may be a tensor on a GPU."""
    return np.asarray(values.cpu() if isinstance(values, Tensor) else values, dtype)


class PuffeRL:
    """A trainer that alternates between ``evaluate``, which plays, and ``train``, which learns from what was played.

    config: the section [train] of ``load_config``, with ``use_rnn``, and ``env`` for the dashboard; its batch_size and
        bptt_horizon are replaced if they are "auto". vecenv: of ``pufferlib.vector``, a native PufferEnv, or any object
        with their calls. policy: a module with ``forward_eval(observations, state)`` and ``forward(observations,
        state)``, which return (logits, values); with use_rnn also ``hidden_size``. logger: ``NoLogger`` by default.

    The constructor resets the environments. An episode's end cuts its advantages; after a truncation the value of the
    last observation is added, if the environment returns it. Actions that were ignored, as those that answer an
    episode's last observation, are not learnt from.

    Raises APIUsageError for settings that exclude each other or are unknown.
    """

    @raises_usage_errors
    def __init__(self, config: Any, vecenv: Any, policy: Any, logger: Any = None) -> None:
        self.config, self.vecenv = config, vecenv
        self.logger = NoLogger(config) if logger is None else logger
        self.total_agents = num_agents = int(vecenv.num_agents)
        self._set_sizes(num_agents)
        if config["optimizer"] not in OPTIMIZERS:
            raise ValueError(f"optimizer={config['optimizer']!r}; use {' or '.join(OPTIMIZERS)}")
        if config["precision"] not in PRECISIONS:
            raise APIUsageError(f"precision={config['precision']!r}; use {' or '.join(PRECISIONS)}")
        self.device = torch.device(config["device"])
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise APIUsageError(f"device={config['device']!r}, but torch finds no GPU; use device=cpu")
        dtype = PRECISIONS[config["precision"]]
        self.amp_context: AbstractContextManager[Any] = nullcontext()
        if dtype is not None:
            self.amp_context = torch.autocast(self.device.type, dtype)
        torch.backends.cudnn.deterministic = bool(config["torch_deterministic"])
        self.uncompiled_policy = self.policy = policy.to(self.device)
        self._forward, self._forward_eval = policy, getattr(policy, "forward_eval", policy)
        if config["compile"]:
            options = {"mode": config["compile_mode"], "fullgraph": config["compile_fullgraph"]}
            self.policy = self._forward = torch.compile(policy, **options)
            self._forward_eval = torch.compile(self._forward_eval, **options)
        self.optimizer = make_optimizer(
            config["optimizer"],
            policy.parameters(),
            config["learning_rate"],
            (config["adam_beta1"], config["adam_beta2"]),
            config["adam_eps"],
        )
        self.total_epochs = max(1, int(config["total_timesteps"]) // config["batch_size"])
        lowest = config["learning_rate"] * config.get("min_lr_ratio", 0)  # a key of pufferlib-core
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, self.total_epochs, lowest)
        self.model_size = sum(part.numel() for part in policy.parameters() if part.requires_grad)
        self._make_buffers()
        self.epoch = self.global_step = self.last_log_step = 0
        self.stats: defaultdict[str, list[Any]] = defaultdict(list)
        self.last_stats = self.stats
        self.losses: dict[str, float] = {}
        self.msg = ""
        self.profile = Profile()
        self.utilization = Utilization()  # a thread that has not started
        self._is_open = True
        self._saved: Path | None = None  # by this trainer: a run with the same id may have left files
        self.start_time = self.last_log_time = time.time()
        vecenv.async_reset(config["seed"])

    def _set_sizes(self, num_agents: int) -> None:
        """Replace "auto" in the settings, and set the numbers of segments and minibatches."""
        config = self.config
        if config["batch_size"] == "auto" and config["bptt_horizon"] == "auto":
            raise APIUsageError("batch_size and bptt_horizon are both auto; set one of them")
        if config["batch_size"] == "auto":
            config["batch_size"] = num_agents * config["bptt_horizon"]
        elif config["bptt_horizon"] == "auto":
            config["bptt_horizon"] = config["batch_size"] // num_agents
        batch_size, horizon = config["batch_size"], config["bptt_horizon"]
        minibatch_size, largest = config["minibatch_size"], config["max_minibatch_size"]
        self.segments = batch_size // horizon if horizon else 0
        if num_agents > self.segments:
            raise APIUsageError(
                f"{num_agents} agents are more than the {self.segments} segments of batch_size={batch_size} and "
                f"bptt_horizon={horizon}; use a batch_size of {num_agents * max(1, horizon)} or more"
            )
        if minibatch_size > largest and minibatch_size % largest:
            raise APIUsageError(f"minibatch_size={minibatch_size} must be a multiple of max_minibatch_size={largest}")
        if batch_size < minibatch_size:
            raise APIUsageError(f"batch_size={batch_size} is less than minibatch_size={minibatch_size}")
        self.accumulate_minibatches = max(1, minibatch_size // largest)
        self._part_size = min(minibatch_size, largest)  # of what is computed at a time
        if horizon == 1:
            text = (
                "bptt_horizon=1: the outcome of a segment's last step is not known, so nothing is learnt; use 2 or more"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        if self._part_size % horizon:
            raise APIUsageError(f"minibatch_size={self._part_size} must be a multiple of bptt_horizon={horizon}")
        self.minibatch_segments = self._part_size // horizon
        self.total_minibatches = max(1, int(config["update_epochs"] * batch_size / self._part_size))

    def _make_buffers(self) -> None:
        vecenv, num_agents = self.vecenv, self.total_agents
        space, action_space = vecenv.single_observation_space, vecenv.single_action_space
        dtypes = pytorch.numpy_to_torch_dtype_dict
        numbers = dict.fromkeys(COLUMNS[2:5], ((), torch.float32))
        flags = dict.fromkeys(COLUMNS[5:], ((), torch.bool))
        columns = {
            "observations": (space.shape, dtypes[np.dtype(space.dtype)]),
            "actions": (action_space.shape or (), dtypes[np.dtype(action_space.dtype)]),
            **numbers,
            **flags,
        }
        on_host = ("observations",) if self.config["cpu_offload"] else ()
        self._rollout = Segments(
            num_agents, self.segments, self.config["bptt_horizon"], columns, device=self.device, on_host=on_host
        )
        for name in COLUMNS:
            setattr(self, name, self._rollout[name])
        self.ratio, self.importance = (torch.ones_like(self._rollout["values"]) for _ in range(2))
        # In these environments the row after an episode's end is the first of the next one, and its action is ignored.
        self._resets_in_a_step = bool(getattr(vecenv, "emulated", False))
        self._acts = np.zeros(num_agents, bool)  # whether the action that answers an agent's last row counts
        self.lstm_h = self.lstm_c = None
        self._rows_axis = 0  # of the agents, in the states that the policy returns
        if self.config.get("use_rnn"):
            self.lstm_h, self.lstm_c = torch.zeros(
                2, num_agents, self.uncompiled_policy.hidden_size, device=self.device
            )

    def _states(self) -> list[tuple[str, Tensor]]:
        """Return the LSTM's states of all agents by name; with use_rnn alone there are any."""
        return [] if self.lstm_h is None or self.lstm_c is None else [("lstm_h", self.lstm_h), ("lstm_c", self.lstm_c)]

    @property
    def uptime(self) -> float:
        """The seconds since the trainer was made."""
        return time.time() - self.start_time

    @property
    def sps(self) -> float:
        """The agents' steps per second since the last log."""
        seconds = time.time() - self.last_log_time
        return (self.global_step - self.last_log_step) / seconds if seconds > 0 else 0.0

    def evaluate(self) -> dict[str, list[Any]]:
        """Play until all segments are full; return the numbers in infos since the last log, in lists by nested key."""
        rollout = self._rollout
        rollout.start()
        for _, states in self._states():
            states.zero_()
        try:
            while not rollout.is_full:
                self.profile("environments", self.epoch)
                # After the first four, batches of pufferlib-core have the teacher's actions.
                observations, rewards, terminals, truncations, *_, infos, ids, masks = self.vecenv.recv()
                self.profile("inference", self.epoch)
                with torch.no_grad(), self.amp_context:
                    actions = self._act(observations, rewards, terminals, truncations, infos, ids, masks)
                self.profile("environments", self.epoch)
                self.vecenv.send(actions)
        finally:
            self.profile.end()
        return self.stats

    def _act(
        self,
        observations: Any,
        rewards: Any,
        terminals: Any,
        truncations: Any,
        infos: Any,
        agent_ids: Any,
        masks: Any,
    ) -> Array:
        """Store a batch, and return the policy's actions for it."""
        ids, masks = _on_host(agent_ids).reshape(-1), _on_host(masks, bool)
        self.global_step += int(masks.sum())
        rows = torch.as_tensor(observations)
        on_device = rows.to(self.device)
        rewards = torch.as_tensor(rewards).to(self.device)
        done = torch.as_tensor(terminals).to(self.device)
        contiguous = len(ids) == ids[-1] - ids[0] + 1 and bool((np.diff(ids) == 1).all())
        env_id = slice(int(ids[0]), int(ids[-1]) + 1) if contiguous else torch.as_tensor(ids)
        state: dict[str, Any] = {"reward": rewards, "done": done, "env_id": env_id, "mask": masks}
        state |= {name: states[env_id].transpose(0, self._rows_axis) for name, states in self._states()}
        logits, values = self._forward_eval(on_device, state)
        actions, logprobs, _ = pytorch.sample_logits(logits)  # programs replace this function in its module
        for name, states in self._states():
            rows_axis = int(len(state[name]) != len(ids))  # some policies return (layers, rows, hidden_size)
            new_states = state[name].float().transpose(0, rows_axis)
            if states.shape[1:] != new_states.shape[1:]:  # the first states have the form of LSTMWrapper's
                states = states.new_zeros(self.total_agents, *new_states.shape[1:])
                setattr(self, name, states)
            self._rows_axis, states[env_id] = rows_axis, new_states
        terminals, truncations = _on_host(terminals, bool), _on_host(truncations, bool)
        counts = masks & self._acts[ids]
        if self._resets_in_a_step:
            self._acts[ids] = masks & ~(terminals | truncations)
        else:
            self._acts[ids] = masks
            terminals = terminals | truncations  # the row holds the next episode's first observation
        self._rollout.add(
            ids,
            {
                "observations": rows,
                "actions": actions.reshape(len(ids), *self._rollout["actions"].shape[2:]),
                "values": values.flatten(),
                "logprobs": logprobs,
                "rewards": rewards.clamp(-1, 1),
                "terminals": torch.from_numpy(terminals),
                "truncations": torch.from_numpy(truncations),
                "masks": torch.from_numpy(counts),
            },
        )
        self._take_infos(infos)
        array: Array = actions.cpu().numpy()
        if isinstance(logits, Normal):
            space = self.vecenv.action_space
            array = np.clip(array.reshape(space.shape), space.low, space.high).astype(space.dtype)
        return array

    def _take_infos(self, infos: Any) -> None:
        for info in infos:
            for key, value in unroll_nested_dict(info):
                if key.rpartition("/")[2] == "env_id":  # which pufferlib adds
                    continue
                if isinstance(value, np.ndarray):
                    value = value.tolist()
                self.stats[key] += value if isinstance(value, list) else [value]

    def train(self) -> dict[str, Any] | None:
        """Learn from the segments; return what was logged, or None: logs are at least 0.25 s apart, except at the end.

        Writes a checkpoint each ``checkpoint_interval`` calls and at the end.
        """
        self.profile("learning", self.epoch)
        try:
            losses = self._learn()
        finally:
            self.profile.end()
        self.epoch += 1
        if self.config["anneal_lr"]:
            self.scheduler.step()
        self.losses = losses
        ends = self.global_step >= self.config["total_timesteps"]
        logs = None
        if ends or time.time() > self.last_log_time + LOG_INTERVAL_S:
            logs = self.mean_and_log()
            if sys.stdout.isatty():
                self.print_dashboard(clear=True)
            self.last_stats, self.stats = self.stats, defaultdict(list)
            self.last_log_time, self.last_log_step = time.time(), self.global_step
        if ends or self.epoch % self.config["checkpoint_interval"] == 0:
            self.save_checkpoint()
            self.msg = f"Checkpoint saved at update {self.epoch}"
        return logs

    def _learn(self) -> dict[str, float]:
        config, device, steps = self.config, self.device, self.config["bptt_horizon"]
        alpha, beta0 = config["prio_alpha"], config["prio_beta0"]
        beta = beta0 + (1 - beta0) * alpha * self.epoch / self.total_epochs
        values, logprobs = self._rollout["values"], self._rollout["logprobs"]
        counts = torch.zeros_like(self._rollout["masks"])  # the actions to learn from
        counts[:, :-1] = self._rollout["masks"][:, 1:]
        self.ratio.fill_(1)
        totals: defaultdict[str, float] = defaultdict(float)
        for minibatch in range(self.total_minibatches):
            advantages = self._advantages()
            segments, weights = prioritized(advantages, self.minibatch_segments, alpha, beta)
            if not counts[segments].any():
                self._step_after(minibatch)
                continue
            rows = self._rollout["observations"][segments.to(self._rollout["observations"].device)].to(device)
            actions = self._rollout["actions"][segments]
            state = {"action": actions, "lstm_h": None, "lstm_c": None}
            if not config.get("use_rnn"):
                rows = rows.flatten(0, 1)
            with self.amp_context:
                logits, new_values = self._forward(rows, state)
                _, new_logprobs, entropy = pytorch.sample_logits(logits, action=actions.flatten(0, 1))
            shape = (len(segments), steps)
            new_values, new_logprobs = new_values.float().view(shape), new_logprobs.float().view(shape)
            losses = clipped_losses(
                *(new_logprobs, new_values, logprobs[segments], values[segments], advantages[segments]),
                clip=config["clip_coef"],
                value_clip=config["vf_clip_coef"],
                masks=counts[segments],
                weights=weights,
            )
            entropy = entropy.float().view(shape)[counts[segments]].mean()
            loss = losses.policy + config["vf_coef"] * losses.value - config["ent_coef"] * entropy
            (loss / self.accumulate_minibatches).backward()
            self.ratio[segments], values[segments] = losses.ratio, new_values.detach()
            terms = {"policy_loss": losses.policy, "value_loss": losses.value, "entropy": entropy, **losses.metrics}
            for name, term in terms.items():
                totals[name] += float(term.detach()) / self.total_minibatches
            self._step_after(minibatch)
        errors = self._advantages()[counts]
        variance = float((errors + values[counts]).var(correction=0)) if len(errors) else 0.0
        unexplained = float(errors.var(correction=0)) / variance if variance else math.nan
        return {**totals, "explained_variance": 1 - unexplained}

    def _step_after(self, part: int) -> None:
        """Take a step of the optimizer if this part of a minibatch is its last. part: its number in this update."""
        if (part + 1) % self.accumulate_minibatches == 0:
            torch.nn.utils.clip_grad_norm_(self.uncompiled_policy.parameters(), self.config["max_grad_norm"])
            self.optimizer.step()
            self.optimizer.zero_grad()

    def _advantages(self) -> Tensor:
        rollout, config = self._rollout, self.config
        return vtrace_advantages(
            *(rollout["values"], rollout["rewards"], rollout["terminals"], self.ratio),
            *(config["gamma"], config["gae_lambda"], config["vtrace_rho_clip"], config["vtrace_c_clip"]),
            truncations=rollout["truncations"],
            masks=rollout["masks"],
        )

    def mean_and_log(self) -> dict[str, Any]:
        """Return the means of ``stats``, the losses and the times, after passing them to the logger."""
        logs = {
            "SPS": self.sps,
            "agent_steps": self.global_step,
            "uptime": self.uptime,
            "epoch": self.epoch,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            **{f"environment/{key}": value for key, value in self._means(self.stats).items()},
            **{f"losses/{key}": value for key, value in self.losses.items()},
            **{f"performance/{name}": share for name, share in self.profile.shares().items()},
        }
        self.logger.log(logs, self.global_step)
        return logs

    def _means(self, stats: dict[str, list[Any]]) -> dict[str, float]:
        means = {}
        for key, values in stats.items():
            try:
                means[key] = float(np.mean(values))
            except (TypeError, ValueError):  # texts, or lists of different lengths
                continue
        return means

    def print_dashboard(self, clear: bool = False, idx: Any = None, **_: Any) -> None:
        """Print the progress; without rich, a line. clear: over what the terminal shows. Other arguments: accepted."""
        try:
            from rich.console import Console

            from pufferlib.training.dashboard import Dashboard
        except ImportError:
            means = self._means(self.stats or self.last_stats) | self.losses
            print(f"{self.global_step:,} of {self.config['total_timesteps']:,} steps: {means}")
            return
        console = Console()
        if clear:
            console.clear()
        mean_speed = self.global_step / max(self.uptime, 1e-9)
        steps_left = max(0, self.config["total_timesteps"] - self.global_step)
        dashboard = Dashboard(
            f"PuffeRL {self.config.get('env', '')}".rstrip(),
            self.global_step,
            int(self.config["total_timesteps"]),
            self.uptime,
            steps_left / mean_speed if mean_speed else math.inf,
            self.sps,
            mean_speed,
            self.profile.shares(),
            self._means(self.stats or self.last_stats),
            self.losses,
        )
        console.print(dashboard)
        if self.msg:
            console.print(self.msg)

    def save_checkpoint(self) -> str:
        """Write the weights and the trainer's state to data_dir/run_id, and return the path of the weights."""
        folder = Path(self.config["data_dir"]) / str(self.logger.run_id)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"model_{self.epoch:06d}.pt"
        if path == self._saved and path.exists():
            return str(path)
        torch.save(self.uncompiled_policy.state_dict(), path)
        state = {
            "optimizer_state_dict": self.optimizer.state_dict(),
            "global_step": self.global_step,
            "agent_step": self.global_step,
            "update": self.epoch,
            "model_name": path.name,
            "run_id": self.logger.run_id,
        }
        temporary = folder / "trainer_state.pt.tmp"
        torch.save(state, temporary)
        temporary.replace(folder / "trainer_state.pt")
        self._saved = path
        return str(path)

    def close(self) -> str:
        """Close the environments and save the policy; return the path of a copy, data_dir/run_id.pt.

        The logger stays open. It can be called again.
        """
        if self._is_open:
            self._is_open = False
            self.vecenv.close()
            self.utilization.stop()
        path = Path(self.config["data_dir"]) / f"{self.logger.run_id}.pt"
        shutil.copy(self.save_checkpoint(), path)
        return str(path)
