"""Stable-Baselines3's ``evaluate_policy`` over ``pufferlib.evaluate``.

    from pufferlib.adapters.sb3_evaluation import evaluate_policy  # instead of from stable_baselines3
    mean, std = evaluate_policy(model, "CartPole-v1", n_eval_episodes=100, num_envs=16)

Stable-Baselines3 gives each environment of a VecEnv a fixed share of the episodes, which favours none either, but
leaves environments idle that have played theirs. Here, whichever environment is free plays the next episode.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from pufferlib.errors import PlanError
from pufferlib.evaluation import evaluate
from pufferlib.util.annotations import Array
from pufferlib.vectorization import Batch

__all__ = ["evaluate_policy"]

Callback = Callable[[dict[str, Any], dict[str, Any]], None]


def evaluate_policy(
    model: Any,
    env: Any,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    render: bool = False,
    callback: Callback | None = None,
    reward_threshold: float | None = None,
    return_episode_rewards: bool = False,
    warn: bool = True,
    **how: Any,
) -> tuple[float, float] | tuple[list[float], list[int]]:
    """Return the mean and the standard deviation of the returns of ``n_eval_episodes`` episodes.

    model: a model of Stable-Baselines3, or any policy that ``pufferlib.evaluate`` takes. env: a creator or a name, as
        for ``pufferlib.make``; or one Gymnasium environment, which is played in this process and stays open.
    deterministic: take the likeliest actions instead of sampled ones. render: call the environment's ``render`` after
        each step; only for one environment. callback: called after each step of each environment with two dicts, of
        which the second is empty and the first has the names that callbacks of Stable-Baselines3 read: ``i`` (the
        environment), ``observations, rewards, dones, infos`` (of the batch), ``reward, done, info`` (of the
        environment), ``current_rewards, current_lengths`` (of its episode, at i), ``episode_rewards, episode_lengths,
        episode_counts``, ``n_envs``, ``model`` and ``env``.
    reward_threshold: raise AssertionError if the mean is not above it. return_episode_rewards: return the lists of the
        returns and of the lengths instead, in the order of the seeds. warn: warn of a Monitor below other wrappers of
        an environment, whose sums Stable-Baselines3 would return: here, the rewards that the outermost wrapper returns
        are summed. how: further arguments of ``pufferlib.evaluate``.

    Episodes that failed are left out, as a warning says. Raises PlanError for a VecEnv, and the errors of
    ``pufferlib.evaluate``.
    """
    if hasattr(env, "num_envs"):
        raise PlanError(
            f"the {type(env).__name__} has {env.num_envs} environments, which cannot be reset one at a time with a "
            "seed each; pass what makes one of them, and num_envs="
        )
    watchers: list[Callable[[Batch, Array], object]] = []
    if isinstance(env, gymnasium.Env):
        if warn and _has_inner_monitor(env):
            warnings.warn(
                "the environment has a Monitor below other wrappers, whose sums are not used; the rewards that the "
                "outermost wrapper returns are summed",
                stacklevel=2,
            )
        how = {"backend": "serial", "fresh": "never", **how, "num_envs": 1}
        source: Any = _StaysOpen(env)
        if render:
            watchers.append(lambda batch, episodes: env.render())
        played: Any = lambda: source  # noqa: E731  # always the same one
    elif render:
        raise PlanError("render=True draws one environment in this process; pass an environment instead of its creator")
    else:
        played = env
    if callback is not None:
        watchers.append(_Watcher(model, env, callback))

    def see(batch: Batch, episodes: Array) -> None:
        for watcher in watchers:
            watcher(batch, episodes)

    result = evaluate(
        played,
        model,
        episodes=n_eval_episodes,
        greedy=deterministic,
        see=see if watchers else None,
        **how,
    )
    scores = result.numbers("returns")
    scores, lengths = scores[~np.isnan(scores)], result.lengths[~np.isnan(scores)]
    mean = float(scores.mean())
    if reward_threshold is not None and not mean > reward_threshold:
        raise AssertionError(f"Mean reward below threshold: {mean:.2f} < {reward_threshold:.2f}")
    return (scores.tolist(), lengths.tolist()) if return_episode_rewards else (mean, float(scores.std()))


class _StaysOpen(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that the end of an evaluation does not close."""

    def close(self) -> None:
        """Do nothing."""


class _Watcher:
    """Calls a callback as Stable-Baselines3 does."""

    def __init__(self, model: Any, env: Any, callback: Callback) -> None:
        self._callback = callback
        self._names: dict[str, Any] = {"model": model, "env": env, "episode_rewards": [], "episode_lengths": []}

    def __call__(self, batch: Batch, episodes: Array) -> None:
        names, num_rows = self._names, len(batch.env_ids)
        num_envs = max(int(batch.env_ids.max()) + 1, names.get("n_envs", 0))
        for name in ("current_rewards", "current_lengths", "episode_counts"):
            values = names.get(name, np.zeros(0, np.float64 if name == "current_rewards" else np.int64))
            names[name] = np.pad(values, (0, num_envs - len(values)))
        infos: dict[int, Mapping[str, Any]] = {info["env_id"]: info for info in batch.infos}  # type: ignore[misc]
        dones = batch.terminations | batch.truncations
        listed = [infos.get(env_id, {}) for env_id in batch.env_ids.tolist()]
        names |= {"n_envs": num_envs, "observations": batch.observations, "rewards": batch.rewards, "dones": dones}
        names["infos"] = listed
        for row in range(num_rows):
            i = int(batch.env_ids[row])
            if not batch.masks[row]:  # of a reset
                names["current_rewards"][i], names["current_lengths"][i] = 0.0, 0
                continue
            names["current_rewards"][i] += batch.rewards[row]
            names["current_lengths"][i] += 1
            names |= {"i": i, "reward": batch.rewards[row], "done": bool(dones[row]), "info": listed[row]}
            if dones[row] and episodes[row] >= 0:
                names["episode_rewards"].append(float(names["current_rewards"][i]))
                names["episode_lengths"].append(int(names["current_lengths"][i]))
                names["episode_counts"][i] += 1
            self._callback(names, {})


def _has_inner_monitor(env: gymnasium.Env[Any, Any]) -> bool:
    inner = getattr(env, "env", None)
    while inner is not None:
        if type(inner).__name__ == "Monitor":
            return True
        inner = getattr(inner, "env", None)
    return False
