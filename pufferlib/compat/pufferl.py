"""PufferLib 3's module ``pufferl``: its trainer, its settings, and what the command ``puffer`` does with them."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pufferlib.compat import models, pytorch, vector
from pufferlib.compat.creators import NamedCreator
from pufferlib.compat.exceptions import APIUsageError
from pufferlib.compat.loggers import NeptuneLogger, NoLogger, WandbLogger
from pufferlib.compat.settings import command_line, load_config
from pufferlib.compat.timing import Profile, Utilization
from pufferlib.compat.trainer import PuffeRL, compute_puff_advantage
from pufferlib.environment import PufferEnv

__all__ = [
    "NeptuneLogger",
    "NoLogger",
    "Profile",
    "PuffeRL",
    "Utilization",
    "WandbLogger",
    "autotune",
    "compute_puff_advantage",
    "downsample",
    "eval",
    "export",
    "load_config",
    "load_env",
    "load_policy",
    "main",
    "profile",
    "sweep",
    "train",
]

FIRST_LOGGED = 0.2  # of the steps, before which ``train`` keeps no logs
LAST_EVALUATIONS = 32


def train(env_name: str, args: Any = None, vecenv: Any = None, policy: Any = None, logger: Any = None) -> list[Any]:
    """Train a policy; return the logs after the first fifth of the steps, and one of 32 rollouts after the last.

    args: of ``load_config``, the default. vecenv, policy: made of args by default. logger: by default, as args say:
    WandbLogger, NeptuneLogger or none. Raises APIUsageError in a process of torchrun.
    """
    if "LOCAL_RANK" in os.environ:
        raise APIUsageError("torchrun trains with cleanrl_demo.ppo_cuda; PuffeRL trains in one process")
    args = load_config(env_name) if args is None else args
    vecenv = load_env(env_name, args) if vecenv is None else vecenv
    try:
        policy = load_policy(args, vecenv, env_name) if policy is None else policy
        if logger is None and args.get("neptune"):
            logger = NeptuneLogger(args)
        elif logger is None and args.get("wandb"):
            logger = WandbLogger(args)
        trainer = PuffeRL({**args["train"], "env": env_name}, vecenv, policy, logger)
    except BaseException:
        vecenv.close()
        if logger is not None:
            logger.close()
        raise
    logs_kept = []
    try:
        while trainer.global_step < trainer.config["total_timesteps"]:
            trainer.evaluate()
            logs = trainer.train()
            if logs is not None and trainer.global_step > FIRST_LOGGED * trainer.config["total_timesteps"]:
                logs_kept.append(logs)
        for _ in range(LAST_EVALUATIONS):
            trainer.evaluate()
        logs_kept.append(trainer.mean_and_log())
        trainer.print_dashboard()
    finally:
        trainer.logger.close(trainer.close())
    return logs_kept


def eval(env_name: str, args: Any = None, vecenv: Any = None, policy: Any = None) -> None:
    """Play with a policy and render, until interrupted, or until ``save_frames`` pictures are in the file gif_path.

    args: of ``load_config``, the default. Raises APIUsageError unless the vecenv is Serial or a native environment.
    """
    args = load_config(env_name) if args is None else args
    if vecenv is None:
        if args["vec"].get("backend") not in ("Serial", "PufferEnv", vector.Serial, PufferEnv):
            args = args.copy()  # the caller's stay as they are
            args["vec"] = {"backend": "Serial", "num_envs": 1}
        vecenv = load_env(env_name, args)
    is_here = isinstance(vecenv, (vector.Serial, PufferEnv))
    if not is_here:
        vecenv.close()
        raise APIUsageError(f"eval needs a Serial or native vecenv, got {type(vecenv).__name__}; use backend=Serial")
    device, frames = torch.device(args["train"]["device"]), []
    try:
        policy = (load_policy(args, vecenv, env_name) if policy is None else policy).to(device)
        observations, _ = vector.reset(vecenv, args["train"]["seed"])
        state: dict[str, Any] = {}
        if args["train"].get("use_rnn"):
            zeros = torch.zeros(vecenv.num_agents, policy.hidden_size, device=device)
            state = {"lstm_h": zeros, "lstm_c": zeros.clone()}
        while True:
            picture = vecenv.driver_env.render()
            if args["save_frames"] and isinstance(picture, np.ndarray):
                frames.append(picture)
                if len(frames) == args["save_frames"]:
                    _save_gif(Path(args["gif_path"]), frames, args["fps"])
                    return
            elif isinstance(picture, str):
                print(f"\033[0;0H{picture}", flush=True)
                time.sleep(1 / args["fps"])
            with torch.no_grad():
                logits, _ = policy.forward_eval(torch.as_tensor(observations).to(device), state)
                actions = pytorch.sample_logits(logits)[0].cpu().numpy().reshape(vecenv.action_space.shape)
            if isinstance(logits, torch.distributions.Normal):
                actions = np.clip(actions, vecenv.action_space.low, vecenv.action_space.high)
            observations = vector.step(vecenv, actions)[0]
    finally:
        vecenv.close()


def _save_gif(path: Path, frames: list[Any], fps: float) -> None:
    from PIL import Image

    first, *others = map(Image.fromarray, frames)
    first.save(path, save_all=True, append_images=others, duration=1000 / fps, loop=0)


def load_env(env_name: str, args: Any) -> Any:
    """Return a vecenv of the settings [env] and [vec]; without a ``package``, of our environment of this name.

    A package has ``env_creator(env_name)``, which returns a creator.
    """
    package = args.get("package")
    if package is None:
        return vector.make(NamedCreator(env_name), env_kwargs=args["env"], **args["vec"])
    return vector.make(_package(package).env_creator(env_name), env_kwargs=args["env"], **args["vec"])


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise APIUsageError(
            f"package={name!r} cannot be imported ({error}); PufferLib's own packages of environments are not here: "
            "name one of yours, with env_creator, or leave package out for an environment of `puffer envs`"
        ) from error


def load_policy(args: Any, vecenv: Any, env_name: str = "") -> Any:
    """Return the policy of the settings, with the weights of ``load_model_path`` or ``load_id`` if they are set.

    Its class is ``policy_name`` of the module ``torch`` in ``package``, and with ``rnn_name`` a class of that name
    around it; without a package, Default and LSTMWrapper. load_model_path "latest" is the newest file in data_dir.
    """
    package, env = args.get("package"), vecenv.driver_env
    classes: Any = models if package is None else importlib.import_module(f"{_package(package).__name__}.torch")
    name = "Default" if package is None and args["policy_name"] == "Policy" else args["policy_name"]
    policy = getattr(classes, name)(env, **args["policy"])
    if args["rnn_name"] is not None:
        name = "LSTMWrapper" if package is None and args["rnn_name"] == "Recurrent" else args["rnn_name"]
        policy = getattr(classes, name)(env, policy, **args["rnn"])
    policy = policy.to(args["train"]["device"])
    path = args.get("load_model_path")
    if args.get("load_id") is not None:
        logger = NeptuneLogger if args.get("neptune") else WandbLogger if args.get("wandb") else None
        if logger is None:
            raise APIUsageError("load_id needs --wandb or --neptune, which has the run")
        path = logger(args, args["load_id"]).download()
    elif path == "latest":
        files = list(Path(args["train"]["data_dir"]).glob("*.pt"))
        if not files:
            raise APIUsageError(f"load_model_path=latest, but {args['train']['data_dir']} has no *.pt")
        path = max(files, key=lambda file: file.stat().st_mtime)
    if path is not None:
        weights = torch.load(path, map_location=args["train"]["device"], weights_only=True)
        policy.load_state_dict({key.replace("module.", ""): value for key, value in weights.items()})
    return policy


def export(env_name: str, args: Any = None, vecenv: Any = None, policy: Any = None) -> str:
    """Write a policy's weights, float32 one after another, to the file {env_name}_weights.bin, and return its path."""
    args = load_config(env_name) if args is None else args
    vecenv = load_env(env_name, args) if vecenv is None else vecenv
    try:
        policy = load_policy(args, vecenv, env_name) if policy is None else policy
    finally:
        vecenv.close()
    path = f"{Path(env_name).name}_weights.bin"
    torch.cat([part.detach().float().flatten().cpu() for part in policy.parameters()]).numpy().tofile(path)
    return path


def downsample(values: Any, num: int) -> Any:
    """Return ``num`` means of equal parts of a sequence of numbers, and the last number as the last of them.

    A sequence that is no longer than ``num`` is returned as a list.
    """
    values = list(values)
    if num < 1 or len(values) <= num:
        return values
    if num == 1:
        return values[-1:]
    return [float(part.mean()) for part in np.array_split(np.asarray(values[:-1], float), num - 1)] + [values[-1]]


def sweep(args: Any = None, env_name: str | None = None) -> None:
    """Raise APIUsageError: there is no search for settings here."""
    raise APIUsageError("sweep is not here; call pufferl.train(env_name, args) from a tuner such as Optuna")


def profile(args: Any = None, env_name: str | None = None, vecenv: Any = None, policy: Any = None) -> None:
    """Raise APIUsageError: the logs have each phase's share of the time, and torch has a profiler."""
    raise APIUsageError("profile is not here; logs have performance/…, and torch.profiler profiles PuffeRL.train()")


def autotune(args: Any = None, env_name: str | None = None, vecenv: Any = None, policy: Any = None) -> None:
    """Raise APIUsageError: ``pufferlib.vector.autotune`` and ``puffer autotune`` measure plans."""
    raise APIUsageError("autotune is not here; use pufferlib.vector.autotune(creator, batch_size) or puffer autotune")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``puffer MODE ENV [--section.key value …]``. arguments: by default, those of the process.

    MODE is train, eval or export. Raises APIUsageError for other modes, with what to use, and for missing words.
    """
    mode, env_name, options = command_line(sys.argv[1:] if arguments is None else arguments)
    modes: dict[str, Callable[..., Any]] = {
        "train": train,
        "eval": eval,
        "export": export,
        "sweep": sweep,
        "profile": profile,
        "autotune": autotune,
    }
    if mode not in modes:
        raise APIUsageError(f"{mode!r} is no mode of puffer; use train, eval or export")
    modes[mode](env_name=env_name, args=load_config(env_name, options))
