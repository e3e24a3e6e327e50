"""The task queue: a coordinator assigns tasks to idle workers, in this process or over Ray, and yields their results.

``Coordinator.run`` takes a task from its caller and starts it on an idle worker (``TaskWorkers.give``), where
``TaskRunner.run`` runs it; see tasks.py and, for Ray actors, ray_workers.py. ``run`` then collects results
(``TaskWorkers.collect``), starts lost tasks again, and yields the results in the order of the tasks.
``RemoteOracle`` and ``RemoteTraining`` compute responses and train learners by such tasks.
"""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from pufferlib.errors import CallError, ClosedError, PlanError, WorkerError
from pufferlib.models import Origin
from pufferlib.population.matchmaking import Mixture
from pufferlib.population.pbt import Member
from pufferlib.population.pool import PolicyPool
from pufferlib.population.ray_workers import RayWorkers
from pufferlib.population.response_oracles import ImprovingOracle, Oracle
from pufferlib.population.tasks import FailedTask, LocalWorkers, LostTask, Supply, Task, TaskWorkers, seed_of
from pufferlib.vectorization import VecEnv
from pufferlib.vectorization.core.arguments import checked_seconds

__all__ = ["Coordinator", "RemoteOracle", "RemoteTraining"]

OracleCreator = Callable[[VecEnv, PolicyPool, int], Any]  # returns an oracle
TrainFunction = Callable[[VecEnv, PolicyPool, Member, int], float]


class Coordinator:
    """A group of workers that run tasks, each worker with its own VecEnv; a context manager.

    ::

        with Coordinator(pool, GameEnv, num_actors=4, num_envs=64, env_kwargs={"game": "leduc_poker"}) as coordinator:
            Evaluator(coordinator, pool, min_episodes=1000)(table)

    Each idle worker gets the next task. If a task is lost with its worker, a warning is issued, a new worker replaces
    the lost one, and the task is run again. A frozen policy's weights are sent to each worker at most once; a learner's
    weights, at most once per version.

    pool: the pool of the tasks' policies. env, make_kwargs: arguments of ``pufferlib.make`` in each worker. num_actors:
        the number of Ray actors; with 0, this process is the only worker, and Ray is not needed.
    max_retries: how often a lost task is run again; if it is then lost once more, ``run`` raises WorkerError.
    task_timeout: the time in seconds after which a task counts as lost, since a hanging task never ends; by default, no
        limit. The actor of such a task is killed; without actors, the thread in which the task runs is abandoned.
    torch_threads: the number of torch's threads during a task; with the same number, a task has the same result on all
        machines of the same kind.
    address, resources, placement: arguments of the backend "ray", for the actors. start_timeout: the time in seconds
        within which the first actor must have created its environments.

    Raises PlanError for invalid counts and times, and the errors of ``pufferlib.make`` and of Ray. If actors cannot
    create their environments, ``run`` raises the error.
    """

    def __init__(
        self,
        pool: PolicyPool,
        env: Callable[..., Any] | str | Sequence[Callable[..., Any] | str],
        *,
        num_actors: int = 0,
        max_retries: int = 3,
        task_timeout: float | None = None,
        torch_threads: int = 1,
        address: str | None = None,
        resources: Any = None,
        placement: Any = "SPREAD",
        start_timeout: float = 120.0,
        **make_kwargs: Any,
    ) -> None:
        if num_actors < 0 or max_retries < 0 or torch_threads < 1 or start_timeout <= 0:
            raise PlanError(
                f"{num_actors=}, {max_retries=}: use at least 0; {torch_threads=}: at least 1; {start_timeout=}: more "
                "than 0"
            )
        timeout_s = checked_seconds("task_timeout", task_timeout)
        self.pool = pool
        self.num_envs: int = make_kwargs.get("num_envs") or (1 if callable(env) or isinstance(env, str) else len(env))
        self.num_lost = 0  # how often tasks were lost with their workers
        self.num_done = Counter[int]()  # completed tasks by worker
        self._max_retries, self._closed, self._running = max_retries, False, False
        arguments = (Supply(pool), env, make_kwargs, torch_threads, timeout_s)
        self._workers: TaskWorkers
        if num_actors == 0:
            self._workers = LocalWorkers(*arguments)
        else:
            self._workers = RayWorkers(
                *arguments,
                num_actors=num_actors,
                address=address,
                resources=resources,
                placement=placement,
                start_timeout=start_timeout,
            )

    def run(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Any]]:
        """Run tasks on idle workers; yield each task once, with its result, in the order of the tasks.

        tasks: an iterable; its next task is taken when a worker is idle. If the caller stops early, the results of
        running tasks are discarded. Raises WorkerError, with the task's name, if a task raises or is lost more than
        ``max_retries`` times; PlanError if a task refers to an unknown policy or cannot be pickled for an actor;
        CallError if another ``run`` has not ended; ClosedError after ``close``; and the errors of Ray.
        """
        if self._closed:
            raise ClosedError("the coordinator is closed; make another one")
        if self._running:
            raise CallError("another run of this coordinator has not ended; finish or close it first")
        self._running = True
        try:
            yield from self._run(enumerate(tasks))
        finally:
            self._running = False
            self._workers.abandon()

    def _run(self, source: Iterator[tuple[int, Task]]) -> Iterator[tuple[Task, Any]]:
        """Run (number, task) pairs; see ``run``."""
        tasks: dict[int, Task] = {}  # those whose results have not been yielded, by number
        lost_numbers: deque[int] = deque()  # of tasks to be given again
        workers: dict[int, int] = {}  # by the number of their task
        results: dict[int, Any] = {}  # that arrived before those of earlier tasks
        times_lost: Counter[int] = Counter()
        next_number, has_more = 0, True
        while True:
            for worker in self._workers.idle():
                if lost_numbers:
                    number = lost_numbers.popleft()
                else:
                    new = next(source, None) if has_more else None
                    if new is None:
                        has_more = False
                        break
                    number, tasks[new[0]] = new
                workers[number] = worker
                self._workers.give(worker, number, tasks[number])
            while next_number in results:
                yield tasks.pop(next_number), results.pop(next_number)
                next_number += 1
            if not tasks and not has_more:
                return
            for number, result in self._workers.collect():
                if isinstance(result, FailedTask):
                    message = f"task {tasks[number].name!r} raised{result.where}: {result.text}"
                    raise WorkerError(message, remote_traceback=result.trace) from result.cause
                if isinstance(result, LostTask):
                    times_lost[number] += 1
                    self._count_loss(tasks[number], result, times_lost[number])
                    lost_numbers.append(number)
                else:
                    self.num_done[workers.pop(number)] += 1
                    results[number] = result

    def _count_loss(self, task: Task, lost: LostTask, num_times: int) -> None:
        """Count a lost task and warn that it is run again. num_times: how often the task has been lost.

        Raises WorkerError instead of warning if that is more often than ``max_retries``.
        """
        self.num_lost += 1
        if num_times > self._max_retries:
            raise WorkerError(
                f"task {task.name!r} was lost {num_times} times, with its worker; the last time: {lost.reason}. "
                f"{lost.advice}"
            )
        warnings.warn(
            f"task {task.name!r} was lost with its worker, and is done again, time {num_times} of "
            f"{self._max_retries}: {lost.reason}",
            RuntimeWarning,
            stacklevel=4,  # the caller of run
        )

    def close(self) -> None:
        """End all workers and close their environments. The results of running tasks are discarded."""
        if not self._closed:
            self._closed = True
            self._workers.close()

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RemoteOracle(Oracle, ImprovingOracle):
    """An oracle that computes each of its answers as a task on a coordinator's workers.

    coordinator: the coordinator, whose pool receives the policies. make: a function that is called on a worker with the
    worker's VecEnv and copy of the pool, and a seed; it returns an oracle that answers one request there: an Oracle for
    ``psro``, an ImprovingOracle for ``pipeline_psro``. seed: the seed from which the tasks' seeds are derived.

    The copy of the pool has the weights of all policies of the mixture's populations and, in ``improve``, of the
    learner. If all randomness comes from the seed, answers do not depend on the worker. The oracle on the worker is
    discarded after its answer. The training state that its ``begin`` or ``improve`` publishes, such as an optimiser's,
    is kept: it is returned with the weights, and is in the worker's copy of the pool when the learner is improved next.
    """

    def __init__(self, coordinator: Coordinator, make: OracleCreator, *, seed: int | None = None) -> None:
        self.pool, self._coordinator, self._make = coordinator.pool, coordinator, make
        self._seeds = np.random.SeedSequence(seed)

    def initial(self, seat: int) -> int:
        (policy,) = self._run([self._task(f"first policy of seat {seat}", (), "initial", seat)])
        return self.pool.add(policy.weights, policy.origin, policy.seat)

    def respond(self, seat: int, mixture: Mixture) -> int:
        return self.respond_all([(seat, mixture)])[0]

    def respond_all(self, wanted: Sequence[tuple[int, Mixture]]) -> list[int]:
        """Compute responses in parallel, add them to the pool, and return their ids.

        wanted: a (seat, mixture) for each response.
        """
        tasks = [
            self._task(f"response of seat {seat}", _policies(mixture), "respond", seat, mixture)
            for seat, mixture in wanted
        ]
        return [self.pool.add(policy.weights, policy.origin, policy.seat) for policy in self._run(tasks)]

    def begin(self, seat: int) -> int:
        (policy,) = self._run([self._task(f"learner of seat {seat}", (), "begin", seat)])
        learner = self.pool.add_learner(policy.weights, policy.origin, policy.seat)
        if policy.state is not None:
            self.pool.publish(learner, state=policy.state)
        return learner

    def improve(self, seat: int, learner: int, mixture: Mixture) -> None:
        self.improve_all([(seat, learner, mixture)])

    def improve_all(self, wanted: Sequence[tuple[int, int, Mixture]]) -> None:
        """Improve learners in parallel, and publish their new weights and states.

        Each learner is trained against the others' weights as they were before this call. wanted: a (seat, learner id,
        mixture) for each learner.
        """
        tasks = [
            self._task(
                f"training of learner {learner}", (learner, *_policies(mixture)), "improve", seat, learner, mixture
            )
            for seat, learner, mixture in wanted
        ]
        for (_, learner, _), policy in zip(wanted, self._run(tasks), strict=True):
            self.pool.publish(learner, policy.weights, policy.state)

    def _task(self, name: str, policies: Sequence[int], method: str, *arguments: Any) -> Task:
        """Return a task that calls a method of an oracle. policies: the policies whose weights the task needs."""
        state = self.pool.state(arguments[1]) if method == "improve" else None
        seed = seed_of(self._seeds.spawn(1)[0])
        call = partial(_answer, make=self._make, seed=seed, method=method, arguments=arguments, state=state)
        return Task(name, call, policies)

    def _run(self, tasks: Sequence[Task]) -> list[PolicyCopy]:
        return [policy for _, policy in self._coordinator.run(tasks)]


class RemoteTraining:
    """A callable that trains members for ``population_based_training``, a whole generation in parallel.

    coordinator: the coordinator, whose pool contains the learners. train: a function that is called on a worker with
    the worker's VecEnv and copy of the pool, a member and a seed; it trains the member's learner, publishes the new
    weights and state in the copy, and returns the score. If all randomness comes from the seed, scores do not depend on
    the worker. others: the ids of further policies whose weights the copy needs, such as opponents; the weights of all
    members of the generation, as they were before training, are always in the copy. seed: the seed from which the
    tasks' seeds are derived.
    """

    def __init__(
        self, coordinator: Coordinator, train: TrainFunction, *, others: Sequence[int] = (), seed: int | None = None
    ) -> None:
        self._coordinator, self._train, self._others = coordinator, train, tuple(others)
        self._seeds = np.random.SeedSequence(seed)

    def __call__(self, member: Member) -> float:
        return self.train_all([member])[0]

    def train_all(self, members: Sequence[Member]) -> list[float]:
        """Train members in parallel, publish their new weights and states, and return their scores."""
        pool = self._coordinator.pool
        policies = (*(member.learner for member in members), *self._others)
        tasks = []
        for member in members:
            state, seed = pool.state(member.learner), seed_of(self._seeds.spawn(1)[0])
            call = partial(_trained, member=member, state=state, train=self._train, seed=seed)
            tasks.append(Task(f"training of learner {member.learner}", call, policies))
        results = [result for _, result in self._coordinator.run(tasks)]
        for member, (_, learner) in zip(members, results, strict=True):
            pool.publish(member.learner, learner.weights, learner.state)
        return [score for score, _ in results]


class PolicyCopy(NamedTuple):
    """A copy of a policy that a task has created or trained, for the coordinator's pool.

    state: the training state that the task published for a learner; None if there is none, and for a frozen policy.
    """

    origin: Origin
    weights: Mapping[str, Tensor]
    seat: str | None
    state: Any

    @classmethod
    def of(cls, pool: PolicyPool, policy: int) -> PolicyCopy:
        """Return a copy of a policy; its weights are on the CPU, so that they can be sent to another process."""
        weights = {name: value.cpu() for name, value in pool.weights(policy).items()}
        return cls(pool.origin(policy), weights, pool[policy].seat, pool.state(policy) if policy < 0 else None)


def _answer(
    vec: VecEnv, pool: PolicyPool, *, make: OracleCreator, seed: int, method: str, arguments: Sequence[Any], state: Any
) -> PolicyCopy:
    """Call a method of an oracle on a worker; return a copy of the policy that the method creates or improves.

    state: for ``improve``, the state that was last published for the learner.
    """
    learner = arguments[1] if method == "improve" else None
    if learner is not None:
        pool.publish(learner, state=state)
    policy = getattr(make(vec, pool, seed), method)(*arguments)
    return PolicyCopy.of(pool, policy if learner is None else learner)


def _trained(
    vec: VecEnv, pool: PolicyPool, *, train: TrainFunction, seed: int, member: Member, state: Any
) -> tuple[float, PolicyCopy]:
    """Train a member on a worker; return its score and a copy of its learner.

    state: the state that was last published for the learner.
    """
    pool.publish(member.learner, state=state)
    score = float(train(vec, pool, member, seed))
    return score, PolicyCopy.of(pool, member.learner)


def _policies(mixture: Mixture) -> tuple[int, ...]:
    """Return the ids of all policies in a mixture's populations, each once."""
    return tuple(dict.fromkeys(policy for ids in mixture.populations for policy in ids))
