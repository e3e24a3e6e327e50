"""The common parts of a run: its environments, folder and checkpoints, and the evaluation at its end.

``run`` makes the environments, the learner and a report, calls
a trainer's ``learn``, and evaluates the policy on fresh seeds. A ``Session`` divides a run into stretches that end in
checkpoints. Since the state of environments cannot be saved, all of them are reset after each stretch, with seeds that
follow from the run's seed and the checkpoint's number. An uninterrupted run therefore does the same as one that is
resumed from a checkpoint.

Between checkpoints, the latest training state is saved to ``newest.pt`` at regular intervals. This does not affect the
run: no environment is reset, because the result must not depend on the clock. A run resumed from ``newest.pt``,
however, resets its environments at that point, and so ends differently.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

import pufferlib
from pufferlib.errors import CheckpointError, PlanError, PufferError
from pufferlib.models import Actor, Origin, save_policy
from pufferlib.models.files import POLICY_FILE, is_plain, misfit, read_checkpoint, require_trust, save_checkpoint
from pufferlib.registry import creator
from pufferlib.training.checkpoints import FILE, KIND, NEWEST, checkpoint_path, later
from pufferlib.training.compilation import compiled, require_compiler
from pufferlib.training.ddp import gathered, is_first, of_this_rank, several
from pufferlib.training.evaluation import evaluate, policy_batch_of
from pufferlib.training.minibatches import require_rows
from pufferlib.training.report import Report
from pufferlib.training.results import Result, labels_of, summary
from pufferlib.training.run_config import RunConfig
from pufferlib.training.runs import command_to_resume, new_run_folder, note_resumed, num_processes, saying_where
from pufferlib.training.settings import from_command_line
from pufferlib.training.tracking import Tracker
from pufferlib.training.video import Videos, with_pictures
from pufferlib.vectorization.core.arguments import accepts_env_index

SAVING_SHARE = 0.02  # of the time, at most, for saving newest.pt, which may have a replay buffer
TURNS_TOGETHER = 16  # calls of is_due between agreements of several processes
COARSE = 0.2  # of the remaining steps: larger rollouts are reported


class Learner(Protocol):
    """The interface of learners. num_steps: transitions learnt from so far. state: returns what ``restore`` takes.

    A learner may also have a ``note``: a sentence on its checkpoints, printed if the run has a folder, and
    ``compilable``: the modules that it calls, which the setting ``compile`` compiles; by default the actor's policy.
    """

    actor: Actor
    num_steps: int

    def state(self) -> dict[str, Any]: ...
    def restore(self, state: Mapping[str, Any]) -> None: ...


class Session:
    """The context in which a learner trains: environments, a report, and a run divided into stretches.

    ::

        for last_step in session.stretches():        # environments have just been reset
            while session.goes_on(last_step):        # between updates
                …
    """

    def __init__(
        self,
        vec: pufferlib.VecEnv,
        learner: Learner,
        config: RunConfig,
        report: Report,
        videos: Videos | None,
        folder: Path | None,
        origin: Origin,
        env: Callable[..., Any] | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        """env: a creator that is used instead of ``config.env``, if any. run_config: as in ``run``."""
        self.run_config = config if run_config is None else run_config
        self.vec, self.learner, self.config, self.report = vec, learner, config, report
        self.videos, self.folder, self.origin, self.env = videos, folder, origin, env
        self.num_checkpoints = 0
        self.num_kept = 0  # training steps saved in the policy's file, or in a later newest.pt
        self.resumed_at: int | None = None  # the step within a stretch, if it was resumed from newest.pt
        self.num_turns, self.next_save_s = 0, 0.0

    def stretches(self) -> Iterator[int]:
        """Yield each stretch's last step, once all environments are reset, and write a checkpoint after the stretch."""
        every, total_steps = self.config.checkpoint_every, self.config.total_steps
        while self.learner.num_steps < total_steps:
            self.vec.async_reset(seed=self.seed)
            self.report.reset()
            self.report.phase("environments")
            self.next_save_s = time.monotonic() + 60 * (self.config.checkpoint_minutes or 0)
            yield total_steps if every is None else min(total_steps, (self.learner.num_steps // every + 1) * every)
            self.num_checkpoints, self.resumed_at = self.num_checkpoints + 1, None
            if self.folder is not None or several():
                self.save(self.folder)

    def goes_on(self, last_step: int) -> bool:
        """Return whether the stretch has steps left. Called between updates, it writes newest.pt when that is due."""
        if self.learner.num_steps >= last_step:
            return False
        if self.is_due():
            self.save_newest()
        return True

    def is_due(self) -> bool:
        """Return whether ``save_newest`` is due, with the same answer in all processes. Call it between updates."""
        if self.config.checkpoint_minutes is None:
            return False
        news = self.learner.num_steps > self.num_kept
        due = self.folder is not None and news and time.monotonic() >= self.next_save_s
        if not several():
            return due
        self.num_turns += 1
        return self.num_turns % TURNS_TOGETHER == 0 and bool(gathered(due)[0])

    def save_newest(self) -> None:
        """Save the current training state to newest.pt.

        A run resumed from this file ends differently from an uninterrupted run.
        """
        began_s = time.monotonic()
        self.save(self.folder, NEWEST)
        ended_s = time.monotonic()
        wait_s = max(60 * (self.config.checkpoint_minutes or 0), (ended_s - began_s) / SAVING_SHARE)
        self.next_save_s = ended_s + wait_s

    def film(self) -> None:
        """Take pictures of the filmed environments. Call it while the batch's environments wait for actions."""
        if self.videos is not None:
            host = self.vec.host_batch
            assert host is not None
            self.videos.see(host, self.learner.num_steps)

    @property
    def seed(self) -> int:
        """The seed of the environments in this stretch.

        In the first stretch, it is the run's seed, unless the run was resumed within this stretch, from newest.pt. In
        all other cases, it is computed from the run's seed and the number of checkpoints. If the run was resumed within
        this stretch, the step at which it was resumed also enters the computation.
        """
        entropy = [self.num_checkpoints] if self.resumed_at is None else [self.num_checkpoints, self.resumed_at]
        if entropy == [0]:
            return self.config.seed
        return int(np.random.SeedSequence([self.config.seed, *entropy]).generate_state(1)[0])

    def save(self, folder: Path | None, file: str = FILE) -> None:
        """Write a checkpoint, and the policy for playing, replacing the previous files.

        Without a folder, nothing is written. A checkpoint at the end of a stretch also deletes newest.pt, unless that
        file has more steps. With several processes, all must call this method, as each contributes its own state; only
        the first has a folder.
        """
        settings = vars(self.run_config)
        content = {
            "algorithm": self.config.algorithm,
            "config": settings if is_plain(settings) else None,
            "named": self.origin.env is not None,
            "num_checkpoints": self.num_checkpoints,
            "within": file == NEWEST,
            "learner": self.learner.state(),
            "torch": gathered(torch.get_rng_state()),
            "report": self.report.state(),
        }
        if folder is not None:
            save_checkpoint(folder / file, KIND, content)
            if file == FILE and self.num_kept <= self.learner.num_steps:
                (folder / NEWEST).unlink(missing_ok=True)  # it is older now
            self._save_policy(folder)

    def _save_policy(self, folder: Path) -> None:
        save_policy(folder / POLICY_FILE, self.learner.actor.policy, self.origin)
        self.num_kept = self.learner.num_steps

    def break_off(self) -> None:
        """Save the current policy, and print how to resume the run or evaluate the policy.

        Does nothing without a folder. checkpoint.pt is not updated: a run resumed from it must end as if it had not
        been interrupted, so that file is written only at the end of a stretch.
        """
        folder, learner, console = self.folder, self.learner, self.report.console
        if folder is None:
            return
        if learner.num_steps > self.num_kept:
            self._save_policy(folder)
        is_passed = self.origin.env is None
        lines = [f"To go on: {command_to_resume(folder, num_processes(), 'my_module:make_env' if is_passed else '')}"]
        if not checkpoint_path(folder).exists():
            lines = ["There is no checkpoint yet from which it could go on; a smaller --checkpoint-every makes some"]
        elif not is_plain(vars(self.config)):
            lines = ["It cannot go on, as no file can keep its settings; use plain values"]
        elif later(folder) is not None:
            newest = command_to_resume(folder / NEWEST, num_processes(), "my_module:make_env" if is_passed else "")
            lines.append(f"To go on from later, but not to the same end: {newest}")
        if (folder / POLICY_FILE).exists():
            steps = f" in {self.num_kept:,} steps" if self.num_kept else ""  # else they are not restored yet
            lines.append(
                f"What it has learnt{steps}: puffer eval {folder}{' --env my_module:make_env' if is_passed else ''}"
            )
        for line in lines:
            console.print(line, soft_wrap=True, markup=False)

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Restore a checkpoint. Raises CheckpointError if it does not fit the environment, policy or processes."""
        try:
            self.learner.restore(checkpoint["learner"])
        except (RuntimeError, ValueError) as error:
            raise misfit(f"{self.folder} holds a run", error) from error
        torch.set_rng_state(of_this_rank(checkpoint["torch"]))
        self.num_checkpoints, self.num_kept = checkpoint["num_checkpoints"], self.learner.num_steps
        self.resumed_at = self.learner.num_steps if checkpoint.get("within") else None
        if self.folder is not None and self.resumed_at is None:
            self.num_kept = later(self.folder) or self.num_kept  # newest.pt stays until this run is ahead of it
        self.report.restore(checkpoint["report"])


def run(
    config: RunConfig,
    make_learner: Callable[[pufferlib.VecEnv, Origin, Any], Learner],
    learn: Callable[[Session, Any, Any], None],
    *,
    env: Callable[..., Any] | None = None,
    resume: Path | None = None,
    run_config: RunConfig | None = None,
) -> Result:
    """Train a policy, evaluate it on fresh seeds, and return the result.

    env: a creator to use instead of config.env. resume: the checkpoint from which to resume; config then has the run's
    own settings, except those changed for the resumption. run_config: the settings to record for the run, if it has
    several processes and config is for only one of them. A KeyboardInterrupt is raised again after
    ``Session.break_off``. Raises CheckpointError for a checkpoint that does not fit, PlanError for minibatches that are
    too small.
    """
    run_config = config if run_config is None else run_config
    content = None if resume is None else read_checkpoint(resume, KIND, FILE)
    name, origin = name_of(config, env), origin_of(config, env)
    tracker = Tracker.from_config(config)
    with ExitStack() as stack:
        stack.enter_context(torch_set_up(config))
        vec = stack.enter_context(environments(config, env))
        learner = make_learner(vec, origin, config)
        require_rows(config, config.rows_per_update(vec) * num_processes())
        compiling = compiling_of(learner, config)
        folder, resumed_at = resume.parent if resume is not None and is_first() else None, None
        if content is not None:
            resumed_at = content["learner"]["num_steps"]
        elif config.runs is not None:
            folder = new_run_folder(run_config, name, config.algorithm)
        labels = labels_of(vec)
        report = Report(name, config.total_steps, folder, tracker=tracker, resumed_at=resumed_at, labels=labels)
        origin = getattr(learner, "origin", origin)  # if it made another policy than config's
        session = Session(vec, learner, config, report, Videos.of(vec, config, folder), folder, origin, env, run_config)
        try:
            with report:
                if content is not None:
                    session.restore(content)
                    if folder is not None:
                        note_resumed(folder, run_config, learner.num_steps)
                    _report_resumption(session, resume)
                    content = None  # to free it: it may have a replay buffer
                    if learner.num_steps >= config.total_steps:
                        over = f"has had its {config.total_steps:,} steps; set --total-steps, or total_steps=, to go on"
                        report.console.print(f"{name}  {over}", soft_wrap=True)
                if folder is not None and (note := getattr(learner, "note", "")):
                    report.console.print(f"{name}  {note}", soft_wrap=True)
                if coarse := _coarseness(vec, config, learner.num_steps):
                    report.console.print(f"{name}  {coarse}", soft_wrap=True)
                began, start_s = time.time(), time.perf_counter()
                with compiling:
                    learn(session, learner, config)
                seconds = report.earlier_s + time.perf_counter() - start_s
            report.console.print(f"{name}  playing {config.eval_episodes:,} fresh episodes …", soft_wrap=True)
            learner.actor.policy.eval()
            policy_kwargs = {
                "policy_batch": policy_batch_of(vec),
                "greedy": config.eval_greedy,
                "torch_threads": config.torch_threads,
            }
            alike = config.backend == "cuda" or not accepts_env_index(creator(config.env if env is None else env))
            how: dict[str, Any] = {"policy_kwargs": policy_kwargs, "alike": alike}
            episodes = evaluate(vec, learner.actor, config.eval_episodes, config.seed + 1_000_000, **how)
        except KeyboardInterrupt:
            session.break_off()
            raise
    return Result(learner.actor, learner.num_steps, began, seconds, episodes, folder)


def compiling_of(learner: Learner, config: RunConfig) -> AbstractContextManager[None]:
    """Return a context in which a learner's networks are compiled, if the settings say so.

    Raises PlanError for a policy with a memory, and if torch.compile does not work here.
    """
    if not config.compile:
        return nullcontext()
    if learner.actor.recurrent:
        raise PlanError(
            f"compile=True, but policy={config.policy!r} has a memory, whose steps torch.compile would compile one by "
            "one, again for each length; leave compile out"
        )
    require_compiler(config.device)
    return compiled(getattr(learner, "compilable", [learner.actor.policy]))


def _report_resumption(session: Session, checkpoint: Path | None) -> None:
    """Print the step and the file from which a run is resumed; for checkpoint.pt, only if newest.pt is later."""
    if checkpoint is None:
        return
    newest = later(checkpoint.parent)
    if checkpoint.name == NEWEST:
        line = "from newest.pt: environments are reset here, so results differ from those of an uninterrupted run"
    elif newest is not None:
        passed = "my_module:make_env" if session.origin.env is None else ""
        line = (
            f"from checkpoint.pt, to the same end as without the interruption; newest.pt has {newest:,} steps, and is "
            f"kept until this run has had more. To go on from there, to another end: "
            f"{command_to_resume(checkpoint.parent / NEWEST, num_processes(), passed)}"
        )
    else:
        return
    report, num_steps = session.report, session.learner.num_steps
    report.console.print(f"{report.title}  goes on at step {num_steps:,} {line}", soft_wrap=True, markup=False)


def _coarseness(vec: pufferlib.VecEnv, config: RunConfig, num_steps: int) -> str:
    """Return a remark if a trainer's rollouts are large compared to the remaining steps, else "".

    num_steps: the steps that a resumed run has already had.
    """
    length, left = getattr(config, "rollout_length", None), config.total_steps - num_steps
    if length is None or left <= 0:
        return ""
    size = length * vec.num_envs * vec.agents_per_env
    if size <= COARSE * left:
        return ""
    agents = f" with {vec.agents_per_env} agents" if vec.agents_per_env > 1 else ""
    share = f"{length} of each of {vec.num_envs} environments{agents}"
    return (
        f"learns from whole rollouts, of up to {size:,} steps ({share}), and ends with the one "
        f"that reaches total_steps={config.total_steps:,}; fewer num_envs come closer to it"
    )


@contextmanager
def torch_set_up(config: RunConfig) -> Iterator[None]:
    """Set torch up by the run's settings: its number of threads and the seed of its global generator, and TF32.

    All of these are undone after the block. Initial weights come from this generator, as do the random numbers of a
    user's policy while it learns. On a GPU, products of float32 matrices are computed in TF32 if the settings have
    ``tf32`` and it is True; on the CPU, nothing changes. Raises PlanError for a CUDA device that torch does not see.
    """
    device = torch.device(config.device)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise PlanError(
            f"device={config.device!r}: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices; "
            f"use device={'host' if config.backend == 'cuda' else 'cpu'}"
        )
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(config.torch_threads)
        on_host = device.type == "cpu"
        if not on_host and getattr(config, "tf32", False):
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("high")
        stack.enter_context(torch.random.fork_rng(devices=() if on_host else (config.device,)))
        torch.manual_seed(config.seed)
        yield


def name_of(config: RunConfig, env: Callable[..., Any] | None) -> str:
    """Return the name of a run's environments. env: a creator to use instead of config.env."""
    return config.env if env is None else getattr(env, "__name__", type(env).__name__)


def origin_of(config: RunConfig, env: Callable[..., Any] | None) -> Origin:
    """Return a run's policy origin: how to make the policy, and for which environment."""
    policy, policy_kwargs = config.made_as()
    name = None if env is not None else config.env
    return Origin(policy, policy_kwargs, name, config.env_kwargs, config.wrap_kwargs, config.frame_stack)


def environments(config: RunConfig, env: Callable[..., Any] | None) -> pufferlib.VecEnv:
    """Make the environments of a run, and return them. env: a creator to use instead of config.env.

    Raises PlanError for an already vectorized environment that resets its copies without showing the final observation.
    """
    batch_size = config.batch_size
    if batch_size is None:
        batch_size = -(-config.num_envs // (2 if config.backend == "pool" else 1))
    vec = pufferlib.make(
        config.env if env is None else env,
        backend=config.backend,
        num_envs=config.num_envs,
        num_workers=config.num_workers,
        batch_size=batch_size,
        env_kwargs=with_pictures(config, env),
        wrap_kwargs=config.wrap_kwargs,
        seed=config.seed,
        on_error=config.on_error,
        step_timeout=config.step_timeout,
        max_restarts=config.max_restarts,
        as_torch=True,
        device=config.device,
        fair=None if config.backend == "cuda" else getattr(config, "fair", None),
    )
    if vec.autoreset_mode != "next_step":
        vec.close()
        raise PlanError(
            f"{name_of(config, env)} resets its copies by itself, and shows no final observation (autoreset_mode="
            f'"{vec.autoreset_mode}"); make it so that it does, in Gymnasium by AutoresetMode.NEXT_STEP'
        )
    return vec


def algorithm_of(folder: Path) -> str:
    """Return the name of the trainer whose run is in a folder. Raises CheckpointError without a readable checkpoint."""
    algorithm: str = read_checkpoint(checkpoint_path(folder), KIND, FILE)["algorithm"]
    return algorithm


def resumed(
    folder: Path,
    kind: type[Any],
    make_learner: Callable[[pufferlib.VecEnv, Origin, Any], Learner],
    learn: Callable[[Session, Any, Any], None],
    env: Any = None,
    total_steps: int | None = None,
    trust: bool = False,
    joining: Callable[[Any], AbstractContextManager[tuple[Any, Any]]] | None = None,
) -> tuple[Any, Result]:
    """Resume the run in a folder from its last checkpoint, to the same end as if it had never stopped.

    Returns its settings and its result. folder: the run's folder, or the ``newest.pt`` in it, which resumes the run at
    a later step but leads to a different end; newest.pt is also used if there is no checkpoint.pt. kind: the trainer's
    Config. env, total_steps: used instead of the run's own, if given; env is a name or a creator. trust: see
    ``pufferlib.models.read_policy``. joining: a function of the settings that returns a context manager, which yields
    this process's settings and those of the whole run (``ddp.joined``). Raises CheckpointError if the run cannot be
    resumed, and RegistryError, with the directory in which the run was begun, for names that are not found.
    """
    checkpoint = checkpoint_path(folder)
    folder = checkpoint.parent
    config, env = _config_of(checkpoint, kind, env, total_steps, trust)
    with (
        saying_where(folder),
        nullcontext((config, config)) if joining is None else joining(config) as (local_config, run_config),
    ):
        return config, run(local_config, make_learner, learn, env=env, resume=checkpoint, run_config=run_config)


def _config_of(
    checkpoint: Path, kind: type[Any], env: Any, total_steps: int | None, trust: bool
) -> tuple[Any, Callable[..., Any] | None]:
    """Return the settings for resuming a checkpoint's run, and a creator of its environments or None.

    Raises CheckpointError if the run cannot be resumed with these arguments.
    """
    content, folder = read_checkpoint(checkpoint, KIND, FILE), checkpoint.parent
    if content["algorithm"] != kind.algorithm:
        raise CheckpointError(
            f"{folder} is a run of {content['algorithm']}, not of {kind.algorithm}; resume it with that trainer"
        )
    if content["config"] is None:
        raise CheckpointError(f"{folder} has settings that no file can keep, so it cannot be resumed; use plain values")
    if not content["named"] and env is None:
        raise CheckpointError(
            f"{folder} is a run on an environment that was passed, not named; pass it again: resume(folder, env), or "
            "puffer train my_module:make_env --resume …"
        )
    names = {item.name for item in fields(kind)}
    config = kind(**{name: value for name, value in content["config"].items() if name in names})
    named = [config.policy, config.policy_kwargs, config.env if env is None else None, config.env_kwargs]
    require_trust(checkpoint, named, trust)
    num_steps = content["learner"]["num_steps"]
    if total_steps is not None and total_steps < min(num_steps, config.total_steps):
        raise CheckpointError(f"total_steps={total_steps} is less than the {num_steps} that {folder} has; use more")
    if isinstance(env, str):
        config, env = replace(config, env=env), None
    return (config if total_steps is None else replace(config, total_steps=total_steps)), env


def main(config_type: type[Any], train: Callable[[Any], Result]) -> None:
    """Train with the command line's settings, and print a summary; on a PufferError, exit with its message."""
    try:
        config = from_command_line(config_type)
        print(summary(config, train(config)))
    except PufferError as error:
        sys.exit(str(error))
