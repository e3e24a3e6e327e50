"""Statistics of episodes that kernels add up are what infos tell, summed one after another; and cost no wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from devices import ON_HOST_AND_DEVICE, Player

from pufferlib.errors import ClosedError

pytestmark = pytest.mark.beside

NUM_ENVS = 6
KERNELS: dict[str, dict[str, Any]] = {
    "ocean/squared": {"num_targets": 3},
    "tag/continuous": {
        "num_taggers": 2, "num_runners": 3, "grid_length": 3, "tagging_distance": 0.1, "episode_length": 12,
        "edge_hit_penalty": -0.3, "step_reward_for_runner": 0.07,
    },
}  # fmt: skip
FIELDS = ("ended_episodes", "ended_steps", "ended_scores", "ended_returns")


class Tally:
    """What infos have told of the episodes of each environment."""

    def __init__(self, vec: Any) -> None:
        self._num_agents = vec.agents_per_env
        self._open: dict[int, np.ndarray[Any, Any]] = {}
        self.clear()

    def clear(self) -> None:
        self.num, self.steps = np.zeros((2, NUM_ENVS), np.int64)
        self.scores = np.zeros(NUM_ENVS)
        self.returns = np.zeros((NUM_ENVS, self._num_agents))

    def read(self, infos: Any) -> None:
        for info in infos:
            env_id, episode = info["env_id"], info["episode"]
            life = self._open.setdefault(env_id, np.zeros(self._num_agents))
            if "agent_id" in info or self._num_agents == 1:
                life[info.get("agent_id", env_id) - env_id * self._num_agents] = episode["r"]
            if info.get("env"):
                self.num[env_id] += 1
                self.steps[env_id] += episode["l"]
                self.scores[env_id] += info.get("final_info", info).get("score", np.nan)
                self.returns[env_id] += self._open.pop(env_id)

    def forget(self, env_ids: Any) -> None:
        """Environments are reset: what goes on there ends for nobody."""
        for env_id in env_ids:
            self._open.pop(env_id, None)


def drawn(random: np.random.Generator, vec: Any, num_envs: int) -> np.ndarray[Any, Any]:
    space = vec.single_action_space
    most = getattr(space, "nvec", getattr(space, "n", None))
    return random.integers(0, most, (num_envs * vec.agents_per_env, *(space.shape or ())))


def hold(vec: Any, tally: Tally) -> None:
    """Compare what has been added up since the last time, to the bit, and its means; and begin again."""
    for name, expected in zip(FIELDS, (tally.num, tally.steps, tally.scores, tally.returns), strict=True):
        np.testing.assert_array_equal(vec.data.pull(name), expected, name)
    stats, num = vec.episode_stats(reset=True), int(tally.num.sum())
    assert num > 5 and stats.num_episodes == num
    assert stats.mean_length == tally.steps.sum() / num
    np.testing.assert_allclose(stats.mean_returns, tally.returns.sum(axis=0) / num, rtol=1e-12)
    assert stats.mean_return == pytest.approx(tally.returns.sum() / num, rel=1e-12)
    score = tally.scores.sum() / num
    assert stats.mean_score is None if np.isnan(score) else stats.mean_score == pytest.approx(score, rel=1e-12)
    assert not any(vec.data.arrays[name].any() for name in FIELDS)
    tally.clear()


@pytest.mark.parametrize("autoreset_mode", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("batch_size", [NUM_ENVS, 2])
@pytest.mark.parametrize("name", KERNELS)
def test_statistics_are_those_of_the_infos(name: str, batch_size: int, autoreset_mode: str, player: Player) -> None:
    random = np.random.default_rng(1)
    with player.make(
        name,
        num_envs=NUM_ENVS,
        batch_size=batch_size,
        seed=1,
        env_kwargs=KERNELS[name],
        autoreset_mode=autoreset_mode,
    ) as vec:
        tally = Tally(vec)
        vec.async_reset()
        for _ in range(2):
            for step in range(1, 60 * NUM_ENVS // batch_size):
                batch = vec.recv()
                tally.read(batch.infos)
                env_ids = batch.env_ids.tolist()
                ended = {info["env_id"] for info in batch.infos if info.get("env")}
                again = [env_id for env_id in env_ids if env_id in ended and autoreset_mode == "disabled"]
                if step % 7 == 0 and env_ids[0] not in again:  # in the midst of an episode, too
                    again.append(env_ids[0])
                others = [env_id for env_id in env_ids if env_id not in again]
                if again:
                    tally.forget(again)
                    vec.async_reset(env_ids=again)
                if others:
                    vec.send(drawn(random, vec, len(others)), env_ids=others)
            for _ in range(NUM_ENVS // batch_size):  # what is under way has been counted
                tally.read(vec.recv().infos)
            hold(vec, tally)
            tally.forget(range(NUM_ENVS))
            vec.async_reset()


@pytest.mark.parametrize("player", ON_HOST_AND_DEVICE, indirect=True)
@pytest.mark.parametrize("autoreset_mode", ["next_step", "same_step"])
def test_a_rollout_counts_as_its_steps_do(autoreset_mode: str, player: Player) -> None:
    arguments: dict[str, Any] = dict(num_envs=NUM_ENVS, seed=1, autoreset_mode=autoreset_mode)
    arguments["env_kwargs"] = KERNELS["tag/continuous"]
    with player.make("tag/continuous", **arguments) as rolled, player.make("tag/continuous", **arguments) as single:
        rolled.reset()
        single.reset()
        random, tally = np.random.default_rng(1), Tally(single)
        table = np.stack([drawn(random, single, NUM_ENVS) for _ in range(50)])
        rolled.rollout(50, table)
        for actions in table:
            tally.read(single.step(actions)[4])
        hold(rolled, tally)


@pytest.mark.parametrize("player", ON_HOST_AND_DEVICE, indirect=True)
def test_sums_stay_on_the_device_until_they_are_read(player: Player) -> None:
    with player.make("tag/grid", num_envs=2, seed=1) as vec:
        assert str(vec.episode_stats()) == "no episode has ended"
        assert np.isnan(vec.episode_stats().mean_return)
        vec.reset()
        vec.stats(reset=True)
        vec.rollout(100, keep=False)
        sums = vec.episode_sums(reset=True)
        assert vec.stats().device_to_host_nbytes == 0
        assert {part.device for part in (sums.num_episodes, sums.num_steps, sums.scores, sums.returns)} == {vec.device}
        assert sums.num_episodes.shape == () and sums.returns.shape == (vec.agents_per_env,)
        assert vec.episode_stats().num_episodes == 0
        assert vec.stats().device_to_host_nbytes > 0
        stats = sums.stats()
        assert stats.num_episodes >= 2 and str(stats).startswith(f"{stats.num_episodes} episodes: length ")
        by_type = stats.mean_returns_by_type
        assert list(by_type) == ["tagger", "runner"]
        assert by_type["tagger"] == pytest.approx(stats.mean_returns[:-1].mean())
        assert by_type["runner"] == stats.mean_returns[-1]
    with pytest.raises(ClosedError, match="this CUDA is closed"):
        vec.episode_stats()
    with player.make("ocean/squared", seed=1) as vec:
        vec.reset()
        vec.rollout(30)
        assert vec.episode_stats().mean_returns_by_type == {} and "score" in str(vec.episode_stats())
