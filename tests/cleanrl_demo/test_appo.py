"""Training over Ray, on policy and off: V-trace by its definition, rollouts as played, actors that die, learning."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import conftest
import numpy as np
import psutil
import pytest
import ray
import torch
from counting_envs import Counting, Fragile, Marked
from programs import running

from cleanrl_demo import appo_ray, dqn_ray, ppo
from cleanrl_demo.appo_ray import Config, PolicyActor, train, vtrace
from pufferlib.errors import PlanError, PlatformError, WorkerError
from pufferlib.models import Origin
from pufferlib.training import rollout_actor
from pufferlib.training.fleet import Fleet, RolloutReport
from pufferlib.training.lines import Lines, joined
from pufferlib.training.plot import read
from pufferlib.training.report import Report
from pufferlib.training.session import environments
from pufferlib.training.settings import family_settings

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.beside]

# ------------------------------------------------------------------------------------------------------------- V-trace


def drawn(seed, steps=12, agents=5):
    """Lines with endings, rows that are not real, and ratios of both sizes: arguments of ``vtrace`` up to masks."""
    rng = np.random.default_rng(seed)
    masks = rng.random((steps, agents)) < 0.8
    masks[-1] = False
    numbers = rng.normal(size=(3, steps, agents)).astype(np.float32)
    ends = rng.random((2, steps, agents)) < 0.15
    return numbers[0], numbers[1], numbers[2], *ends, masks


def by_definition(log_ratios, rewards, values, terminations, truncations, masks, gamma, gae_lambda, rho_bar, c_bar):
    """Each row's correction and advantage, as sums over what came after it."""
    ratios = np.exp(log_ratios.astype(np.float64))
    rho, c = np.minimum(ratios, rho_bar), np.minimum(ratios, c_bar)
    steps, agents = masks.shape
    corrections, advantages = np.zeros((2, steps, agents))

    def difference(step, agent):
        after = 0.0 if terminations[step, agent] else values[step + 1, agent]
        return rewards[step, agent] + gamma * after - values[step, agent]

    for agent in range(agents):
        for first in range(steps):
            weight_of_values, weight_of_actions = 1.0, rho[first, agent]
            for step in range(first, steps):
                if not masks[step, agent]:
                    break
                one = rho[step, agent] * difference(step, agent)
                corrections[first, agent] += weight_of_values * one
                advantages[first, agent] += one if step == first else weight_of_actions * one
                if terminations[step, agent] or truncations[step, agent]:
                    break
                weight_of_values *= gamma * gae_lambda * c[step, agent]
                weight_of_actions *= gamma * gae_lambda * (1.0 if step == first else c[step, agent])
    return corrections, advantages


@pytest.mark.parametrize(("rho_bar", "c_bar"), [(1.0, 1.0), (2.0, 0.7)])
@pytest.mark.parametrize("seed", range(5))
def test_vtrace_is_its_definition(seed, rho_bar, c_bar):
    arguments = (*drawn(seed), 0.9, 0.8, rho_bar, c_bar)
    for actual, expected in zip(vtrace(*arguments), by_definition(*arguments), strict=True):
        assert actual.dtype == np.float32
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_on_policy_it_is_what_ppo_estimates_and_with_lambda_1_the_return(seed):
    _, rewards, values, terminations, truncations, masks = drawn(seed)
    steps, agents = masks.shape
    nobody = steps * agents
    rows = np.arange(nobody).reshape(steps, agents)
    flat = [np.append(column, column.dtype.type(0)) for column in (rewards, values, terminations, truncations, masks)]
    next_index = np.append(np.concatenate([rows[1:], np.full((1, agents), nobody)]), nobody)
    batches = [slice(step * agents, (step + 1) * agents) for step in range(steps)]
    expected = ppo.advantages(*flat, next_index, batches, 0.9, 0.8)[:-1].reshape(steps, agents)
    columns = (rewards, values, terminations, truncations, masks)
    for actual in vtrace(np.zeros_like(rewards), *columns, 0.9, 0.8):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    corrections, _ = vtrace(np.zeros_like(rewards), *columns, 0.9, 1.0)
    for agent in range(agents):
        aim = 0.0
        for step in reversed(range(steps)):
            if masks[step, agent]:
                over, cut = terminations[step, agent], truncations[step, agent] or not masks[step + 1, agent]
                aim = rewards[step, agent] + 0.9 * (0.0 if over else values[step + 1, agent] if cut else aim)
                assert corrections[step, agent] + values[step, agent] == pytest.approx(aim, abs=1e-4)


def test_what_will_not_be_done_again_counts_for_nothing_and_what_is_likelier_no_more_than_once():
    rewards, values = np.array([[1.0], [0.0]], np.float32), np.zeros((2, 1), np.float32)
    never, masks = np.zeros((2, 1), np.bool_), np.array([[True], [False]])
    for log_ratio, weight in ((-50.0, 0.0), (50.0, 1.0), (1e4, 1.0), (np.log(0.5), 0.5)):
        log_ratios = np.array([[log_ratio], [np.nan]], np.float32)  # a row that is not real says nothing
        for estimate in vtrace(log_ratios, rewards, values, never, never, masks, 0.9, 0.9):
            assert estimate[0, 0] == pytest.approx(weight) and estimate[1, 0] == 0


# ---------------------------------------------------------------------------------------------------------- rollouts


def alone(monkeypatch, config, env, index=0, kind=PolicyActor):
    """A rollout actor in this process, and what makes weights a reference that it fetches."""
    fetched = []
    ray = SimpleNamespace(get=lambda weights: fetched.append(1) or weights)
    monkeypatch.setattr(rollout_actor, "ray_module", lambda: ray)
    monkeypatch.setattr(rollout_actor, "node_name", lambda: "here")
    origin = Origin(*config.made_as())
    actor = kind(index, rollout_actor.packed(config, env, origin))
    with environments(config, env) as vec:
        torch.manual_seed(1)
        policy = origin.actor(vec.observation_layout, vec.single_action_space)
    weights = {name: part.numpy() for name, part in policy.policy.state_dict().items()}
    return actor, policy, [weights], fetched


@pytest.mark.parametrize("policy", ["mlp", "lstm"])
@pytest.mark.parametrize(("backend", "num_envs", "batch_size"), [("serial", 3, 3), ("serial", 5, 2), ("pool", 4, 2)])
def test_a_rollout_is_what_was_played(monkeypatch, policy, backend, num_envs, batch_size):
    """Lines go on from rollout to rollout; the learner finds in them the log-probabilities that the actor had."""
    config = Config(
        backend=backend, num_envs=num_envs, batch_size=batch_size, num_workers=2, rollout_length=9, policy=policy
    )
    actor, learning, weights, fetched = alone(monkeypatch, config, Counting, index=3)
    last, num_real = {}, 0
    for _ in range(4):
        about, lines = actor.play(7, 5, weights)
        assert (about.version, about.node, about.num_steps, len(fetched)) == (5, "here", lines.masks.sum(), 1)
        infos = [info for batch in about.infos for info in batch]
        assert all(3 * num_envs <= info["env_id"] < 4 * num_envs and "picture" not in info for info in infos)
        num_real += about.num_steps
        for agent in range(2 * num_envs):
            seen, mask = lines.observations[:, agent], lines.masks[:, agent]
            for step in np.flatnonzero(mask):
                (episode, _, time), after = seen[step], seen[step + 1]
                ended = lines.terminations[step, agent] or lines.truncations[step, agent]
                assert after[0] == episode and after[2] == time + 1 == lines.rewards[step, agent]
                assert lines.terminations[step, agent] == (ended and episode % 2 == 1)
            if agent in last:
                assert np.array_equal(seen[0], last[agent])  # which only waited for its outcome
            if actor.rollout.newest[agent] != actor.rollout.dummy_row:
                last[agent] = actor.rollout.observations[actor.rollout.newest[agent]].numpy().copy()
        on = joined([lines]).on("cpu")
        with torch.no_grad():
            distribution, _ = appo_ray.evaluate_rows(learning, on.observations, on.states, on.starts)
            log_probs = distribution.log_prob(
                on.discrete_actions.flatten(0, 1), on.continuous_actions.flatten(0, 1)
            ).reshape(on.masks.shape)
        torch.testing.assert_close(log_probs[on.masks], on.log_probs[on.masks])
    assert num_real > 4 * 9 * num_envs
    actor.play(7, 6, weights)
    assert len(fetched) == 2  # another version
    actor.close()


def test_rollouts_of_unequal_length_lie_side_by_side():
    def lines(steps, agents, fill):
        def of(*shape, kind=np.float32):
            return np.full((steps, agents, *shape), fill, kind)

        flags = [of(kind=np.bool_) for _ in range(3)]
        return Lines(
            of(2), of(kind=np.bool_), of(1, kind=np.int64), of(0), of(), of(), *flags, (np.full((agents, 4), fill),)
        )

    both = joined([lines(2, 3, 1), lines(4, 1, 2)])
    assert both.observations.shape == (4, 4, 2) and both.states[0][:, 0].tolist() == [1, 1, 1, 2]
    assert both.masks.tolist() == [[True] * 4] * 2 + [[False, False, False, True]] * 2
    assert both.rewards[:, 3].tolist() == [2] * 4 and both.rewards[2:, :3].sum() == 0


# --------------------------------------------------------------------------------------------------------------- A3C

# One rollout of each environment an update, n-step returns, and neither a correction for lag nor a clipped loss.
A3C: dict[str, Any] = dict(
    loss="impala", vtrace=False, normalize_advantages=False, rollouts_per_update=1, num_epochs=1, num_minibatches=1,
    gae_lambda=1.0, value_coefficient=1.0,
)  # fmt: skip


def test_without_correction_and_clip_an_update_has_a3cs_gradient(monkeypatch):
    """Also where the policy has changed since a rollout was played: A3C does not look at the difference."""
    config = Config(**A3C, num_envs=3, rollout_length=9, gamma=0.9, learning_rate=0.0, max_grad_norm=1e9, device="cpu")
    actor, _, weights, _ = alone(monkeypatch, config, Counting)
    actor.play(7, 5, weights)
    lines = actor.play(7, 5, weights)[1]
    with environments(config, Counting) as vec:
        learner = appo_ray.make_learner(vec, Origin(config.policy), config)
    (flat,) = learner.optimizer.param_groups[0]["params"]
    torch.manual_seed(2)
    with torch.no_grad():
        flat += 0.3 * torch.randn_like(flat)  # another policy than the one that played
    importance = appo_ray.update(learner, [lines], config)["losses/importance"]
    assert importance < 0.9  # it is measured, and not used
    gradient = flat.grad.clone()
    on = joined([lines]).on("cpu")
    distribution, values = appo_ray.evaluate_rows(learner.actor, on.observations, on.states, on.starts)
    actions = on.discrete_actions.flatten(0, 1), on.continuous_actions.flatten(0, 1)
    log_probs, entropy = (part.view_as(on.masks) for part in (distribution.log_prob(*actions), distribution.entropy()))
    values = values.view_as(on.masks)
    losses = []
    for agent in range(on.masks.shape[1]):
        for step in reversed(range(len(on.masks))):
            if not on.masks[step, agent]:
                aim = values[step, agent].detach()  # of the last observation, at the rollout's end
                continue
            if on.terminations[step, agent]:
                aim = torch.tensor(0.0)
            elif on.truncations[step, agent]:
                aim = values[step + 1, agent].detach()
            aim = on.rewards[step, agent] + 0.9 * aim
            error = aim - values[step, agent]
            loss = -log_probs[step, agent] * error.detach() + 0.5 * error.square()
            losses.append(loss - config.entropy_coefficient * entropy[step, agent])
    flat.grad.zero_()
    torch.stack(losses).mean().backward()
    assert len(losses) > 30 and on.terminations[on.masks].any() and on.truncations[on.masks].any()
    assert (gradient - flat.grad).abs().max() <= 1e-5 * flat.grad.abs().max()
    appo_ray.update(learner, [lines], replace(config, vtrace=True))
    assert (flat.grad - gradient).abs().max() > 0.01 * gradient.abs().max()


# --------------------------------------------------------------------------------------------------------------- DQN


@pytest.mark.parametrize(("n_step", "backend", "num_envs", "batch_size"), [(1, "serial", 3, 3), (3, "pool", 4, 2)])
def test_the_learner_stores_the_transitions_that_actors_played(monkeypatch, n_step, backend, num_envs, batch_size):
    """An agent observes (episode, agent, time), and is paid its time; every second episode is truncated."""
    config = dqn_ray.Config(
        backend=backend, num_envs=num_envs, batch_size=batch_size, num_workers=2, rollout_length=9, n_step=n_step,
        gamma=0.5,
    )  # fmt: skip
    actor, _, weights, _ = alone(monkeypatch, config, Counting, kind=dqn_ray.EpsilonGreedyActor)
    with environments(config, Counting) as vec:
        learner = dqn_ray.Learner(vec, Origin(*config.made_as()), config)
    replay, num_steps = learner.replay, 0
    for _ in range(4):
        report, lines = actor.play(7, 5, weights)
        assert dqn_ray.add(replay, lines) == report.num_steps
        num_steps += report.num_steps
    assert num_steps > 4 * 8 * num_envs and replay.num_added == replay.num_steps == num_steps
    columns = (column[:num_steps] for column in replay.columns)
    for observation, action, reward, terminated, after, discount in zip(*columns, strict=True):
        (episode, agent, time), span = observation.tolist(), int(after[2] - observation[2])
        assert after.tolist() == [episode, agent, time + span] and 1 <= span <= n_step
        assert float(reward) == pytest.approx(sum(0.5**k * (time + k + 1) for k in range(span)))
        assert float(discount) == pytest.approx(0.5**span) and 0 <= action < 4
        assert not terminated or episode % 2 == 1
    assert replay.columns.terminations.sum() > 10
    assert replay.columns.discounts[:num_steps].min() == 0.5**n_step
    actor.close()


def test_epsilon_is_pushed_with_the_weights(monkeypatch):
    config = dqn_ray.Config(num_envs=8, rollout_length=8)
    actor, learning, weights, _ = alone(monkeypatch, config, Counting, kind=dqn_ray.EpsilonGreedyActor)
    at_random = actor.play(7, 5, weights)[1]
    assert set(at_random.discrete_actions.flatten()) == set(range(4))
    weights[0]["epsilon"] = np.zeros((), np.float32)
    actor.play(7, 6, weights)  # it begins with actions of the version before
    lines = actor.play(7, 6, weights)[1]
    best = learning(torch.from_numpy(lines.observations).flatten(0, 1))[0].mode()[0].view(lines.masks.shape).numpy()
    assert (lines.discrete_actions[..., 0] == best)[lines.masks].all()
    actor.close()


def test_what_is_pushed_has_the_epsilon_of_its_step():
    config = dqn_ray.Config(
        total_steps=100, learning_starts=10, exploration_fraction=0.5, start_epsilon=1.0, end_epsilon=0.2
    )
    learner = SimpleNamespace(policy=SimpleNamespace(epsilon=torch.ones(())), num_steps=25)
    pushed = []
    fleet = SimpleNamespace(broadcast=lambda version, policy: pushed.append((version, float(policy.epsilon))))
    for num_steps in (25, 80):
        learner.num_steps = num_steps
        dqn_ray.push(fleet, learner, config, version=num_steps)
    assert pushed == [(25, pytest.approx(0.6)), (80, pytest.approx(0.2))]


# --------------------------------------------------------------------------------------------------------- the fleet


class Gone(Exception):
    """What Ray raises for an actor that has died."""


DEATH = """The actor died unexpectedly before finishing this task.
\tactor_id: 1
The actor is \x1b[36mdead\x1b[39m because its process has died. Exit type: ERROR. Some common causes include: many.
"""


class FewRays:
    """As much of Ray as a fleet calls, in this process: actors answer in the order that a test says."""

    exceptions = SimpleNamespace(RayError=Gone, RayTaskError=type("RayTaskError", (Gone,), {}))

    def __init__(self, answers):
        """answers: which actor's play is over next; one that is negative, -index - 1, dies instead."""
        self.answers, self.puts, self.killed = iter(answers), [], []

    def remote(self, kind):
        started = SimpleNamespace(remote=lambda index, *arguments: self.handle(index))
        return SimpleNamespace(options=lambda **options: started)

    def handle(self, index):
        def play(seed, version, weights):
            return (index, seed, version), (index, version)

        asked = SimpleNamespace(options=lambda num_returns: SimpleNamespace(remote=play))
        return SimpleNamespace(play=asked, close=SimpleNamespace(remote=lambda: (index, "closed")))

    def put(self, weights):
        self.puts.append(weights)

    def wait(self, references, **options):
        answer = next(self.answers, None) if len(references[0]) == 3 else None  # a play's report, or another call
        if answer is None:
            return references, []
        self.dies, index = answer < 0, max(answer, -answer - 1)
        return [reference for reference in references if reference[0] == index], []

    def get(self, reference, timeout=None):
        if len(reference) == 2:
            return reference
        if self.dies:
            raise Gone(DEATH)
        return RolloutReport(reference[2], "here", 8, 0.5, [])

    def kill(self, handle):
        self.killed.append(handle)


class Telling:
    """As much of a report as a fleet calls."""

    def __init__(self):
        self.infos_reported, self.said = [], []
        self.console = SimpleNamespace(print=lambda text, **how: self.said.append(text))

    def infos(self, infos):
        self.infos_reported += infos

    def phase(self, name):
        pass


def a_fleet(answers, **settings):
    few, config = FewRays(answers), Config(num_envs=2, **settings)
    connection = SimpleNamespace(
        ray=few, is_local=True, alive=lambda: True, require=lambda: None, check=lambda: None, release=lambda: None
    )
    fleet = Fleet(connection, Telling(), config, PolicyActor)
    fleet.broadcast(0, torch.nn.Linear(1, 1))
    fleet.begin(1)
    return few, fleet


def test_rollouts_that_are_too_old_are_dropped_and_weights_are_put_once_a_version():
    few, fleet = a_fleet([0, 0, 0, 1, 0, 0, 1], num_actors=2, rollouts_per_update=1, max_lag=2)
    lags = []
    for version in range(1, 7):
        (rollout,), (lag,) = fleet.gather(1)
        assert lag == fleet.version - rollout[1] <= 2
        lags.append((rollout[0], lag))
        fleet.broadcast(version, torch.nn.Linear(1, 1))
    # An actor is asked for the next rollout when one arrives, which is by the update's version older when it comes.
    assert lags == [(0, 0), (0, 1), (0, 1), (0, 1), (0, 1), (1, 2)]
    assert fleet.num_dropped == 1 and fleet.charts()["charts/dropped_rollouts"] == 1
    assert len(few.puts) == 7
    with fleet:
        pass
    assert len(few.killed) == 2


def test_the_end_waits_for_all_plays_together():
    """And for none of those that never end, as on another node where the head is gone."""
    few, fleet = a_fleet([], num_actors=3)
    few.wait, few.get = lambda references, **options: ([], references), None
    with fleet:
        pass
    assert len(few.killed) == 3


def test_where_the_head_is_gone_a_fleet_ends_without_a_call_to_it():
    few, fleet = a_fleet([], num_actors=2)
    released = []

    def check():
        few.wait = None
        raise PlatformError("the head is gone")

    vars(fleet.supervisor.connection).update(check=check, alive=lambda: False, release=lambda: released.append(1))
    with pytest.raises(PlatformError, match="the head is gone"), fleet:
        fleet.gather(1)
    assert released and not few.killed


@pytest.mark.parametrize("count", [2, 4])
def test_where_no_lag_is_allowed_actors_wait_for_the_newest_weights(count):
    _, fleet = a_fleet([1, 0] * 10, num_actors=2, rollouts_per_update=count, max_lag=0)
    for version in range(3):
        rollouts, lags = fleet.gather(count)
        assert [version for _, version in rollouts] == [version] * count and not any(lags)
        assert [index for index, _ in rollouts] == sorted(index for index, _ in rollouts)
        fleet.broadcast(version + 1, torch.nn.Linear(1, 1))
    assert fleet.num_dropped == 0


def test_an_actor_that_dies_is_replaced_with_other_seeds_until_it_dies_again_and_again():
    few, fleet = a_fleet([1, -2, 0, -2, 1, -2, 0], num_actors=2, rollouts_per_update=1)
    seeds = {reference[1] for reference in fleet.plays}
    for index in (1, 0, 1, 0):
        assert fleet.gather(1)[0][0][0] == index
        seeds |= {reference[1] for reference in fleet.plays}
    assert len(seeds) == 2 + 3  # of each life of each actor
    assert fleet.num_lost == fleet.num_deaths == len(few.killed) == 3
    assert [info["env_id"] for info in fleet.report.infos_reported] == [2, 3] * 3
    why = "The actor is dead because its process has died. Exit type: ERROR"
    assert fleet.report.infos_reported[0]["restarted"] == why
    assert f"actor 1 on here died: {why}. A rollout and the open episodes of its 2" in fleet.report.said[0]
    few.answers = iter([-1, 1, -1, -1])
    message = f"actor 0 on here died 3 times without having come to the end of a rollout; the last time: {why}$"
    with pytest.raises(WorkerError, match=message):
        fleet.gather(2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_actors": 0}, "num_actors=0 is out of bounds; use 1 or more"),
        ({"rollouts_per_update": 0}, "rollouts_per_update=0 is out of bounds"),
        ({"max_lag": 0, "num_actors": 2, "rollouts_per_update": 3}, "=3 has to be a multiple of num_actors=2"),
        ({"clip": 0.0}, "clip=0.0 is out of bounds; use more than 0"),
        ({"loss": "ppo"}, "loss='ppo' is out of bounds; use appo, impala"),
        ({"loss": "impala"}, "num_epochs=4 with loss='impala', which is not clipped; use 1, or appo"),
        ({"num_actors": 9, "rollouts_per_update": 1}, "play faster than is learnt, and max_lag=8 drops most of it"),
        ({"video_envs": (0,)}, "actors' environments are not filmed"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong, message):
    with pytest.raises(PlanError, match=message):
        Config(**wrong)


def test_an_address_without_a_ray_is_refused_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PlanError, match=f"address='{address}' is no Ray that can be reached .*ray start --head"):
            train(Config(env="ocean/bandit", num_envs=1, address=address, runs=None, device="cpu"))
    assert not ray.is_initialized()


# ---------------------------------------------------------------------------------------------------------- over Ray


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Not after each test, as elsewhere: Ray starts and ends processes when it likes. ``over_ray`` looks at its end."""
    yield


@pytest.fixture(scope="module")
def over_ray() -> Iterator[Any]:
    """One Ray for all trainings of this file, which find it and leave it as it is."""
    watches = (conftest.child_processes, conftest.shared_memory)  # Ray keeps a few descriptors of its own
    before = {watch: watch() for watch in watches}
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    assert ray.is_initialized()
    ray.shutdown()
    left = [name for watch in before for name in conftest.leftovers(watch, before[watch])]
    assert not left, left


def settings(env, **changes):
    """What suits an environment, and what tests change of it."""
    return {**family_settings(env, Config)[1], "env": env, "runs": None, "device": "cpu", **changes}


QUICK = dict(
    env="ocean/squared", num_envs=4, rollout_length=16, num_epochs=1, num_minibatches=2, total_steps=1_500,
    eval_episodes=8, device="cpu",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)  # for machines with much else to do
@pytest.mark.parametrize(
    ("env", "changes", "bar"),
    [
        ("ocean/squared", {"total_steps": 40_000}, 0.95),
        pytest.param(
            "ocean/squared",
            {**A3C, "total_steps": 60_000, "rollout_length": 8},
            0.7,
            id="a3c",
        ),
        ("ocean/memory", {}, 0.9),
        # Its episodes have up to 500 steps, and returns of 300 and 500 differ in 50 of them.
        ("CartPole-v1", {"total_steps": 60_000, "eval_episodes": 50}, 300),
    ],
)
def test_learns_with_two_actors(over_ray, env, changes, bar):
    result = train(Config(**settings(env, **{"eval_episodes": 200, **changes})))
    assert (result.mean_return if result.score is None else result.score) >= bar


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_dqn_learns_with_two_actors(over_ray):
    config = dqn_ray.Config(
        env="ocean/squared", num_envs=8, total_steps=40_000, learning_starts=500, steps_per_update=4, target_period=50,
        learning_rate=3e-3, exploration_fraction=0.5, gamma=0.7, policy_kwargs={"hidden_size": 64}, eval_episodes=200,
        runs=None,
    )  # fmt: skip
    result = dqn_ray.train(config)
    assert result.score is not None and result.score >= 0.9


@pytest.mark.slow
def test_an_address_of_another_ray_than_the_one_connected_to_is_refused(over_ray):
    with pytest.raises(PlanError, match=r"address='127.0.0.1:1', but this process is connected to the Ray at \S+:\d+;"):
        train(Config(**QUICK, address="127.0.0.1:1", runs=None))


class Enough(Exception):
    """Ends a training."""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_training_goes_on_when_an_actor_is_killed_and_says_what_was_lost(over_ray, monkeypatch, capfd):
    """Until the killed one's successor has played, too."""
    killed, charts, update = [], [], Report.update

    def playing():
        return [name for name in charts[-1] if re.fullmatch(r"actors/[^/]+/[01]", name)]

    def watched(self, num_steps, scalars):
        update(self, num_steps, scalars)
        charts.append({**scalars, **self.recent_statistics.charts()})
        if not killed and len(playing()) == 2:
            killed.append(int(self.recent_statistics.values["pid"][-1]))
            os.kill(killed[0], signal.SIGKILL)
        elif killed and "charts/lost_actors" in charts[-1] and len(playing()) == 2:
            raise Enough

    monkeypatch.setattr(Report, "update", watched)
    config = Config(**{**QUICK, "total_steps": 10**9, "rollouts_per_update": 1}, runs=None)
    with pytest.raises(Enough):
        train(config, Marked)
    out, err = capfd.readouterr()
    assert re.search(r"actor [01] on \S+ died: .*A rollout and the open episodes of its 4 environments are lost", out)
    assert "lost: 1 actor(s), 1 rollout(s), and the open episodes of 4 environments" in out and err == ""
    assert charts[-1]["charts/lost_rollouts"] == charts[-1]["charts/lost_actors"] == 1
    assert charts[-1]["charts/restarts"] == 4
    assert 0 < max(chart["charts/lag"] for chart in charts) <= config.max_lag


@pytest.mark.slow
def test_what_an_environment_raises_in_an_actor_is_raised_here(over_ray, capfd, monkeypatch):
    """And only once: Ray would log what nobody asks for any more, when its references go."""
    unseen = []
    monkeypatch.setattr(ray._private.worker, "_unhandled_error_handler", unseen.append)
    with pytest.raises(WorkerError, match=r"actor 0: environment \d \(worker 0\) raised in step: OSError") as caught:
        train(Config(**QUICK, num_actors=1, runs=None), Fragile)
    assert "the emulator caught fire" in caught.value.remote_traceback and caught.value.env_id in range(4)
    del caught  # whose frames have the fleet
    gc.collect()
    assert not unseen
    assert "(raylet)" not in "".join(capfd.readouterr())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("policy", "num_actors"), [("lstm", 1), ("mlp", 2)])
def test_without_lag_a_seed_repeats_a_run_and_a_resumed_one_ends_as_if_it_had_not_stopped(
    over_ray, policy, num_actors, tmp_path, monkeypatch
):
    config = Config(**QUICK, num_actors=num_actors, max_lag=0, policy=policy, checkpoint_every=500, runs=str(tmp_path))
    complete, update = train(config), Report.update

    def stopped(self, num_steps, scalars):
        update(self, num_steps, scalars)
        if num_steps > 1_150:
            raise Enough

    with monkeypatch.context() as patched, pytest.raises(Enough):
        patched.setattr(Report, "update", stopped)
        train(config)
    (folder,) = set(tmp_path.iterdir()) - {complete.run_folder}
    _, resumed = appo_ray.resume(folder)
    assert (resumed.num_steps, resumed.episodes) == (complete.num_steps, complete.episodes)
    # A rollout has several episodes of an environment, each with its score.
    assert np.array_equal(read(folder, "charts/score"), read(complete.run_folder, "charts/score"))
    for one, two in zip(resumed.policy.parameters(), complete.policy.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_script_starts_a_ray_of_its_own_ends_it_on_ctrl_c_and_says_nothing_else(tmp_path):
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "cleanrl_demo.appo_ray", "--total-steps", "10000000", "--runs", str(tmp_path)]
    command += ["--num-actors", "1"]
    environment = {**os.environ, "PYTHONPATH": str(root), "RAY_ADDRESS": ""}
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root, env=environment) as script:
        lines = [script.stdout.readline() for _ in range(2)]  # the family's settings, and the first of the progress
        assert "steps" in lines[1], lines
        began = psutil.Process(script.pid).children(recursive=True)
        os.killpg(script.pid, signal.SIGINT)
        out, err = script.communicate(timeout=150)
    output = out + err
    assert began and "What it has learnt in" in out and "ray::" not in output and "(raylet)" not in output, output
    _, alive = psutil.wait_procs(began, timeout=60)
    assert not alive, alive
