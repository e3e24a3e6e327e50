"""All workloads, with their participants and targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from benchmarks.overhead_workloads import FAMILIES, GYM_ASYNC, GYM_SYNC, REPLAYED, RETURNED, overhead_workloads
from benchmarks.participants import LIBRARIES, OURS, Library, Participant, Target, Workload, library_of

__all__ = [
    "FAMILIES",
    "LIBRARIES",
    "OURS",
    "REPLAYED",
    "RETURNED",
    "WORKLOADS",
    "Library",
    "Participant",
    "Target",
    "Workload",
    "library_of",
]

NUM_CORES = 2  # which the targets assume

# ------------------------------------------------------------------------------------ workloads with targets

SERIAL_PEERS = (GYM_SYNC, "sb3 dummy", "tianshou dummy", "pufferlib-0.7 serial", "pufferlib-3.0 serial")
PROCESS_PEERS = (
    *(GYM_ASYNC, "sb3 subproc", "tianshou subproc", "tianshou shmem", "torchrl parallel"),
    *("pufferlib-0.7 processes", "pufferlib-3.0 processes"),
)
SHARING_PEERS = ("pufferlib-0.7 processes@w2", "pufferlib-3.0 processes@w2", "pufferlib-3.0 processes@w1")
POOL_PEERS = (
    *("tianshou subproc@b8", "tianshou shmem@b8", "torchrl pool@b8", "pufferlib-0.7 processes@b8"),
    *("pufferlib-0.7 processes@w4b8", "pufferlib-3.0 processes@w4b8", "pufferlib-3.0 processes@b8"),
)


def _trivial() -> Iterator[Workload]:
    yield Workload(
        "trivial-sync",
        "trivial env, 32/2/32, synchronous",
        ("ours processes@w2", "ours-portable processes@w2", "bare loop", *PROCESS_PEERS, *SHARING_PEERS),
        (
            Target("80× Gymnasium AsyncVectorEnv", "ours processes@w2", (GYM_ASYNC,), at_least=80),
            Target("8× PufferLib 0.7 on 2 workers", "ours processes@w2", ("pufferlib-0.7 processes@w2",), at_least=8),
            Target("1.2× the bare loop", "ours processes@w2", ("bare loop",), at_least=1.2),
            Target("portable: 6× AsyncVectorEnv", "ours-portable processes@w2", (GYM_ASYNC,), at_least=6),
            Target("portable: ahead of PufferLib 0.7", "ours-portable processes@w2", ("pufferlib-0.7 processes@w2",)),
            Target("ahead of every peer", "ours processes@w2", (*PROCESS_PEERS, *SHARING_PEERS)),
        ),
    )
    yield Workload(
        "trivial-pool",
        "trivial env, pool 32/4/8",
        ("ours pool@w4b8", "ours-portable pool@w4b8", "bare loop", *POOL_PEERS),
        (
            Target("10× the best peer pool", "ours pool@w4b8", POOL_PEERS, at_least=10),
            Target("0.6× the bare loop", "ours pool@w4b8", ("bare loop",), at_least=0.6),
        ),
    )
    yield Workload(
        "trivial-process-per-env",
        "trivial env, one process an env, 32/32/32",
        ("ours processes", "ours-portable processes", *PROCESS_PEERS),
        (Target("10× every peer in the same arrangement", "ours processes", PROCESS_PEERS, at_least=10),),
    )
    for num_envs in (32, 8):
        over_sync, text = (1.4, "1.4× Gymnasium SyncVectorEnv") if num_envs == 32 else (1.3, "1.3× SyncVectorEnv")
        targets = [Target(text, "ours serial", (GYM_SYNC,), at_least=over_sync)]
        if num_envs == 32:
            over = ("pufferlib-3.0 serial",)
            targets.append(Target("1.6× PufferLib 3.0's Serial", "ours serial", over, at_least=1.6))
            targets.append(Target("0.5× the bare loop", "ours serial", ("bare loop",), at_least=0.5))
        yield Workload(
            f"trivial-serial-{num_envs}",
            f"trivial env, Serial, {num_envs} envs",
            ("ours serial", "ours-portable serial", "bare loop", *SERIAL_PEERS),
            tuple(targets),
            num_envs=num_envs,
        )


def _learners() -> Iterator[Workload]:
    for think_ms, at_most in ((0.2, 30), (1, 60)):
        target = Target(f"median wait in recv ≤ {at_most} µs", "ours processes@w2", figure="wait_us", at_most=at_most)
        yield Workload(
            f"think-{think_ms}ms",
            f"trivial env, 32/2/32, learner thinking {think_ms} ms",
            ("ours processes@w2", "ours-portable processes@w2", GYM_ASYNC, "sb3 subproc", *SHARING_PEERS[:2]),
            (target,),
            kind="wait",
            think_s=think_ms / 1e3,
        )
        yield Workload(
            f"think-{think_ms}ms-pool",
            f"trivial env, pool 32/4/8, learner thinking {think_ms} ms",
            ("ours pool@w4b8", "ours-portable pool@w4b8", *POOL_PEERS[:2], *POOL_PEERS[4:6]),
            kind="wait",
            think_s=think_ms / 1e3,
            short=False,
        )
    for name, ours in (("sync", "processes@w2"), ("pool", "pool@w4b8")):
        late = "first batch ≤ 100 µs a worker over the median"
        floor = "bare processes@w2" if name == "sync" else ""
        yield Workload(
            f"idle-{name}",
            f"a pause of 1 s between batches, {'32/2/32' if name == 'sync' else '32/4/8'}",
            (
                *(f"ours {ours}", f"ours-portable {ours}", *filter(None, (floor,))),
                *(SHARING_PEERS[:2] if name == "sync" else POOL_PEERS[4:6]),
                *((GYM_ASYNC,) if name == "sync" else ("tianshou shmem@b8",)),
            ),
            (
                Target("< 1 % CPU in the parent", f"ours {ours}", figure="parent_cpu", at_most=0.01),
                Target("< 1 % CPU in all workers", f"ours {ours}", figure="workers_cpu", at_most=0.01),
                Target(late, f"ours {ours}", figure="late_us", at_most=100, floor=floor),
            ),
            kind="idle",
            window_s=1.0,
        )


def _large() -> Iterator[Workload]:
    large = {"observation": "large"}
    yield Workload(
        "large-sync",
        "84×84×4 observations, 32/2/32",
        ("ours processes@w2", "ours-portable processes@w2", "bare loop", *PROCESS_PEERS, *SHARING_PEERS),
        (
            Target("30× AsyncVectorEnv with shared memory", "ours processes@w2", (GYM_ASYNC,), at_least=30),
            Target("1.2× the bare loop", "ours processes@w2", ("bare loop",), at_least=1.2),
        ),
        env_kwargs=large,
    )
    yield Workload(
        "large-pool",
        "84×84×4 observations, pool 32/4/8",
        ("ours pool@w4b8", "ours-portable pool@w4b8", "bare loop", GYM_ASYNC, *POOL_PEERS),
        (
            Target("25× AsyncVectorEnv with shared memory", "ours pool@w4b8", (GYM_ASYNC,), at_least=25),
            Target("0.9× the bare loop", "ours pool@w4b8", ("bare loop",), at_least=0.9),
        ),
        env_kwargs=large,
    )


def _delays() -> Iterator[Workload]:
    synchronous = (GYM_ASYNC, "sb3 subproc", "tianshou shmem", "pufferlib-0.7 processes")
    pools = ("tianshou subproc@b8", "tianshou shmem@b8", "torchrl pool@b8", "pufferlib-0.7 processes@b8")
    for mean_ms in (0.1, 1, 10):
        targets = {
            0.1: (Target("3× the best peer pool", "ours pool@b8", pools, at_least=3),),
            1: (
                Target("3.4× the best synchronous peer", "ours pool@b8", synchronous, at_least=3.4),
                Target("1.15× the best peer pool", "ours pool@b8", pools, at_least=1.15),
            ),
            10: (Target("0.84 of in-flight / mean", "ours pool@b8", rate=32 / 10e-3, at_least=0.84),),
        }[mean_ms]
        yield Workload(
            f"sleep-{mean_ms}ms",
            f"envs that sleep {mean_ms} ms ± 100 %, 32/32/8",
            ("ours pool@b8", "ours-portable pool@b8", *synchronous, *pools),
            targets,
            env_kwargs={"mean_s": mean_ms / 1e3, "spread": 1.0, "kind": "sleep"},
            window_s=1.5 if mean_ms == 10 else 0.5,
        )
    ours = ("ours processes@w2", "ours pool@w2b8", "ours pool@w4b8")
    peers = (GYM_ASYNC, "sb3 subproc", "tianshou shmem", *SHARING_PEERS, *POOL_PEERS[1:])
    for mean_ms in (0.1, 1):
        share = 0.92 if mean_ms == 0.1 else 0.95
        limit = Target(f"{share} of cores / mean", ours, rate=NUM_CORES / mean_ms * 1e3, at_least=share)
        against = (
            Target("ahead of every peer", ours, peers)
            if mean_ms == 0.1
            else Target("no peer more than 2 % ahead", ours, peers, at_least=1 / 1.02)
        )
        yield Workload(
            f"busy-{mean_ms}ms",
            f"envs busy for {mean_ms} ms ± 100 %, 32 on {NUM_CORES} cores",
            (*ours, "ours-portable pool@w4b8", *peers),
            (limit, against),
            env_kwargs={"mean_s": mean_ms / 1e3, "spread": 1.0, "kind": "busy"},
            window_s=1.0,
        )


def _on_same_games(text: str, ours: tuple[str, ...], over: Sequence[str], **reached: float) -> Iterator[Target]:
    """Yield a target for ours over peers on the same games, and one for ours-old over peers on the older games."""
    for old, version in ((False, "1.4"), (True, "0.29")):
        peers = tuple(name for name in over if LIBRARIES[Participant.of(name).library].old_games is old)
        of = tuple(map(_old, ours)) if old else ours
        yield Target(f"{text} on Gymnasium {version}", of, peers, **reached)


def _old(name: str) -> str:
    return name.replace("ours ", "ours-old ")


def _real_environments() -> Iterator[Workload]:
    ours = ("ours processes@w2", "ours serial")
    everything = (*ours, *map(_old, ours), "ours-portable processes@w2")
    peers = (*SERIAL_PEERS, GYM_ASYNC, "sb3 subproc", "tianshou shmem", *SHARING_PEERS)
    yield Workload(
        "cartpole",
        "CartPole, 32 envs",
        (*everything, "bare loop", *peers, "envpool threads@w2"),
        tuple(_on_same_games("1.5× the best Python peer", ours[:1], peers, at_least=1.5)),
        env="cartpole",
        window_s=0.8,
    )
    yield Workload(
        "minigrid",
        "MiniGrid Empty 8×8, 32 envs",
        (*everything, "bare loop", *peers),
        env="minigrid",
        window_s=0.8,
        short=False,
    )
    over = ("supersuit processes@w2", "pufferlib-0.7 processes@w2")
    for name in ("simple_tag", "knights_archers_zombies"):
        yield Workload(
            name.replace("_", "-"),
            f"{name}, 8 envs of 4 agents",
            (*everything, *over, "pufferlib-0.7 serial", "pufferlib-3.0 serial", "pufferlib-3.0 processes@w2"),
            (
                Target("1.3× SuperSuit, mpe2", ours[0], over[:1], at_least=1.3),
                Target("1.3× PufferLib 0.7, pettingzoo.mpe", _old(ours[0]), over[1:], at_least=1.3),
            )
            if name == "simple_tag"
            else (),
            env=name,
            num_envs=8,
            window_s=2.0,
            short=name == "simple_tag",
        )
    peers = (GYM_SYNC, GYM_ASYNC, "sb3 subproc", "tianshou shmem", "tianshou shmem@b8", *SHARING_PEERS)
    peers += ("pufferlib-0.7 processes@w4b8",)
    ours = ("ours processes@w2", "ours pool@w4b8")
    yield Workload(
        "atari",
        "Atari (ALE Breakout, preprocessed), 16 envs, all cores",
        (*ours, *map(_old, ours), "ours-portable processes@w2", "bare loop", *peers, "envpool threads@w2"),
        tuple(_on_same_games("ahead of every Python vectorizer", ours, peers)),
        env="breakout",
        num_envs=16,
        window_s=2.0,
    )
    yield Workload(
        "atari-native",
        "Atari in C++ (ALE's own vector environment), 16 envs",
        ("ours ale@w2", "ale vector@w2", "envpool threads@w2"),
        (Target("wrapped, within 5 % of it used bare", "ours ale@w2", ("ale vector@w2",), at_least=0.95),),
        env="breakout",
        num_envs=16,
        window_s=2.0,
    )


def _nested() -> Iterator[Workload]:
    nested = {"observation": "nested"}
    packers = ("gymnasium flatten", "gymnasium concatenate", "pufferlib-0.7 flatten", "pufferlib-3.0 emulate")
    yield Workload(
        "nested-pack",
        "12-leaf nested observation: packs a second",
        ("ours pack", "ours-portable pack", *packers),
        (
            Target("under 2 µs", "ours pack", figure="step_us", at_most=2),
            Target("12× gymnasium.spaces.flatten", "ours pack", packers[:1], at_least=12),
            Target("2× PufferLib 0.7's flatten-and-store", "ours pack", packers[2:3], at_least=2),
        ),
        env_kwargs=nested,
        num_envs=1,
        window_s=0.2,
    )
    yield Workload(
        "nested-sync",
        "12-leaf nested observation, 8 envs",
        (
            *(
                "ours processes@w2",
                "ours serial",
                "ours-portable processes@w2",
                GYM_SYNC,
                GYM_ASYNC,
                "torchrl parallel",
            ),
            *("pufferlib-0.7 serial", "pufferlib-3.0 serial", *SHARING_PEERS[:2]),
        ),
        env_kwargs=nested,
        num_envs=8,
        short=False,
    )


def _telemetry() -> Iterator[Workload]:
    """Yield the cost of telemetry, which is on by default, against the same arrangement without it."""
    for mean_us, share in ((0, 0.9), (10, 0.98)):
        yield Workload(
            f"telemetry-{mean_us}us",
            f"telemetry on against off, {f'steps of {mean_us} µs' if mean_us else 'trivial env'}, 32/2/32",
            ("ours processes@w2", "ours unwatched@w2"),
            (Target(f"costs under {1 - share:.0%}", "ours processes@w2", ("ours unwatched@w2",), at_least=share),),
            env_kwargs={"mean_s": mean_us / 1e6} if mean_us else {},
        )


def _armed() -> Iterator[Workload]:
    """Yield the cost of recovery and timeouts, while no fault happens, against the same arrangements without them."""
    plans = (
        ("sync", "processes@w2", "32/2/32"),
        ("pool", "pool@w4b8", "pool 32/4/8"),
        ("serial", "serial", "Serial, 32 envs"),
    )
    for (name, arrangement, plan), (mean_us, share) in product(plans, ((0, 0.9), (10, 0.97))):
        kind, at, counts = arrangement.partition("@")
        armed, plain = f"ours {kind}-armed{at}{counts}", f"ours {arrangement}"
        yield Workload(
            f"armed-{name}-{mean_us}us",
            f"armed for faults against not, {f'steps of {mean_us} µs' if mean_us else 'trivial env'}, {plan}",
            (armed, plain),
            (Target(f"costs under {1 - share:.0%}", armed, (plain,), at_least=share),),
            env_kwargs={"mean_s": mean_us / 1e6} if mean_us else {},
            window_s=0.15,
            short=False,
            repeats=61,
        )


# ------------------------------------------------------------------------------------------------------- the grid


def _grid() -> Iterator[Workload]:
    """Yield the delays of the PufferLib 0.5 study for 1 to 64 environments, with pools of 2 and 4 times the batch."""
    cells = [("busy", 0.0, 0)]
    cells += product(("busy", "sleep"), (0.1, 1, 10), (0, 25, 100))
    for (kind, mean_ms, spread), num_envs in product(cells, (1, 4, 16, 64)):
        processes = num_envs if kind == "sleep" else min(num_envs, NUM_CORES)
        participants = [f"ours processes@w{processes}", "ours serial", GYM_SYNC, GYM_ASYNC, "sb3 subproc"]
        participants += ["tianshou shmem", f"pufferlib-0.7 processes@w{processes}"]
        for batch_size in (num_envs // 2, num_envs // 4):
            if batch_size and num_envs % batch_size == 0 and num_envs > 1:
                workers = max(processes, num_envs // batch_size)  # PufferLib's pool needs as many
                participants += [f"ours pool@w{workers}b{batch_size}", f"tianshou shmem@b{batch_size}"]
                participants += [f"pufferlib-0.7 processes@w{workers}b{batch_size}"]
        delay = f"{kind}-{mean_ms}ms-{spread}" if mean_ms else "none"
        yield Workload(
            f"grid-{delay}-n{num_envs}",
            f"{f'{kind} {mean_ms} ms ± {spread} %' if mean_ms else 'no delay'}, {num_envs} envs",
            tuple(dict.fromkeys(participants)),
            env_kwargs={"mean_s": mean_ms / 1e3, "spread": spread / 100, "kind": kind},
            num_envs=num_envs,
            window_s=0.6 if mean_ms == 10 else 0.2,
            short=False,
            cell={"kind": kind, "mean_ms": mean_ms, "spread": spread, "num_envs": num_envs},
        )


def _all(*groups: Iterator[Workload]) -> dict[str, Workload]:
    workloads = [workload for group in groups for workload in group]
    names: Sequence[str] = [workload.name for workload in workloads]
    assert len(set(names)) == len(names)
    return dict(zip(names, workloads, strict=True))


WORKLOADS = _all(
    _trivial(),
    _learners(),
    _large(),
    _delays(),
    _real_environments(),
    _nested(),
    overhead_workloads(),
    _telemetry(),
    _armed(),
    _grid(),
)
