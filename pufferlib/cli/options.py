"""The options of each command, as dataclasses for tyro: a field is a flag, and the string below it is its help."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pufferlib.errors import PlanError

__all__ = [
    "Autotune",
    "Bench",
    "Check",
    "EnvOptions",
    "Envs",
    "Eval",
    "LeaguePlay",
    "LeagueRun",
    "LeagueShow",
    "Ocean",
    "Plot",
    "Record",
    "Replay",
    "Resume",
    "Wrap",
    "keywords",
    "size_flags",
    "typed",
]


@dataclass(frozen=True)
class Wrap:
    """Arguments for pufferlib.wrap."""

    max_length: int | None = None
    """maximum length of a text or sequence"""
    max_nodes: int | None = None
    """maximum number of nodes in a graph"""
    max_edges: int | None = None
    """maximum number of edges in a graph"""
    max_agents: int | None = None
    """maximum number of agents alive at once, if there are no possible_agents"""
    action_mask: bool | None = None
    """add info["action_mask"] to the observation, as a leaf"""
    state: bool = False
    """add the environment's state() to each agent's observation, as the leaf "state\""""
    agent_type: bool = False
    """add the number of each agent's type to its observation, as the leaf "agent_type\""""
    bounds: str | None = None
    """sizes of single leaves, as JSON: '{"mission": {"max_length": 40}}'"""

    def kwargs(self) -> dict[str, Any]:
        """Return the arguments for ``wrap``. Raises PlanError if bounds are not JSON."""
        arguments = self.changed()
        if self.bounds is not None:
            try:
                arguments["bounds"] = json.loads(self.bounds)
            except json.JSONDecodeError as error:
                raise PlanError(f"--wrap.bounds {self.bounds} is not JSON ({error}); see --help") from error
        return arguments

    def changed(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, by name; bounds stay a JSON text."""
        values = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {field.name: value for field, value in values if value != field.default}


@dataclass(frozen=True)
class EnvOptions:
    """The environment that a command makes, and its arguments."""

    env: str
    env_kwargs: tuple[str, ...] = ()
    """arguments of the environment, each as name=value"""
    wrap: Wrap = Wrap()

    def arguments(self) -> dict[str, Any]:
        """Return the arguments env_kwargs and wrap_kwargs of ``make``. Raises PlanError if they cannot be parsed."""
        return {"env_kwargs": keywords(self.env_kwargs), "wrap_kwargs": self.wrap.kwargs()}


@dataclass(frozen=True)
class Check(EnvOptions):
    """Play an environment at random, many times, and report its faults."""

    num_steps: int = 1000
    """number of random steps in the long rollout"""
    seed: int = 0
    only: tuple[str, ...] = ()
    """names of checks; default: all"""
    step_timeout: float = 30.0
    """seconds after which a reset, a step or the environment's creation counts as failed"""
    prints: bool = False
    """show the environment's output; otherwise only count its lines"""
    backend: str | None = None
    """cuda: check only whether the environment's kernel equals its reference"""
    budget: float = 20.0
    """with backend cuda: seconds after which fewer steps than --num-steps are enough"""
    device: str | None = None
    """with backend cuda: cuda, cuda:1, …, or host, which plays the kernel on the CPU; default: cuda"""
    report: bool = False
    """with backend cuda: only show the registers and the memory that the kernel needs on several GPUs; needs NVRTC, but
    no GPU"""


@dataclass(frozen=True)
class Bench(EnvOptions):
    """Measure steps per second on each backend, in turns, and name the best one."""

    backends: tuple[str, ...] = ("serial", "multiprocessing", "pool")
    """also ray and cuda"""
    num_envs: int | None = None
    """default: four for each CPU, at least 8"""
    num_workers: int | None = None
    """processes; default: one for each CPU"""
    batch_size: int | None = None
    """environments in a batch of backends pool and ray; default: half of all"""
    device: str | None = None
    """device of backend cuda: cuda, cuda:1, …, or host, which plays kernels on the CPU; default: cuda"""
    seconds: float = 0.5
    """length of a turn"""
    repeats: int = 7
    """turns per backend"""
    seed: int = 0
    profile: bool = False
    """show where the time goes, and draw it: bench-NAME-BACKEND.png in the current folder"""


@dataclass(frozen=True)
class Autotune(EnvOptions):
    """Find the fastest plan (backend, environments, workers, batch) within a budget, and explain it."""

    budget: float = 30.0
    """seconds that the search may take"""
    max_memory: str | None = None
    """limit of a plan's memory, such as "4 GB"; default: four fifths of the available memory"""
    backend: str | None = None
    """default: any. The search keeps whichever of this and the next three options you set"""
    num_envs: int | None = None
    num_workers: int | None = None
    batch_size: int | None = None
    """number of environments in your learner's batch"""
    learner_s: float = 0.0
    """seconds that your learner needs for a batch"""
    seed: int = 0
    save: str | None = None
    """a TOML file for the plan; pufferlib.load_plan reads it"""


@dataclass(frozen=True)
class Record(EnvOptions):
    """Play environments at random and save the trajectories in a file, for `puffer replay`."""

    save: str | None = None
    """the file; default: the environment's name with .npz, in the current folder"""
    overwrite: bool = False
    """replace an existing file"""
    num_envs: int = 4
    num_steps: int = 1000
    """steps of each environment"""
    seed: int = 0
    """seed of the environments and of the actions"""
    keep: bool = False
    """save the observations too, not only hashes of them, so that a difference can be shown"""
    autoreset_mode: str = "next_step"
    backend: str = "serial"
    num_workers: int | None = None
    batch_size: int | None = None


@dataclass(frozen=True)
class Replay:
    """Play a recording again and name the first difference: environment, step and field."""

    file: str
    backend: str = "serial"
    """any backend; the backend, workers and batch size may differ from the recording's"""
    num_workers: int | None = None
    batch_size: int | None = None
    env: str | None = None
    """another version of the environment, in place of the recorded one"""
    env_kwargs: tuple[str, ...] | None = None
    """arguments in place of the recorded ones, each as name=value"""


@dataclass(frozen=True)
class Plot:
    """Plot a scalar of runs over their steps; runs that differ only in their seeds share a line and its interval."""

    runs: tuple[str, ...] = ()
    out: str = "curves.png"
    """the PNG to write"""
    tag: str = "charts/episodic_return"
    """the scalar's name in TensorBoard"""
    x: Literal["steps", "seconds"] = "steps"
    """the x axis: steps, or seconds of training"""


@dataclass(frozen=True)
class Port:
    """List the uses of PufferLib 1 to 3 in programs, each with what stands here in its place; changes nothing."""

    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Resuming:
    """The flag --resume for the help of `puffer train`; ``Resume`` parses a command line that uses it."""

    resume: str | None = None
    """resume the run in this folder from its last checkpoint, or from newest.pt if that is named, with the run's
    settings; takes only --total-steps and --trust"""


@dataclass(frozen=True)
class Resume:
    """Resume a run from its last checkpoint, with the run's settings."""

    env: str = ""
    resume: str = ""
    """the run's folder; or the newest.pt in it, which resumes at a later step but leads to a different end"""
    trust: bool = False
    """accept a run that names code outside the current folder"""
    total_steps: int | None = None
    """overrides the run's total steps"""


@dataclass(frozen=True)
class Eval:
    """Play complete episodes of a policy, with seeds other than those of training, and report its results."""

    target: str
    policy: str | None = None
    """the policy for an environment: random, module:Class, or an untrained mlp, cnn, nature or lstm"""
    policy_kwargs: tuple[str, ...] = ()
    """arguments of that policy, each as name=value"""
    env: str | None = None
    """an environment to play instead of the one that the policy was trained on"""
    env_kwargs: tuple[str, ...] = ()
    """arguments of the environment, each as name=value; for a trained policy, they override those of its training"""
    wrap: Wrap = Wrap()
    episodes: int | None = None
    """number of episodes; default: 100, or 3 with --watch"""
    greedy: bool = False
    """play the most likely action instead of a sampled one"""
    seed: int | None = None
    """seed of environments and actions; default: one far from the seeds of trainings"""
    max_steps: int = 30_000
    """longer episodes are cut"""
    backend: str = "multiprocessing"
    num_envs: int = 16
    num_workers: int | None = None
    """number of worker processes; default: one for each core"""
    batch_size: int | None = None
    """environments in a batch; default: half of num_envs on a pool, else all"""
    device: str | None = None
    """with backend cuda: cuda, cuda:1, …, or host, which plays kernels on the CPU; default: cuda"""
    torch_threads: int = 1
    """number of threads that torch uses; more than one helps only large networks"""
    video: str | None = None
    """a .gif, an .mp4, or a folder for one .gif per episode"""
    videos: int = 1
    """number of episodes to film, from the first on"""
    video_seeds: tuple[int, ...] = ()
    """seeds of the episodes to film instead of the first ones, as --json lists them"""
    snapshots: tuple[int, ...] | None = None
    """steps of the first episode to save as snapshot_STEP.png, with a GIF of it; without values: 0 50 150 300"""
    snapshots_folder: str | None = None
    """the folder for the snapshots; default: snapshots-ENV in the current folder"""
    watch: bool = False
    """show one environment in the terminal, at its own pace"""
    json: bool = False
    """print one object of JSON, and nothing else"""
    trust: bool = False
    """accept a file that names code outside the current folder"""
    save: str | None = None
    """a file for each finished episode; if it is there, the episodes in it are not played again"""


@dataclass(frozen=True)
class Ocean:
    """Train on each Ocean environment, and report which the learner passes; the exit code is 1 if it fails any."""

    env: tuple[str, ...] = ()
    """names, with or without ocean/, separated by spaces or commas; default: all that can be learnt"""
    backend: tuple[Literal["serial", "multiprocessing", "pool"], ...] = ("pool",)
    seed: int = 1
    """the first seed"""
    seeds: int = 1
    """number of seeds"""
    trainer: str | None = None
    """your learner, as module:function (see ocean/suite/__init__.py); default: the demo trainer, which is
    ocean.suite.demo:train"""
    jobs: int | None = None
    """trainings at a time; default: 2, or 1 on a single core. Trainings that share the cores take longer: use --jobs 1
    to compare seconds, or for a learner that needs the whole machine"""
    timeout: float = 600.0
    """seconds after which a training has failed"""
    watch: bool = False
    """show the learnt behaviour in the terminal"""


@dataclass(frozen=True)
class LeagueRun:
    """Grow a population in a folder, with a TOML file's settings; Ctrl-C or a crash loses one iteration at most."""

    file: str = ""
    folder: str | None = None
    """the league's folder; default: leagues/NAME for a file NAME.toml"""
    resume: str | None = None
    """a league's folder, in place of a file: continue it"""
    seed: int | None = None
    """overrides the file's seed; the next five options override the file too"""
    nash_conv: float | None = None
    """stop when NashConv is at most this"""
    iterations: int | None = None
    """stop after this many"""
    policies: int | None = None
    """stop when a seat has this many"""
    seconds: float | None = None
    """stop after this many, over all runs of the league"""
    actors: int | None = None
    """Ray actors, or 0 for this process; the file needs [workers]. The results do not depend on the number"""
    top: int = 10
    """policies in the table"""
    trust: bool = False
    """accept policies that name code outside the current folder"""


@dataclass(frozen=True)
class LeagueShow:
    """Show a league's results: its table, and pictures of payoffs, NashConv and mixtures."""

    folder: str = ""
    out: str | None = None
    """the folder of the pictures; default: the league's"""
    top: int = 20
    """policies in the table"""
    trust: bool = False
    """accept policies that name code outside the current folder"""


@dataclass(frozen=True)
class LeaguePlay:
    """Play policies of a league against each other, and report what each seat gets and how often it wins."""

    arguments: tuple[str, ...] = ()
    episodes: int | None = None
    """number of episodes; default: 1000, or 3 with --render"""
    greedy: bool = False
    """take the most likely actions instead of sampling them"""
    seed: int = 0
    num_envs: int | None = None
    """default: the league's"""
    trust: bool = False
    """accept policies that name code outside the current folder"""
    render: bool = False
    """show each step as text, if the environment renders it"""


@dataclass(frozen=True)
class Envs:
    """List the environments that have names, and whether their packages are installed."""

    env: str = ""


def typed(options: EnvOptions, *more: str, without: Collection[str] = ()) -> str:
    """Return the arguments of a command line, quoted for a shell: the environment, ``more``, and flags.

    The flags are the --wrap flags and the --env-kwargs that ``options`` sets. without: the --wrap flags to leave out.
    """
    arguments = [options.env, *more]
    for name, value in options.wrap.changed().items():
        flag = f"--wrap.{name.replace('_', '-')}"
        if flag not in without:
            arguments += [flag] if name in ("state", "agent_type") else [flag, str(value)]
    if options.env_kwargs:
        arguments += ["--env-kwargs", *options.env_kwargs]
    return shlex.join(arguments)


def keywords(arguments: Sequence[str], option: str = "--env-kwargs") -> dict[str, Any]:
    """Parse name=value arguments into keyword arguments; a value that is not a Python literal is a string.

    Raises PlanError for an argument that is not name=value. option: the option's name, for the error.
    """
    kwargs: dict[str, Any] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals or not name.isidentifier():
            raise PlanError(f"{option} {argument} is not name=value")
        try:
            kwargs[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            kwargs[name] = value
    return kwargs


def size_flags(text: str) -> list[str]:
    """Return the command-line flags for the size limits that an error message mentions."""
    sizes = (field.name for field in dataclasses.fields(Wrap) if field.name.startswith("max_"))
    return [
        f"--wrap.{name.replace('_', '-')}" for name in sizes if re.search(rf"\b{name}(=|'?:| in wrap_kwargs)", text)
    ]
