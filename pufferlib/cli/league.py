"""`puffer league`: the arguments and output of run, show and play. pufferlib.population does the work."""

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
    from pufferlib.population.playing import ConfidenceInterval

__all__ = ["league"]

HELP = """\
puffer league: grow populations; each policy responds to a mixture of the earlier ones

  puffer league run FILE                 grow one, by a TOML file (examples/league.toml)
  puffer league run --resume FOLDER      continue one
  puffer league show FOLDER              show its table, and draw pictures
  puffer league play FOLDER [WHO WHO …]  play policies against each other, one per seat:
                                         an id of the table, first, last, or mixture
                                         (the default)

`puffer league run --help` shows the options of run; the others have --help too.
"""
NUM_EPISODES, NUM_WATCHED = 1000, 3
WIDE = 64  # the console's width in characters below which the table leaves out columns
PICTURES = ("payoffs.png", "nash_conv.png", "mixture.png")


def league(arguments: list[str]) -> int:
    """Run ``puffer league run``, ``show`` or ``play``: grow a population, show it, or play its policies.

    Returns the exit status: 2 if the first argument is missing or unknown, else 0.
    """
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if arguments else 2
    if arguments[0] not in COMMANDS:
        matches = near(arguments[0], COMMANDS)
        meant = f"did you mean `puffer league {matches[0]}`?" if matches else f"there are {', '.join(COMMANDS)}."
        command = f'puffer league knows no command "{arguments[0]}"'
        print(f"{command}; {meant} `puffer league` alone shows help", file=sys.stderr)
        return 2
    require("torch", "tyro", "rich")
    return COMMANDS[arguments[0]](arguments[1:])


def run(arguments: list[str]) -> int:
    """Run ``puffer league run FILE``: grow a population, or, with --resume FOLDER, continue one.

    Returns the exit status, always 0. Raises PlanError for both FILE and FOLDER, for neither, and for --resume with
    --folder or --seed.
    """
    from rich.live import Live

    from pufferlib.population import League, Ratings, Settings

    Ratings()  # raises MissingExtra now rather than when the table is shown
    text = "a TOML file, such as examples/league.toml"
    options: LeagueRun = parse(LeagueRun, "league run", arguments, "FILE", text, "file")
    stop = {name: getattr(options, name) for name in ("nash_conv", "iterations", "policies", "seconds")}
    if bool(options.file) == (options.resume is not None):
        raise PlanError("puffer league run takes a TOML file, or --resume and a league's folder: one of them")
    if options.resume is not None:
        if (options.folder, options.seed) != (None, None):
            raise PlanError("--folder and --seed are for a new league; --resume keeps those that it has")
        growing = League.resume(options.resume, trust=options.trust, actors=options.actors, **stop)
    else:
        settings = Settings.read(options.file).stopping(**stop).with_actors(options.actors)
        if options.seed is not None:
            settings = dataclasses.replace(settings, seed=options.seed)
        growing = League.begin(settings, options.folder or Path("leagues", Path(options.file).stem))
    console = new_console()
    with growing:
        view = Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext()  # without a thread
        try:
            with view as live:
                for _ in growing:
                    if live is not None:
                        live.update(drawn(growing, console, options.top), refresh=True)
                    else:
                        console.print(line(growing), markup=False, soft_wrap=True)
        except KeyboardInterrupt:
            print(f"\nContinue it with: puffer league run --resume {growing.folder}", file=sys.stderr)
            raise
        if not console.is_terminal:
            console.print(drawn(growing, console, options.top))
        console.print(f"The end: {growing.stopped()}.", markup=False)
    console.print(f"Next: puffer league show {growing.folder}", markup=False, soft_wrap=True)
    return 0


def show(arguments: list[str]) -> int:
    """Run ``puffer league show FOLDER``: show a league's table, and draw pictures of its results.

    Returns the exit status, always 0.
    """
    from pufferlib.population.pictures import draw_mixtures, draw_nash_conv, draw_payoffs

    options: LeagueShow = parse(LeagueShow, "league show", arguments, "FOLDER", "a league's folder", "folder")
    console = new_console()
    with opened(options.folder, options.trust, "show") as current:
        assert current.table is not None
        console.print(drawn(current, console, options.top))
        why = current.stopped()
        goes_on = f"Continue it with: puffer league run --resume {options.folder}"
        console.print(f"It has ended: {why}." if why else goes_on, markup=False, soft_wrap=True)
        names = [seat.name for seat in current.seats]
        out = Path(options.out or options.folder)
        paths = [
            draw_payoffs(current.table, out / PICTURES[0], names),
            draw_nash_conv(current.rows, out / PICTURES[1]),
            draw_mixtures(current.rows, current.table, out / PICTURES[2], names),
        ]
    for path in paths:
        if path is not None:
            console.print(f"drawn in {path}", markup=False, soft_wrap=True)
    return 0


def play(arguments: list[str]) -> int:
    """Run ``puffer league play FOLDER [WHO WHO …]``: play a league's policies against each other.

    Returns the exit status, always 0. Raises PlanError if the folder is missing, if a policy does not exist, for fewer
    than one episode, and for --render with an environment that cannot be rendered as text.
    """
    from pufferlib.population.league import make_env
    from pufferlib.population.playing import play as played_by
    from pufferlib.population.playing import watch

    text = "a league's folder, and one policy per seat: an id, first, last or mixture; default: mixture"
    options: LeaguePlay = parse(LeaguePlay, "league play", arguments, "FOLDER", text, "arguments", tuple[str, ...])
    if not options.arguments:
        raise PlanError("puffer league play needs a league's folder, and who plays: `puffer league play leagues/a 0 3`")
    console = new_console()
    with opened(options.arguments[0], options.trust, "play") as current:
        mixture, policy_names = _asked(current, options.arguments[1:])
        num = options.episodes if options.episodes is not None else NUM_WATCHED if options.render else NUM_EPISODES
        if num < 1:
            raise PlanError(f"--episodes {num} is impossible; use 1 or more")
        how: dict[str, Any] = {"seats": current.seats, "greedy": options.greedy, "seed": options.seed}
        if options.render:
            try:
                vec = make_env(current.settings, {"render_mode": "ansi"}, num_envs=1)
            except (PlanError, TypeError) as error:
                raise PlanError(f'--render needs an environment that takes render_mode="ansi": {error}') from error
            with vec:
                for frame in watch(vec, current.pool, mixture, num, **how):
                    console.print(frame, markup=False, soft_wrap=True)
            return 0
        num_envs = options.num_envs or min(num, current.settings.evaluation.num_envs)
        with make_env(current.settings, num_envs=num_envs) as vec:
            played = played_by(vec, current.pool, mixture, num, **how)
    what = current.settings.game or current.settings.env
    console.print(f"{what}: {num:,} episode{'s' * (num != 1)}, seed {options.seed}", markup=False)
    table = _table(("seat", "who"), ("gets", "win rate"))
    rows = zip(how["seats"], policy_names, played.mean_returns(), played.win_rates(), strict=True)
    for seat, name, paid, won in rows:
        table.add_row(seat.name, name, _estimate_text(paid, ".3f"), _estimate_text(won, ".1%"))
    console.print(table)
    console.print("±: 95 %. Win rate: how often it gets more than another seat; a draw counts as half.", soft_wrap=True)
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {"run": run, "show": show, "play": play}


def opened(folder: str, trust: bool, command: str) -> League:
    """Open the league in a folder for reading.

    trust: whether to accept policies that name code outside the current folder. command: the subcommand that reads the
    league, for messages. Raises PlanError if the folder is missing or has no league, CallError if the league has no
    results yet, and CheckpointError if the league is damaged.
    """
    from pufferlib.population import League

    if not folder:
        raise PlanError(f"puffer league {command} needs a league's folder: `puffer league {command} leagues/league`")
    current = League.resume(folder, trust=trust)
    current.mixture  # noqa: B018
    return current


def line(current: League) -> str:
    """Format a league's last iteration as one line."""
    row = current.rows[-1]
    sizes = " × ".join(map(str, row["sizes"]))
    nash_conv = "" if row["nash_conv"] is None else f"  NashConv {row['nash_conv']:.3f}"
    played = f"  {row['episodes']:,} episodes" if row["episodes"] else ""
    return f"iteration {row['iteration']}  {sizes} policies{nash_conv}{played}  {row['seconds']:.1f} s"


def drawn(current: League, console: Console, top: int) -> RenderableType:
    """Return a league's progress and a table of its ``top`` best-rated policies.

    On a console narrower than WIDE, the table has fewer columns.
    """
    from rich.console import Group
    from rich.text import Text

    from pufferlib.population import standings

    assert current.table is not None
    names = [seat.name for seat in current.seats]
    rows = standings(current.table, current.mixture)
    wide = console.width >= WIDE
    names_of = ("rating", "games", "win rate", "gets", "weight") if wide else ("rating", "win rate", "weight")
    table = _table(("policy", "seat"), names_of)
    for row in rows[:top]:
        half = row.rating.interval()[1] - row.rating.mean
        games = "computed" if row.games is None else f"{row.games:,}"
        table.add_row(
            str(row.policy),
            names[row.seat],
            f"{row.rating.mean:.1f} ± {half:.1f}",
            *([games] if wide else []),
            "–" if math.isnan(row.win_rate) else f"{row.win_rate:.0%}",
            *([f"{row.payoff:.3f}"] if wide else []),
            f"{row.weight:.1%}" if row.weight else "–",
        )
    left = len(rows) - top
    more = [f"and {left:,} more, rated lower; --top {len(rows)} shows all"] if left > 0 else []
    who = current.who()
    return Group(Text(line(current), "bold"), *([] if who is None else [Text(who)]), table, *more)


def _table(left: Sequence[str], right: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold blue")
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _asked(current: League, arguments: Sequence[str]) -> tuple[Mixture, list[str]]:
    """Return (mixture, names): the joint mixture of the seats' policies, and the argument for each seat.

    arguments: one per seat: the id of a policy in the seat's population, "first" or "last" for the population's first
    or last policy, or "mixture" for the league's current mixture. Without arguments, every seat plays "mixture". Raises
    PlanError if the number of arguments differs from the number of seats, or if an argument names no policy in its
    seat's population.
    """
    from pufferlib.population import product

    mixture, names = current.mixture, [seat.name for seat in current.seats]
    policy_names = list(arguments) or ["mixture"] * len(names)
    if len(policy_names) != len(names):
        text = f"{len(policy_names)} play, but there are {len(names)} seats: {', '.join(names)}"
        raise PlanError(f"{text}; name one for each")
    ids: list[tuple[int, ...]] = []
    shares: list[Any] = []
    for seat, name in enumerate(policy_names):
        population = mixture.populations[seat]
        named = {"first": population[0], "last": population[-1], **{str(policy): policy for policy in population}}
        if name == "mixture":
            ids.append(population)
            shares.append(mixture.marginals[seat])
        elif name in named:
            ids.append((named[name],))
            shares.append([1.0])
        else:
            others = [names[other] for other, policy in enumerate(mixture.populations) if name in map(str, policy)]
            plays = f"{name} plays {', '.join(others)}, and not" if others else f"{name} is none of the policies of"
            raise PlanError(f"{plays} {names[seat]}, who has {_listed(population)}, first, last and mixture")
    return product(ids, shares), policy_names


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids)) if len(ids) <= 12 else f"{', '.join(map(str, ids[:6]))}, … {ids[-1]}"


def _estimate_text(estimate: ConfidenceInterval, form: str) -> str:
    half = estimate.high - estimate.mean
    return f"{estimate.mean:{form}}" + (f" ± {half:{form}}" if math.isfinite(half) else "")
