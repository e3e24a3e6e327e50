"""puffer league: run, show and play; what they are told, and what they say. What they do is pufferlib.population's."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pufferlib.cli.options import LeaguePlay, LeagueRun, LeagueShow
from pufferlib.cli.parsing import parse, require
from pufferlib.cli.screen import new_console
from pufferlib.errors import PlanError
from pufferlib.util.suggestions import near

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from pufferlib.population import League, Mixture
    from pufferlib.population.playing import Estimate

__all__ = ["league"]

HELP = """\
puffer league: populations that grow, each policy a response to a mixture of those before it

  puffer league run FILE         let one grow, as a TOML file has it (examples/league.toml)
  puffer league run --resume FOLDER   go on where one was
  puffer league show FOLDER      its table, and pictures
  puffer league play FOLDER [WHO WHO …]   play policies against each other, one a seat:
                                 an id of the table, first, last, or mixture (the default)

`puffer league run --help` shows the options of one of them.
"""
NUM_EPISODES, NUM_WATCHED = 1000, 3
WIDE = 64  # columns, from which on all of the table has room
PICTURES = ("payoffs.png", "nash_conv.png", "mixture.png")


def league(words: list[str]) -> int:
    """puffer league run|show|play"""
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if words else 2
    if words[0] not in COMMANDS:
        found = near(words[0], COMMANDS)
        meant = f"did you mean `puffer league {found[0]}`?" if found else f"there are {', '.join(COMMANDS)}."
        print(f'puffer league knows no command "{words[0]}"; {meant} `puffer league` alone shows help', file=sys.stderr)
        return 2
    require("torch", "tyro", "rich")
    return COMMANDS[words[0]](words[1:])


def run(words: list[str]) -> int:
    """puffer league run FILE"""
    from rich.live import Live

    from pufferlib.population import League, Ratings, Settings

    Ratings()  # raises MissingExtra now rather than when the table is shown
    options: LeagueRun = parse(LeagueRun, "league run", words, "FILE", "TOML, such as examples/league.toml", "file")
    stop = {name: getattr(options, name) for name in ("nash_conv", "iterations", "policies", "seconds")}
    if bool(options.file) == (options.resume is not None):
        raise PlanError("puffer league run takes a TOML file, or --resume and a league's folder: one of them")
    if options.resume is not None:
        if (options.folder, options.seed) != (None, None):
            raise PlanError("--folder and --seed are a new league's; --resume goes on with those that it has")
        growing = League.resume(options.resume, trust=options.trust, actors=options.actors, **stop)
    else:
        settings = Settings.read(options.file).stopping(**stop).with_actors(options.actors)
        if options.seed is not None:
            settings = dataclasses.replace(settings, seed=options.seed)
        growing = League.begin(settings, options.folder or Path("leagues", Path(options.file).stem))
    console = new_console()
    with growing:
        shown = Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext()  # without a thread
        try:
            with shown as live:
                for _ in growing:
                    if live is not None:
                        live.update(drawn(growing, console, options.top), refresh=True)
                    else:
                        console.print(line(growing), markup=False, soft_wrap=True)
        except KeyboardInterrupt:
            print(f"\nIt can go on: puffer league run --resume {growing.folder}", file=sys.stderr)
            raise
        if not console.is_terminal:
            console.print(drawn(growing, console, options.top))
        console.print(f"The end: {growing.stopped()}.", markup=False)
    console.print(f"Next: puffer league show {growing.folder}", markup=False, soft_wrap=True)
    return 0


def show(words: list[str]) -> int:
    """puffer league show FOLDER"""
    from pufferlib.population.pictures import draw_mixtures, draw_nash_conv, draw_payoffs

    options: LeagueShow = parse(LeagueShow, "league show", words, "FOLDER", "of a league", "folder")
    console = new_console()
    with opened(options.folder, options.trust) as known:
        assert known.table is not None
        console.print(drawn(known, console, options.top))
        why = known.stopped()
        goes_on = f"It can go on: puffer league run --resume {options.folder}"
        console.print(f"It is over: {why}." if why else goes_on, markup=False, soft_wrap=True)
        names = [seat.name for seat in known.seats]
        out = Path(options.out or options.folder)
        paths = [
            draw_payoffs(known.table, out / PICTURES[0], names),
            draw_nash_conv(known.rows, out / PICTURES[1]),
            draw_mixtures(known.rows, known.table, out / PICTURES[2], names),
        ]
    for path in paths:
        if path is not None:
            console.print(f"drawn in {path}", markup=False, soft_wrap=True)
    return 0


def play(words: list[str]) -> int:
    """puffer league play FOLDER [WHO WHO …]"""
    from pufferlib.population.league import make_env
    from pufferlib.population.playing import play as played_by
    from pufferlib.population.playing import watch

    text = "a league's folder, and who plays, one a seat: an id, first, last or mixture; default: mixture"
    options: LeaguePlay = parse(LeaguePlay, "league play", words, "FOLDER", text, "words", tuple[str, ...])
    if not options.words:
        raise PlanError("puffer league play needs a league's folder, and who plays: `puffer league play leagues/a 0 3`")
    console = new_console()
    with opened(options.words[0], options.trust) as known:
        mixture, who = _asked(known, options.words[1:])
        num = options.episodes if options.episodes is not None else NUM_WATCHED if options.render else NUM_EPISODES
        if num < 1:
            raise PlanError(f"--episodes {num} says nothing; play 1 or more")
        how: dict[str, Any] = {"seats": known.seats, "greedy": options.greedy, "seed": options.seed}
        if options.render:
            try:
                vec = make_env(known.settings, {"render_mode": "ansi"}, num_envs=1)
            except (PlanError, TypeError) as error:
                raise PlanError(f'--render needs an environment that takes render_mode="ansi": {error}') from error
            with vec:
                for told in watch(vec, known.pool, mixture, num, **how):
                    console.print(told, markup=False, soft_wrap=True)
            return 0
        with make_env(known.settings, num_envs=options.num_envs or min(num, known.settings.evaluation.num_envs)) as vec:
            played = played_by(vec, known.pool, mixture, num, **how)
    what = known.settings.game or known.settings.env
    console.print(f"{what}: {num:,} episode{'s' * (num != 1)}, seed {options.seed}", markup=False)
    table = _table(("seat", "who"), ("gets", "win rate"))
    for seat, name, paid, won in zip(how["seats"], who, played.mean_returns(), played.win_rates(), strict=True):
        table.add_row(seat.name, name, _told(paid, ".3f"), _told(won, ".1%"))
    console.print(table)
    console.print(
        "±: 95 %. Win rate: how often it gets more than another seat, a draw counted as half.", soft_wrap=True
    )
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {"run": run, "show": show, "play": play}


def opened(folder: str, trust: bool) -> League:
    """Return a league to look at. Raises PlanError where there is none, CallError where it has not done anything."""
    from pufferlib.population import League

    if not folder:
        raise PlanError("puffer league show needs a league's folder: `puffer league show leagues/league`")
    known = League.resume(folder, trust=trust)
    known.mixture  # noqa: B018
    return known


def line(known: League) -> str:
    """Return an iteration in a line."""
    row = known.rows[-1]
    sizes = " × ".join(map(str, row["sizes"]))
    nash_conv = "" if row["nash_conv"] is None else f"  NashConv {row['nash_conv']:.3f}"
    played = f"  {row['episodes']:,} episodes" if row["episodes"] else ""
    return f"iteration {row['iteration']}  {sizes} policies{nash_conv}{played}  {row['seconds']:.1f} s"


def drawn(known: League, console: Console, top: int) -> RenderableType:
    """Return how far a league is, and a table of the policies that are rated highest, as wide as there is room."""
    from rich.console import Group
    from rich.text import Text

    from pufferlib.population import standings

    assert known.table is not None
    names = [seat.name for seat in known.seats]
    found = standings(known.table, known.mixture)
    wide = console.width >= WIDE
    names_of = ("rating", "games", "win rate", "gets", "weight") if wide else ("rating", "win rate", "weight")
    table = _table(("policy", "seat"), names_of)
    for each in found[:top]:
        half = each.rating.interval()[1] - each.rating.mean
        games = "computed" if each.games is None else f"{each.games:,}"
        table.add_row(
            str(each.policy),
            names[each.seat],
            f"{each.rating.mean:.1f} ± {half:.1f}",
            *([games] if wide else []),
            "–" if math.isnan(each.win_rate) else f"{each.win_rate:.0%}",
            *([f"{each.payoff:.3f}"] if wide else []),
            f"{each.weight:.1%}" if each.weight else "–",
        )
    left = len(found) - top
    more = [f"and {left:,} more, rated lower; --top {len(found)} shows all"] if left > 0 else []
    who = known.who()
    return Group(Text(line(known), "bold"), *([] if who is None else [Text(who)]), table, *more)


def _table(left: Sequence[str], right: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold blue")
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _asked(known: League, words: Sequence[str]) -> tuple[Mixture, list[str]]:
    """Return the mixture that words name, one a seat, and what each is called."""
    from pufferlib.population import product

    mixture, names = known.mixture, [seat.name for seat in known.seats]
    who = list(words) or ["mixture"] * len(names)
    if len(who) != len(names):
        raise PlanError(f"{len(who)} play, but there are {len(names)} seats: {', '.join(names)}; name one for each")
    ids: list[tuple[int, ...]] = []
    shares: list[Any] = []
    for seat, word in enumerate(who):
        population = mixture.populations[seat]
        named = {"first": population[0], "last": population[-1], **{str(each): each for each in population}}
        if word == "mixture":
            ids.append(population)
            shares.append(mixture.marginals[seat])
        elif word in named:
            ids.append((named[word],))
            shares.append([1.0])
        else:
            others = [names[other] for other, each in enumerate(mixture.populations) if word in map(str, each)]
            plays = f"{word} plays {', '.join(others)}, and not" if others else f"{word} is none of the policies of"
            raise PlanError(f"{plays} {names[seat]}, who has {_listed(population)}, first, last and mixture")
    return product(ids, shares), who


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids)) if len(ids) <= 12 else f"{', '.join(map(str, ids[:6]))}, … {ids[-1]}"


def _told(estimate: Estimate, form: str) -> str:
    half = estimate.high - estimate.mean
    return f"{estimate.mean:{form}}" + (f" ± {half:{form}}" if math.isfinite(half) else "")
