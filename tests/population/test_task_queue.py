"""Tasks and who does them: what is sent to workers, what comes of a task that fails, and that nothing hangs on who."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from test_payoffs import ORIGIN, Pays, pool_of_constants

from pufferlib.errors import CallError, ClosedError, PlanError, WorkerError
from pufferlib.population import (
    Coordinator,
    Evaluator,
    Member,
    PayoffTable,
    PolicyPool,
    RemoteTraining,
    Task,
    population_based_training,
    product,
)
from pufferlib.population.playing import play
from pufferlib.population.tasks import Attempt, LostTask, Supply

pytestmark = [pytest.mark.beside, pytest.mark.filterwarnings("ignore:task .* was lost:RuntimeWarning")]

NOISY = {"num_envs": 4, "env_kwargs": {"noise": 1.0}}


def evaluated(coordinator: Coordinator, populations: Any = ((0, 1, 2), (3, 1)), **arguments: Any) -> PayoffTable:
    table = PayoffTable(len(populations), populations)
    settings = {"min_episodes": 5, "task_episodes": 2, "seed": 1, **arguments}
    assert Evaluator(coordinator, coordinator.pool, **settings)(table) == table.counts.sum()
    return table


def same(one: PayoffTable, other: PayoffTable) -> bool:
    return all(
        getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in ("means", "counts", "_squares")
    )


class Several:
    """Workers in place that take turns and lose tasks: what actors of Ray do, at times that can be repeated."""

    def __init__(self, coordinator: Coordinator, others: list[Coordinator], lose: float, seed: int) -> None:
        self.workers_of = [coordinator_of._workers for coordinator_of in (coordinator, *others)]
        self.rng, self.lose = np.random.default_rng(seed), lose
        self.done: list[tuple[int, Any]] = []
        self.busy: set[int] = set()
        self.numbers: list[int] = []

    def idle(self) -> Iterator[int]:
        return iter([worker for worker in range(len(self.workers_of)) if worker not in self.busy])

    def give(self, worker: int, number: int, task: Task) -> None:
        self.numbers.append(number)
        self.busy.add(worker)
        self.workers_of[worker].give(0, number, task)
        (done,) = self.workers_of[worker].collect()
        # The work was done, or half of it; but its result never came.
        self.done.append((number, LostTask("on purpose")) if self.rng.random() < self.lose else done)

    def collect(self) -> list[tuple[int, Any]]:
        self.rng.shuffle(self.done)  # type: ignore[arg-type]
        count = int(self.rng.integers(1, len(self.done) + 1))
        collected, self.done = self.done[:count], self.done[count:]
        self.busy = set(self.rng.permutation(len(self.workers_of))[: len(self.done)].tolist())
        return collected

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        for workers in self.workers_of:
            workers.close()


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_table_does_not_hang_on_who_played_it_nor_on_what_was_lost(adaptive: bool) -> None:
    arguments: dict[str, Any] = {"max_episodes": 40, "half_width": 0.5} if adaptive else {}
    with Coordinator(pool_of_constants(), Pays, **NOISY) as alone:
        wanted = evaluated(alone, **arguments)
        assert not same(wanted, evaluated(alone, **{**arguments, "seed": 2}))
        assert same(wanted, evaluated(alone, **arguments))  # nor on what the worker has done before
    assert wanted.counts.min() >= 5 and (wanted.counts.max() > 5) == adaptive
    for seed in range(2):
        with crowd(pool_of_constants(), lose=0.4, seed=seed) as coordinator:
            assert same(wanted, evaluated(coordinator, **arguments))
            numbers = coordinator._workers.numbers  # type: ignore[attr-defined]
            assert coordinator.num_lost > 0 and len(numbers) > len(set(numbers))


def crowd(pool: PolicyPool, lose: float, seed: int) -> Coordinator:
    """Return a coordinator of three workers who lose tasks."""
    others = [Coordinator(PolicyPool(), Pays, **NOISY) for _ in range(2)]
    coordinator = Coordinator(pool, Pays, max_retries=20, **NOISY)
    for other in others:
        other._workers._supply = Supply(pool)  # type: ignore[attr-defined]
    coordinator._workers = Several(coordinator, others, lose, seed)
    return coordinator


def trained_there(vec: Any, pool: PolicyPool, member: Member, seed: int) -> float:
    """Go on from a state, that changes in place; the score is of episodes that are played, against policy 1."""
    step = torch.from_numpy(np.random.default_rng(seed).normal(size=5)).float()
    momentum = pool.state(member.learner) or [torch.zeros(5)]
    momentum[0] += member.settings["rate"] * step
    pool.publish(member.learner, {"logits": pool.weights(member.learner)["logits"] + momentum[0]}, momentum)
    mixture = product([(member.learner,), (1,)], [(1.0,), (1.0,)])
    return play(vec, pool, mixture, 2, seed=seed).mean_returns()[0].mean


class Here:
    """The same without a coordinator, one member after the other."""

    def __init__(self, vec: Any, pool: PolicyPool) -> None:
        self.vec, self.pool, self.seeds = vec, pool, np.random.SeedSequence(3)

    def __call__(self, member: Member) -> float:
        seed = int(self.seeds.spawn(1)[0].generate_state(1)[0]) & 0x7FFFFFFF
        return trained_there(self.vec, self.pool, member, seed)


def test_population_based_training_over_a_coordinator_is_that_of_one_process() -> None:
    results = []
    for there in (False, True):
        pool = pool_of_constants()
        with crowd(pool, lose=0.3, seed=1) as coordinator:
            settings = {
                pool.add_learner({"logits": torch.zeros(5)}, ORIGIN): {"rate": 0.1 * number} for number in range(1, 4)
            }
            vec: Any = coordinator._workers.workers_of[0]._task_runner._vec  # type: ignore[attr-defined]
            train = RemoteTraining(coordinator, trained_there, others=[1], seed=3) if there else Here(vec, pool)
            generations = population_based_training(pool, settings, train, seed=1)
            members = [next(generations) for _ in range(3)]
            assert (coordinator.num_lost > 0) == there
        results.append(
            (members, [pool[policy].digest for policy in settings], [pool.state(policy) for policy in settings])
        )
    assert str(results[0]) == str(results[1])
    assert any(member.parent is not None for member in results[0][0][-1])


def test_who_takes_over_weights_has_no_state_of_others() -> None:
    pool = pool_of_constants()
    worse, better = (pool.add_learner({"logits": torch.zeros(5)}, ORIGIN) for _ in range(2))
    pool.publish(worse, state="of the weights before")
    pool.publish(worse)
    assert pool.state(worse) == "of the weights before"
    settings = {learner: {"rate": 1.0} for learner in (worse, better)}
    generations = population_based_training(pool, settings, lambda member: -float(member.learner), share=0.5, seed=1)
    assert [entry.learner for entry in next(generations)] == [better, worse]
    next(generations)
    assert pool.state(worse) is None


def test_an_evaluation_plays_what_is_missing_and_every_result_once() -> None:
    with Coordinator(pool_of_constants(), Pays, num_envs=3) as coordinator:
        table = evaluated(coordinator)
        assert Evaluator(coordinator, coordinator.pool, min_episodes=5)(table) == 0
        assert Evaluator(coordinator, coordinator.pool, min_episodes=7, seed=1)(table) == 12
        wanted = np.array([[3.0, 1.0], [13.0, 11.0], [23.0, 21.0]])
        np.testing.assert_array_equal(table.means, [wanted, -wanted])
        with pytest.raises(WorkerError, match=r"evaluation of \(0, 0, 0\).* raised: PlanError: the table has 3 seats"):
            evaluated(coordinator, [[0]] * 3)
        with pytest.raises(PlanError, match="another pool"):
            Evaluator(coordinator, PolicyPool())


def actions_of(vec: Any, pool: PolicyPool, policy: int) -> int:
    """A rollout of one step: what a policy does."""
    actor = pool.actor(policy, vec.observation_layout, vec.single_action_space)
    vec.async_reset(seed=1)
    return int(actor(torch.from_numpy(np.array(vec.recv().observations)))[0].mode()[0][0])


def test_tasks_are_given_what_they_name_and_learners_as_they_were_published() -> None:
    pool = pool_of_constants()
    learner = pool.add_learner({"logits": 500 * torch.eye(5)[1]}, ORIGIN)
    sampler = pool.add_learner(pool.actor(2, *spaces_of()), ORIGIN)
    pool.publish(sampler, {"logits": 500 * torch.eye(5)[2]})
    with Coordinator(pool, Pays) as coordinator:

        def seen(policy: int, policies: Any) -> Any:
            (pair,) = coordinator.run([Task("look", partial(actions_of, policy=policy), policies)])
            return pair[1]

        cached = coordinator._workers._task_runner._contents  # type: ignore[attr-defined]
        assert [seen(policy, [policy]) for policy in (3, learner, sampler)] == [3, 1, 2]
        assert len(cached) == 3
        pool.publish(learner, {"logits": 500 * torch.eye(5)[4]})
        pool.publish(sampler, {"logits": 500 * torch.eye(5)[0]})
        assert [seen(policy, [policy]) for policy in (learner, sampler)] == [4, 0]
        assert len(cached) == 3  # what learners were is forgotten
        frozen = pool.freeze(learner)
        assert seen(frozen, [frozen]) == 4 and len(cached) == 3  # the same content has come already
        with pytest.raises(WorkerError, match="did not come with the task"):
            seen(0, [3])
        with pytest.raises(PlanError, match="no policy has id 99"):
            seen(99, [99])


class Hangs(Pays):
    """Hangs in the middle of an episode, as often as it is told to, until it is let go."""

    times = 0
    let_go = threading.Event()

    def step(self, actions: Any) -> None:
        if self.tick == 3 and Hangs.times:
            Hangs.times -= 1
            Hangs.let_go.wait(60)
        super().step(actions)


def waits(vec: Any, pool: PolicyPool) -> None:
    Hangs.let_go.wait(60)


def test_a_task_that_hangs_is_done_again_and_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hangs, "times", 0)
    monkeypatch.setattr(Hangs, "let_go", threading.Event())
    with Coordinator(pool_of_constants(), Hangs, **NOISY) as alone:
        wanted = evaluated(alone)
    # A healthy task may take longer on a busy machine, and is then done again as well.
    with Coordinator(pool_of_constants(), Hangs, max_retries=50, task_timeout=0.4, **NOISY) as coordinator:
        Hangs.times = 2
        with pytest.warns(RuntimeWarning, match=r"task 'evaluation of \(0, 3\).* time 1 of 50: .*task_timeout=0.4 s"):
            assert same(wanted, evaluated(coordinator))
        assert coordinator.num_lost >= 2 and not Hangs.times
        # Nor is one waited for that is of no interest any more.
        running = coordinator.run([Task("adds", adds), Task("waits", waits)])
        assert next(running)[1] == 4
        running.close()  # type: ignore[attr-defined]
        assert [result for _, result in coordinator.run([Task("after", adds)])] == [4]
        coordinator._max_retries = 1
        with (
            pytest.warns(RuntimeWarning, match="is done again"),
            pytest.raises(WorkerError, match=r"task 'waits' was lost 2 times, .*task_timeout=0.4 s\. See what it"),
        ):
            list(coordinator.run([Task("waits", waits)]))
        coordinator._max_retries = 50
        next(coordinator.run([Task("adds", adds)]))
        Hangs.let_go.set()


def test_a_task_that_ends_as_its_time_is_over_has_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()

    def is_alive(attempt: threading.Thread) -> bool:
        """Look, and have it end just before."""
        let_go.set()
        attempt.join()
        return False

    monkeypatch.setattr(Attempt, "is_alive", is_alive)
    with Coordinator(pool_of_constants(), Pays, task_timeout=0.01) as coordinator:
        task = Task("ends", lambda vec, pool: let_go.wait(60))
        assert [result for _, result in coordinator.run([task])] == [True] and coordinator.num_lost == 0


def plays_on(vec: Any, pool: PolicyPool) -> None:
    vec.reset()
    Closes.playing.set()
    while True:
        vec.step(np.zeros(vec.agents_per_batch, np.int64))


class Closes(Pays):
    playing, closed = threading.Event(), threading.Event()

    def close(self) -> None:
        Closes.closed.set()


def test_closing_amid_a_task_closes_its_environments() -> None:
    with Coordinator(pool_of_constants(), Closes, task_timeout=60.0) as coordinator:
        next(coordinator.run([Task("adds", adds), Task("plays on", plays_on)]))
        assert Closes.playing.wait(60)
    assert Closes.closed.is_set()


def spaces_of() -> Any:
    import pufferlib

    with pufferlib.make(Pays) as vec:
        return vec.observation_layout, vec.single_action_space


def raises(vec: Any, pool: PolicyPool) -> None:
    raise ValueError("on purpose")


def adds(vec: Any, pool: PolicyPool) -> int:
    return pool.add({"logits": torch.zeros(5)}, ORIGIN)


def test_what_goes_wrong_is_raised_and_does_not_touch_the_next_run() -> None:
    pool = pool_of_constants()
    with Coordinator(pool, Pays, max_retries=2) as coordinator:
        with pytest.raises(WorkerError, match="task 'breaks' raised: ValueError: on purpose") as caught:
            list(coordinator.run([Task("adds", adds), Task("breaks", raises)]))
        assert "in raises" in caught.value.remote_traceback
        running = coordinator.run(Task(f"{number}", adds) for number in range(9))
        assert next(running)[1] == 4 == len(pool)  # the next id, of a copy
        with pytest.raises(CallError, match="another run"):
            next(coordinator.run([]))
        running.close()  # type: ignore[attr-defined]
        assert [task.name for task, _ in coordinator.run([Task("after", adds)])] == ["after"]
        backend = coordinator._workers = Several(coordinator, [], lose=1.0, seed=1)
        with pytest.raises(WorkerError, match="task 'adds' was lost 3 times, .*the last time: on purpose"):
            list(coordinator.run([Task("adds", adds)]))
        assert backend.numbers == [0, 0, 0]
    with pytest.raises(ClosedError):
        next(coordinator.run([]))
    limits = [{"task_timeout": timeout} for timeout in (0.0, float("nan"), float("inf"), "5")]
    for wrong in ({"num_actors": -1}, {"torch_threads": 0}, {"num_envs": 0}, *limits):
        with pytest.raises(PlanError):
            Coordinator(pool, Pays, **wrong)  # type: ignore[arg-type]
