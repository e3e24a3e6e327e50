"""The compiled learner next to torch: updates alone, rollouts, and whole trainings.

    python -m benchmarks.learner [--short] [--only PART …] [--page]

update       An actor and a critic, 4 → 64 → 64 with tanh, learn from 4,096 rows for four epochs, in minibatches of
             4,096, 256 and 64 rows, on one thread: the compiled learner, torch's eager mode and torch.compile, in
             turns. On two threads, the compiled learner is compared with what two copies on one thread reach together.
rollout      CartPoles play 64 steps, on one thread: with the compiled actor, critic and sampling, and with torch's
             policy and steps in turns.
cartpole     ``ppo_fused`` trains on the kernel, one seed after another, and the policy plays a hundred fresh episodes
             of Gymnasium's CartPole-v1. ``ppo`` trains with the same settings, and so does Stable-Baselines3, over
             DummyVecEnv on Gymnasium's.
ocean        ``ppo`` trains with --learner torch and fused on the environments of Ocean that need no memory and do not
             sleep, with Ocean's settings.
vectorizers  ``ppo`` with both learners, and Stable-Baselines3 over DummyVecEnv, train at one setting on CartPole,
             Pendulum, LunarLander and HalfCheetah, as far as they are installed; the compiled learner also over a pool
             of two workers.
curves       Returns over seconds of training on CartPole: ``ppo_fused`` and ``ppo`` with the settings of ``cartpole``,
             Stable-Baselines3 and a script in CleanRL's style with their own.
compile      ``ppo --compile``: updates of a small network and of one for images, with torch.compile and without.

Times of trainings are those of training alone. Run it on an idle machine. Each figure is a median with the least and
the greatest value. Without --short, the results of each part are stored in benchmarks/results/learner.json as soon as
they are there, and the tables of docs/training.md and docs/device_training.md are written, and the picture of the
latter. With --short, the picture goes to a folder for temporary files, which is printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import pufferlib
from benchmarks.learner_compile import SIZES, measure_compile
from benchmarks.learner_curves import PICTURE, draw_curves, measure_curves
from benchmarks.learner_tables import sections
from benchmarks.learner_trainings import measure_cartpole, measure_ocean, measure_vectorizers
from benchmarks.lines import table_text
from benchmarks.pages import fill, write_page
from benchmarks.ratios import MedianRange, ratios
from benchmarks.revisions import version
from cleanrl_demo import ppo_fused
from cuda_ext.learner.fused import FusedLearner, Rows, Settings
from pufferlib.models import Origin
from pufferlib.tuning.bench import machine
from pufferlib.util.files import written_whole

RESULTS = Path(__file__).parent / "results" / "learner.json"
PAGES = [Path(__file__).parent.parent / "docs" / name for name in ("training.md", "device_training.md")]
NUM_ROWS, NUM_EPOCHS, NUM_INPUTS, NUM_OPTIONS, HIDDEN = 4096, 4, 4, 2, 64
MINIBATCH_SIZES = (4096, 256, 64)
NUM_STEPS, NUMS_OF_ENVS = 64, (32, 256, 4096)
SETTINGS = Settings(entropy_coefficient=0.01)
TUNED, HELD_OUT = (1, 2, 3, 4, 5), (101, 102, 103, 104, 105)
SHORT, LONG = 8_192, 102_400  # steps of a training next to Stable-Baselines3
PARTS = ("update", "rollout", "cartpole", "ocean", "vectorizers", "curves", "compile")


def networks() -> tuple[nn.Sequential, nn.Sequential]:
    """Return an actor and a critic."""
    torch.manual_seed(0)

    def network(num_outputs: int) -> nn.Sequential:
        return nn.Sequential(
            *(nn.Linear(NUM_INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh()),
            nn.Linear(HIDDEN, num_outputs),
        )

    return network(NUM_OPTIONS), network(1)


def rows() -> Rows:
    """Return random rows to learn from."""
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return generator.normal(size=shape).astype(np.float32)

    return Rows(
        normal(NUM_ROWS, NUM_INPUTS),
        generator.integers(NUM_OPTIONS, size=(NUM_ROWS, 1)),
        np.zeros((NUM_ROWS, 0), np.float32),
        np.full(NUM_ROWS, -np.log(2), np.float32),
        normal(NUM_ROWS),
        normal(NUM_ROWS),
    )


def shuffled(size: int) -> list[np.ndarray]:
    """Return the minibatches of all epochs."""
    generator = np.random.default_rng(1)
    epochs = [generator.permutation(NUM_ROWS) for _ in range(NUM_EPOCHS)]
    return [part for epoch in epochs for part in np.split(epoch, NUM_ROWS // size)]


def fused_update(size: int, num_threads: int = 1) -> Callable[[], None]:
    """Return a function that updates with the compiled learner."""
    actor, critic = networks()
    learner = FusedLearner(
        actor, critic, nn.Parameter(torch.zeros(0)), [NUM_OPTIONS], SETTINGS, num_threads=num_threads
    )
    columns, minibatches = rows(), shuffled(size)

    def update() -> None:
        learner.update(columns, minibatches, 1e-3)

    return update


def torch_update(size: int, compiled: bool) -> Callable[[], None]:
    """Return a function that updates with torch, by the operations of ppo.py."""
    actor, critic = networks()
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, 1e-3, eps=1e-5, fused=True)
    columns = rows()
    features, actions, old_log_probs, advantages, returns = (
        torch.from_numpy(part)
        for part in (columns.features, columns.discrete_actions[:, 0], columns.log_probs, columns.advantages,
                     columns.returns)
    )  # fmt: skip

    def loss_of(features: Any, actions: Any, old_log_probs: Any, advantages: Any, returns: Any) -> Any:
        log_probs = actor(features).log_softmax(1)
        log_ratios = log_probs.gather(1, actions.unsqueeze(1)).squeeze(1) - old_log_probs
        ratios = log_ratios.exp()
        std, mean = torch.std_mean(advantages, correction=0)
        normalized = (advantages - mean) / std.clamp(min=SETTINGS.advantage_floor)
        bounded = ratios.clamp(1 - SETTINGS.clip, 1 + SETTINGS.clip)
        v_errors = (critic(features).squeeze(1) - returns).square()
        entropy = -(log_probs.exp() * log_probs).sum(1)
        losses = 0.5 * SETTINGS.value_coefficient * v_errors - torch.min(ratios * normalized, bounded * normalized)
        return (losses - SETTINGS.entropy_coefficient * entropy).mean()

    loss = torch.compile(loss_of) if compiled else loss_of
    minibatches = [torch.from_numpy(part) for part in shuffled(size)]

    def update() -> None:
        for minibatch in minibatches:
            optimizer.zero_grad()
            columns = (part[minibatch] for part in (features, actions, old_log_probs, advantages, returns))
            loss(*columns).backward()
            nn.utils.clip_grad_norm_(parameters, SETTINGS.max_grad_norm)
            optimizer.step()

    return update


def seconds_of(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def together(calls: list[Callable[[], None]]) -> None:
    """Run calls in threads of their own; return when all have returned."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure_updates(repeats: int, compiled: bool) -> dict[str, Any]:
    """Time the sides in turns; return their seconds by minibatch size and side."""
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for size in MINIBATCH_SIZES:
        pair = [fused_update(size), fused_update(size)]
        sides: dict[str, Callable[[], None]] = {
            "fused": fused_update(size),
            "eager": torch_update(size, compiled=False),
            "two threads": fused_update(size, num_threads=2),
            "two copies": lambda pair=pair: together(pair),  # type: ignore[misc]
        }
        if compiled:
            sides["compiled"] = torch_update(size, compiled=True)
        for call in sides.values():
            call()
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(repeats):
            for name, call in sides.items():
                seconds[name].append(seconds_of(call))
        results[str(size)] = seconds
        line = f"minibatches of {size:>4}: fused {1e3 * statistics.median(seconds['fused']):.2f} ms"
        for name in ("eager", "compiled"):
            if name in seconds:
                line += f", {MedianRange.of(ratios(seconds[name], seconds['fused'])):.2f} x {name}"
        shares = [0.5 * share for share in ratios(seconds["two copies"], seconds["two threads"])]
        print(f"{line}; two threads {MedianRange.of(shares):.2f} of two copies", flush=True)
    return results


def fused_rollout(num_envs: int) -> Callable[[], None]:
    """Return a function that plays a rollout with the compiled actor, and computes the values of its observations."""
    config = ppo_fused.Config(num_envs=num_envs, rollout_length=NUM_STEPS)
    vec = cartpoles(num_envs)
    learner = ppo_fused.Learner(vec, Origin(), config)
    rollout = ppo_fused.Rollout(vec, learner, config)
    vec.async_reset()
    rollout.begin()
    read: Any = learner.actor.policy.read

    def play() -> None:
        rollout.play()
        with torch.no_grad():
            learner.fused.values(read(rollout.observations.flatten(0, 1)).numpy())

    return play


def torch_rollout(num_envs: int) -> Callable[[], None]:
    """Return a function that plays a rollout with torch's policy, step by step, and stores its rows."""
    vec = cartpoles(num_envs)
    actor = Origin().actor(vec.observation_layout, vec.single_action_space)
    generator = torch.Generator().manual_seed(0)
    vec.async_reset()
    observations = torch.zeros((NUM_STEPS + 1, num_envs, NUM_INPUTS))
    log_probs, values, rewards = torch.zeros((3, NUM_STEPS, num_envs))
    actions = torch.zeros((NUM_STEPS, num_envs, 1), dtype=torch.int64)
    flags = torch.zeros((3, NUM_STEPS, num_envs), dtype=torch.bool)
    observations[-1] = vec.recv().observations

    def play() -> None:
        observations[0] = observations[-1]
        for step in range(NUM_STEPS):
            with torch.inference_mode():
                distribution, values[step], _ = actor(observations[step])
                actions[step], continuous_actions = distribution.sample(generator)
                log_probs[step] = distribution.log_prob(actions[step], continuous_actions)
            vec.send(actions[step, :, 0])
            batch = vec.recv()
            observations[step + 1], rewards[step] = batch.observations, batch.rewards
            flags[0, step], flags[1, step], flags[2, step] = batch.terminations, batch.truncations, batch.masks

    return play


def cartpoles(num_envs: int) -> Any:
    """Return CartPoles whose kernel one thread plays."""
    kwargs: dict[str, Any] = {"device": "host", "seed": 1, "backend_kwargs": {"threads": 1}}
    return pufferlib.make("classic/cartpole", backend="cuda", num_envs=num_envs, **kwargs)


def measure_rollouts(repeats: int) -> dict[str, Any]:
    """Time both sides in turns; return their seconds by number of environments and side."""
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for num_envs in NUMS_OF_ENVS:
        sides = {"fused": fused_rollout(num_envs), "torch": torch_rollout(num_envs)}
        for call in sides.values():
            call()
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(repeats):
            for name, call in sides.items():
                seconds[name].append(seconds_of(call))
        results[str(num_envs)] = seconds
        rate = NUM_STEPS * num_envs / statistics.median(seconds["fused"])
        ratio = MedianRange.of(ratios(seconds["torch"], seconds["fused"]))
        print(f"rollouts of {num_envs:>4}: {rate:,.0f} steps/s, {ratio:.2f} x torch", flush=True)
    return results


def measure_and_draw(seeds: Sequence[int], share: float = 1.0) -> dict[str, Any]:
    """Measure the curves and draw them: in docs/curves or, if only a share of the steps is trained, elsewhere."""
    curves = measure_curves(seeds, share)
    out = PICTURE if share == 1.0 else Path(tempfile.mkdtemp()) / PICTURE.name
    draw_curves(curves, out)
    print(f"drawn: {out}", flush=True)
    return curves


def stored() -> dict[str, Any]:
    """Return the stored results by part."""
    return json.loads(RESULTS.read_text())["by_part"] if RESULTS.exists() else {}


def write_pages(results: dict[str, Any]) -> None:
    """Write the stored results' tables to their pages."""
    for page in PAGES:
        write_page(page, fill(page.read_text(), sections(results)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="fewer repeats and seeds, without torch.compile")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="measure these parts; the results of others are kept")
    parser.add_argument("--page", action="store_true", help="only write the tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    repeats, seeds = (5, TUNED[:2]) if options.short else (15, (*TUNED, *HELD_OUT))
    measures: dict[str, Callable[[], Any]] = {
        "update": lambda: measure_updates(repeats, compiled=not options.short),
        "rollout": lambda: measure_rollouts(repeats),
        "cartpole": lambda: measure_cartpole(seeds, 1 if options.short else len(seeds)),
        "ocean": lambda: measure_ocean(seeds[:1] if options.short else TUNED[:3]),
        "vectorizers": lambda: measure_vectorizers(
            seeds[:1] if options.short else TUNED, SHORT if options.short else LONG
        ),
        "curves": lambda: measure_and_draw(seeds[:1], 0.1) if options.short else measure_and_draw(TUNED),
        "compile": lambda: measure_compile(repeats, {"small": (64,)} if options.short else SIZES),
    }
    results = stored()
    if options.page:
        write_pages(results)
        return
    for part in options.only or PARTS:
        measured = measures[part]()
        results[part] = {"machine": machine(), "revision": version(), "measured": measured}
        if not options.short:
            with written_whole(RESULTS) as file:
                file.write_text(table_text({"by_part": results}))
            write_pages(results)


if __name__ == "__main__":
    main()
