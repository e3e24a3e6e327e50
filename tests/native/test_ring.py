"""The ring between send and recv under every order of events: threads watched by sanitizers, and a model with kills.

``ring_harness.c`` drives ring.h itself, threads standing in for processes, and checks every row. That it would notice a
fault is shown by putting faults in. Some cannot be noticed so: ThreadSanitizer models happens-before, not the delayed
stores of a CPU, and x86 delays none but a store before a load. Hence a word that guards no plain memory may be relaxed
unseen (a mailbox's head, whose posts are atomic too; `asleep`, whose store before a load would have to be delayed just
then), and so may the claim's own word as long as the ticket is not, unless a claimant is overtaken between the two.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from matrix import covering

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "pufferlib/_native/ring.h", ROOT / "tests/helpers/ring_harness.c")
COMPILER = os.environ.get("CC", "cc")
BUILDS = {
    "plain": (),
    "threads": ("-fsanitize=thread",),
    "addresses": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
}
NUM_BATCHES = {"plain": 4000, "threads": 700, "addresses": 1500}
SANITIZERS = {"TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=0"}
# mode, envs, workers, batch, most spins
CLAIMED = ("claimed", 9, 3, 4, 50)
ORDERED = ("ordered", 9, 3, 4, 50)
CROWDED = ("claimed", 32, 8, 5, 5)
SITUATIONS = [
    CLAIMED,
    ORDERED,
    CROWDED,
    ("claimed", 3, 3, 1, 0),
    ("ordered", 5, 5, 5, 5),
    ("synchronous", 8, 3, 8, 50),
    ("synchronous", 2, 2, 2, 0),
]

compiled = pytest.mark.skipif(shutil.which(COMPILER.split()[0]) is None, reason="there is no C compiler")


def build(folder: Path, kind: str, sources: tuple[Path, ...] = SOURCES, level: str = "-O2") -> Path:
    """Compile the harness; return the program. level: of optimization."""
    header, harness = sources
    program = folder / kind
    flags = [level, "-g", "-Wall", "-Wextra", "-std=gnu11", "-pthread", *BUILDS[kind]]
    command = [*COMPILER.split(), *flags, f"-I{header.parent}", str(harness), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


def run(
    program: Path, situation: tuple[Any, ...], *, seed: int, patience_s: float, num_batches: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the harness. ThreadSanitizer cannot map its memory where addresses are very random: setarch fixes them."""
    mode, num_envs, num_workers, batch_size, spins = situation
    prefix = ["setarch", "-R"] if program.name == "threads" and addresses_can_be_fixed() else []
    num_batches = num_batches or NUM_BATCHES[program.name]
    counts = (num_envs, num_workers, batch_size, num_batches, spins, seed, patience_s)
    command = [*prefix, str(program), mode, *map(str, counts)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **SANITIZERS})


def addresses_can_be_fixed() -> bool:
    return shutil.which("setarch") is not None and not subprocess.run(["setarch", "-R", "true"]).returncode


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The harness, compiled once in each of the ways that are asked for."""
    folder = tmp_path_factory.mktemp("ring")
    built: dict[str, Path] = {}

    def program(kind: str) -> Path:
        if kind not in built:
            built[kind] = build(folder, kind)
        return built[kind]

    return program


@compiled
@pytest.mark.slow
@covering(
    {
        "kind": [*BUILDS],
        "situation": [
            pytest.param(situation, id="-".join(map(str, situation)), marks=[pytest.mark.long] if number > 3 else [])
            for number, situation in enumerate(SITUATIONS)
        ],
    }
)
def test_every_row_arrives_once_and_whole(
    situation: tuple[Any, ...], kind: str, programs: Callable[[str], Path]
) -> None:
    done = run(programs(kind), situation, seed=1, patience_s=20)
    assert done.returncode == 0, done.stderr
    assert not done.stderr


@compiled
@pytest.mark.slow
def test_everything_occurs_that_is_to_be_survived(programs: Callable[[str], Path]) -> None:
    """Sleep, letters to sleepers, kills before rows are counted, full mailboxes, and many laps of small rings."""
    total: dict[str, int] = {}
    for situation in SITUATIONS:
        done = run(programs("plain"), situation, seed=2, patience_s=20, num_batches=1500)
        for what, count in json.loads(done.stdout).items():
            total[what] = total.get(what, 0) + count
    assert min(total.values()) > 0, total
    assert total["laps"] > 1000


# --------------------------------------------------------------------------------------------- faults put in

CLAIM = "puf_claimed(generation, env), memory_order_{0},\n{1}memory_order_{2})".format
TICKET = "&next, ticket + 1, memory_order_{0},\n{1}memory_order_{2})".format
LIE_DOWN = "    uint32_t bell = puf_prepare_sleep(waiter, PUF_FOR_BLOCKS);\n"
NO_NEWS = "    if (puf_is_full(ring, head) || atomic_load(&waiter->mail) != mail) {\n"
NO_POST = "    if (puf_take(ring, worker, word)) {\n"
RISE = "        puf_cancel_sleep(waiter);\n        return 1;\n    }\n"
MARK = "if (!self->uncounted) puf_mark_uncounted(&ring, self->index, 1);"
LATE = "        return 1;\n    }\n    sched_yield(); /* makes the gap wider */\n"

# What is broken: the build that notices, and text with its replacement, in either source.
FAULTS: dict[str, tuple[str, dict[str, str]]] = {
    "claims are relaxed": (
        "threads",
        {
            CLAIM("acq_rel", 65 * " ", "acquire"): CLAIM("relaxed", "", "relaxed"),
            TICKET("acq_rel", 63 * " ", "acquire"): TICKET("relaxed", "", "relaxed"),
            "(ring->ticket, memory_order_acquire)": "(ring->ticket, memory_order_relaxed)",
        },
    ),
    "words are stored relaxed": (
        "threads",
        {"puf_free(generation + 1), memory_order_release": "puf_free(generation + 1), memory_order_relaxed"},
    ),
    "counts are relaxed": (
        "threads",
        {"fetch_add(&counter->count, rows)": "fetch_add_explicit(&counter->count, rows, memory_order_relaxed)"},
    ),
    "posts are relaxed": (
        "threads",
        {
            "store(&box->tail, atomic_load_explicit(&box->tail, memory_order_relaxed) + count)": "store_explicit("
            "&box->tail, atomic_load(&box->tail) + count, memory_order_relaxed)"
        },
    ),
    "infos are relaxed": (
        "threads",
        {"PUF_RECORD + nbytes, memory_order_release": "PUF_RECORD + nbytes, memory_order_relaxed"},
    ),
    "rows are counted before their words": (
        "plain",
        {"    puf_commit(&ring, slot);\n": "puf_count(&ring, slot / batch_size, 1); puf_commit(&ring, slot); return;"},
    ),
    "counts are mended while others count": (
        "plain",
        {
            "wounds ? puf_is_done_block(&ring, head) : puf_is_full(&ring, head)": "puf_is_full(&ring, head) || ("
            "puf_is_done_block(&ring, head) && (ring.blocks[head % ring.num_blocks].count = puf_full(&ring, head)))"
        },
    ),
    "a reset does not wait for counts": (
        "plain",
        {"if (!wounds) return": "if (0) return", "while (!puf_is_asleep": "while (0 && !puf_is_asleep"},
    ),
    "deaths are overlooked": ("plain", {"if (now != seen) memset(is_short, 1, wounds = ring.num_blocks);": ""}),
    "counts are mended while workers owe some": (
        "plain",
        {"if (atomic_load(&ring->boxes[worker].uncounted)) return 0;": "(void)0;"},
    ),
    "workers say too late that they owe a count": (
        "plain",
        {f"    {MARK}\n    puf_commit(&ring, slot);\n": f"puf_commit(&ring, slot); dawdle(&self->random); {MARK}"},
    ),
    "counts are never mended": (
        "plain",
        {"atomic_fetch_add(&counter->count, puf_full(ring, head) -": "(void)(puf_full(ring, head) -"},
    ),
    "there is one block too few": ("plain", {"/ batch_size + 2;": "/ batch_size + 1;"}),
    "nobody helps the ticket on": ("plain", {"int is_moved = ": "int is_moved = is_claimed && "}),
    "the parent looks before it lies down": ("plain", {LIE_DOWN + NO_NEWS + RISE: NO_NEWS + LATE + LIE_DOWN}),
    "workers look before they lie down": ("plain", {LIE_DOWN + NO_POST + RISE: NO_POST + LATE + LIE_DOWN}),
    "mailboxes are overrun": ("plain", {"(int64_t)(needed - box->seen_head) <= 0) return": "1) return"}),
    "mail does not ring": (
        "plain",
        {"->mail, 1);\n    puf_ring_bell(ring->waiter, PUF_FOR_BLOCKS);": "->mail, 1);"},
    ),
    "rows do not ring": ("plain", {"full ? PUF_FOR_BLOCKS : PUF_FOR_ROWS": "full ? PUF_FOR_BLOCKS : 3"}),
}


@pytest.mark.long
@compiled
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_noticed(fault: str, tmp_path: Path) -> None:
    kind, replacements = FAULTS[fault]
    texts = [source.read_text() for source in SOURCES]
    for text, replacement in replacements.items():
        assert sum(source.count(text) for source in texts) == 1, text
        texts = [source.replace(text, replacement) for source in texts]
    sources = tuple(tmp_path / source.name for source in SOURCES)
    for source, text in zip(sources, texts, strict=True):
        source.write_text(text)
    program = build(tmp_path, kind, sources, "-O0")  # a fault is one either way, and is compiled in a third of the time
    for seed in range(48):  # on a busy machine threads seldom meet
        done = run(program, (CLAIMED, ORDERED, CROWDED)[seed % 3], seed=seed, patience_s=1)
        if done.returncode:
            break
    assert ("data race" if kind == "threads" else "violation: ") in done.stderr, done.stdout


# -------------------------------------------------------------------------------------------- a model, with kills


class Model:
    """A pool's ring one micro-step at a time, whose workers may be killed between any two.

    Each ``yield`` is where others may come in between. Rows are pairs (environment, tick); a row half written has no
    tick. fault: what to do wrong, to show that it is noticed.
    """

    def __init__(self, chance: random.Random, fault: str) -> None:
        self.chance, self.fault = chance, fault
        self.num_workers = chance.randint(1, 3)
        self.num_envs = chance.randint(self.num_workers, 6)
        self.block_size = chance.randint(1, self.num_envs)
        self.num_blocks = -(-self.num_envs // self.block_size) + 2 - (fault == "a block too few")
        self.num_slots = self.num_blocks * self.block_size
        self.words: list[tuple[int, int | None]] = [(0, None)] * self.num_slots  # lap, claimant
        self.rows: list[tuple[int, int | None]] = [(-1, None)] * self.num_slots
        self.counts = [0] * self.num_blocks
        self.ticket = self.head = self.num_received = 0
        self.ticks = [0] * self.num_envs
        self.flying = [False] * self.num_envs
        self.boxes: list[list[tuple[int, int]]] = [[] for _ in range(self.num_workers)]
        self.idle = [False] * self.num_workers
        self.short: set[int] = set()  # blocks whose counts may be short, since a worker has died
        self.owes = [False] * self.num_workers  # whether it has rows that are written and not counted
        self.restarts = chance.random() < 0.5  # crash rows in place of those that will not come, rather than a reset
        self.workers = [self.work(worker) for worker in range(self.num_workers)]
        self.dead: list[int] = []  # workers that were killed and not replaced yet
        self.leases: list[tuple[int, list[tuple[int, int | None]]]] = []

    def work(self, worker: int) -> Iterator[None]:
        while True:
            while not self.boxes[worker]:
                self.idle[worker] = True
                yield
            self.idle[worker] = False
            env, tick = self.boxes[worker].pop(0)
            yield
            yield from self.step(env, tick, worker)

    def step(self, env: int, tick: int, worker: int | None) -> Iterator[None]:
        """Claim a slot and write a row: a worker, or the parent in its place."""
        ticket = self.ticket
        yield
        while True:
            buffer_index, slot = divmod(ticket, self.num_slots)
            mine = self.words[slot] == (buffer_index, None)
            if mine:
                self.words[slot] = (buffer_index, env)
            yield
            claimed = self.ticket
            if claimed == ticket and (mine or self.fault != "no help"):
                self.ticket += 1
            yield
            if mine:
                break
            ticket = ticket + 1 if claimed == ticket else claimed
        yield from self.write(slot, buffer_index, env, tick, worker)

    def write(self, slot: int, buffer_index: int, env: int, tick: int, worker: int | None) -> Iterator[None]:
        self.rows[slot] = (env, None)
        yield
        self.rows[slot] = (env, tick)
        if worker is not None:
            self.owes[worker] = True
        yield
        self.words[slot] = (buffer_index + 1, None)
        yield
        self.counts[slot // self.block_size] += 1
        yield
        if worker is not None:
            self.owes[worker] = False

    def is_done(self, ticket: int) -> bool:
        buffer_index, slot = divmod(ticket, self.num_slots)
        return self.words[slot] == (buffer_index + 1, None)

    def num_done(self, head: int, num_blocks: int) -> int:
        tickets = range(head * self.block_size, (head + num_blocks) * self.block_size)
        return sum(map(self.is_done, tickets))

    def is_there(self) -> bool:
        """Return whether the next block is full: by the count, or by the words once a death may have left it short."""
        buffer_index, block = divmod(self.head, self.num_blocks)
        by_words = self.num_done(self.head, 1) == self.block_size
        if self.fault == "counts mended" and by_words:
            self.counts[block] = (buffer_index + 1) * self.block_size
        return by_words if self.short else self.counts[block] == (buffer_index + 1) * self.block_size

    def is_settled(self) -> bool:
        """Whether nothing is under way, not even a count."""
        if self.short or self.fault == "counts not awaited":
            idle = all(self.idle) or self.fault == "counts not awaited"
            return self.num_done(self.head, self.num_blocks) == sum(self.flying) and idle
        base = sum(number // self.num_blocks for number in range(self.head, self.head + self.num_blocks))
        return sum(self.counts) - base * self.block_size == sum(self.flying)

    def learn(self) -> Iterator[None]:
        """The parent."""
        yield from self.send(list(range(self.num_envs)))
        while True:
            while not self.is_there():
                yield from self.repair()
                yield
            assert all(self.rows[slot : slot + self.block_size] == rows for slot, rows in self.leases), "torn lease"
            yield
            slot = self.head % self.num_blocks * self.block_size
            batch = self.rows[slot : slot + self.block_size]
            for env, tick in batch:
                assert tick is not None, "torn row"
                assert self.flying[env], "doubled row"
                assert tick == self.ticks[env], "wrong row"
                self.flying[env] = False
                yield
            self.leases = [*self.leases[-1:], (slot, batch)]
            if not any(self.owes) or self.fault == "debts ignored":
                self.repair_count()
            self.head += 1
            self.num_received += 1
            if self.chance.random() < 0.1:
                yield from self.reset()
            else:
                yield from self.send([env for env, _ in batch])

    def repair_count(self) -> None:
        """Set right the count of the block that is received, where a death has left it short."""
        buffer_index, block = divmod(self.head, self.num_blocks)
        if block in self.short:
            self.counts[block] = (buffer_index + 1) * self.block_size
            self.short.discard(block)

    def send(self, envs: list[int]) -> Iterator[None]:
        for env in envs:
            self.flying[env] = True
            self.ticks[env] += 1
            self.boxes[env % self.num_workers].append((env, self.ticks[env]))
            yield

    def unwritten(self, worker: int) -> list[int]:
        """Return the environments of a worker that owe a row which is not there; of the others, the row stands."""
        first = self.head * self.block_size
        tickets = range(first, first + self.num_slots)
        written = {self.rows[ticket % self.num_slots][0] for ticket in tickets if self.is_done(ticket)}
        share = range(worker, self.num_envs, self.num_workers)
        return [env for env in share if self.flying[env] and env not in written]

    def bury(self) -> list[int]:
        """Replace the workers that are known to be dead; return the environments whose rows will not come."""
        if self.dead and self.fault != "deaths overlooked":
            self.short = set(range(self.num_blocks))
        failed = [env for worker in self.dead for env in self.unwritten(worker)]
        for env in failed:
            self.flying[env] = False
        for worker in self.dead:
            self.boxes[worker].clear()
            self.owes[worker] = False
            self.workers[worker] = self.work(worker)
        self.dead.clear()
        return failed

    def repair(self) -> Iterator[None]:
        """Write crash rows for those whose workers died; or send them again, or all where one has claimed a slot."""
        failed = self.bury()
        claimants = {claimant: slot for slot, (_, claimant) in enumerate(self.words)}
        if self.restarts:
            for env in failed:
                self.flying[env] = True
                slot = None if self.fault == "crashes claim anew" else claimants.get(env)
                if slot is None:
                    yield from self.step(env, self.ticks[env], None)
                else:
                    yield from self.write(slot, self.words[slot][0], env, self.ticks[env], None)
        elif set(claimants).intersection(failed) and self.fault != "claims forgotten":
            yield from self.reset()
        else:
            yield from self.send(failed)

    def reset(self) -> Iterator[None]:
        """Wait for what is under way, forget it, and start again."""
        while self.dead or not self.is_settled():
            yield
            self.bury()
        self.short.clear()
        first = self.head * self.block_size
        for ticket in range(first, first + self.num_slots):
            self.words[ticket % self.num_slots] = (ticket // self.num_slots, None)
            yield
        for number in range(self.head, self.head + self.num_blocks):
            self.counts[number % self.num_blocks] = number // self.num_blocks * self.block_size
            yield
        self.ticket = first
        yield from self.send(list(range(self.num_envs)))

    def play(self, num_batches: int, num_kills: int) -> None:
        """Choose at random the worker that takes the next micro-step, or dies."""
        parent = self.learn()
        received, since = 0, 0
        while self.num_received < num_batches:
            actor = self.chance.randrange(self.num_workers + 1)
            dies = num_kills and actor < self.num_workers and actor not in self.dead and self.chance.random() < 0.02
            if dies:
                num_kills -= 1
                self.workers[actor] = iter(())
                self.dead.append(actor)
            for _ in range(self.chance.choice((1, 1, 1, 3, 20))):
                next(parent if actor == self.num_workers else self.workers[actor], None)
            since = since + 1 if received == self.num_received else 0
            received = self.num_received
            assert since < 5000, "nothing moves"


def test_kills_lose_double_and_tear_nothing() -> None:
    for seed in range(1000):
        Model(random.Random(seed), fault="").play(num_batches=12, num_kills=4)


@pytest.mark.parametrize(
    "fault",
    [
        "no help",
        "a block too few",
        "claims forgotten",
        "crashes claim anew",
        "counts mended",
        "counts not awaited",
        "deaths overlooked",
        "debts ignored",
    ],
)
def test_the_model_notices(fault: str) -> None:
    with pytest.raises(AssertionError):
        for seed in range(3000):
            Model(random.Random(seed), fault).play(num_batches=12, num_kills=4)
