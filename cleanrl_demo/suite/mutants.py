"""Mutants: the demo trainer and the library with one bug each, to prove that Ocean notices.

A mutant is a few edits of source text, applied to functions of this process; the files, and the trainers in them, know
nothing of it. An edit whose text is not found exactly once raises LookupError, so no mutant outlives what it breaks.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import CodeType, FunctionType
from typing import Any

from pufferlib.errors import PlanError

__all__ = ["MUTANTS", "Edit", "Mutant", "infect", "infected", "mutated"]


@dataclass(frozen=True)
class Edit:
    """Another text in a function. target: module:function, or module:Class.method."""

    target: str
    old: str
    """what stands there exactly once"""
    new: str


@dataclass(frozen=True)
class Mutant:
    """A bug, and who notices it."""

    name: str
    description: str
    """one sentence: what a trainer, or the library below it, gets wrong"""
    edits: tuple[Edit, ...]
    envs: tuple[str, ...] = ()
    """environments that are meant to catch it, without ocean/"""
    checks: tuple[str, ...] = ()
    """checks that are meant to catch it (checks.py); where no environment is, training is known not to show it"""
    everywhere: bool = False
    """nothing can be learnt with it, so that it need not pass anywhere"""
    backend: str = "serial"
    """what it is trained on: serial, or pool where it shows there only (matrix.py has environments that need a pool)"""
    portable: bool = False
    """whether it shows on the portable path only, PUFFERLIB_NATIVE=0: such a one is checked, and not trained"""


def infect(name: str) -> None:
    """Put a mutant into this process, for good. Raises PlanError for one that there is not, LookupError for a stale."""
    if name not in MUTANTS:
        raise PlanError(f"mutant={name!r} is unknown; there are {', '.join(MUTANTS)}")
    for function, code in mutated(MUTANTS[name].edits):
        function.__code__ = code


@contextlib.contextmanager
def infected(name: str) -> Iterator[None]:
    """Do the same for a while."""
    healthy = [(function, function.__code__) for function, _ in mutated(MUTANTS[name].edits)]
    infect(name)
    try:
        yield
    finally:
        for function, code in healthy:
            function.__code__ = code


def mutated(edits: Sequence[Edit]) -> list[tuple[FunctionType, CodeType]]:
    """Return the functions that edits change, and their new code."""
    texts: dict[str, str] = {}
    for edit in edits:
        text = texts.get(edit.target) or textwrap.dedent(inspect.getsource(_function(edit.target)))
        if text.count(edit.old) != 1:
            raise LookupError(f"{edit.target} has {edit.old!r} {text.count(edit.old)} times, not once")
        texts[edit.target] = text.replace(edit.old, edit.new)
    return [(_function(target), _compiled(_function(target), text)) for target, text in texts.items()]


def _function(target: str) -> FunctionType:
    """Return a function by name, without what its decorators have put around it."""
    module, _, path = target.partition(":")
    try:
        found: Any = attrgetter(path)(importlib.import_module(module))
    except AttributeError as error:
        raise LookupError(f"{target} is not there any more: {error}") from error
    function = inspect.unwrap(getattr(found, "__func__", found))  # of a class method
    assert isinstance(function, FunctionType), target
    return function


def _compiled(function: FunctionType, text: str) -> CodeType:
    """Return the code of a function of the same name and arguments, given its source."""
    tree = ast.parse(text)
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []  # they are around the function still
    scope = dict(function.__globals__)
    # With this file's future statements, which are those of the files that are edited.
    exec(compile(tree, f"<mutant of {function.__qualname__}>", "exec"), scope)
    code: CodeType = scope[definition.name].__code__
    return code


# ---------------------------------------------------------------------------------------------------- what is broken


def both(function: str, old: str, new: str) -> tuple[Edit, ...]:
    """The same edit in both trainers."""
    return tuple(Edit(f"cleanrl_demo.{trainer}:{function}", old, new) for trainer in ("ppo", "ppo_lstm"))


def plain(function: str, old: str, new: str) -> tuple[Edit, ...]:
    """An edit of the trainer without a memory."""
    return (Edit(f"cleanrl_demo.ppo:{function}", old, new),)


def recurrent(function: str, old: str, new: str) -> tuple[Edit, ...]:
    """An edit of the trainer with a memory."""
    return (Edit(f"cleanrl_demo.ppo_lstm:{function}", old, new),)


def library(target: str, old: str, new: str) -> tuple[Edit, ...]:
    """An edit of the library, or of what trainers share."""
    return (Edit(target, old, new),)


MEMORY = "pufferlib.models.per_agent:Memory"
DISTRIBUTION = "pufferlib.models.distributions:Distribution"
OUTCOMES = "cleanrl_demo.reward_processing:RewardProcessing.__call__"
NEVER_ANEW = ("torch.where(beside(masks, known), known[agent_ids], initial[agent_ids])", "known[agent_ids]")
NATIVE_ROWS = "pufferlib.emulation.native:NativeRows"

MUTANTS = {
    mutant.name: mutant
    for mutant in (
        # ------------------------------------------------------------------------------ rewards and advantages
        Mutant(
            "advantage_sign",
            "What was better than expected is made rarer.",
            both("update", "gains = (gains - centre) /", "gains = (centre - gains) /"),
            envs=("bandit", "squared"),
            everywhere=True,
        ),
        Mutant(
            "rewards_early",
            "Each action is paid what the next one earns: rewards are shifted by one row.",
            both("advantages", "rewards - values", "rewards[following] - values"),
            envs=("bandit", "squared"),
            checks=("advantages_as_defined",),
            everywhere=True,
        ),
        Mutant(
            "rewards_late",
            "A reward is kept with the observation that it came with, not with the one that was acted on.",
            both("Rollout.receive", "self.rewards[before], ", "self.rewards[new], "),
            envs=("bandit", "password"),
        ),
        Mutant(
            "rewards_to_other_env",
            "Each environment is paid what its neighbour in the batch earns.",
            library(OUTCOMES, "= batch.rewards,", "= np.roll(batch.rewards, self.agents_per_env),"),
            envs=("bandit", "squared"),
            everywhere=True,
        ),
        Mutant(
            "rewards_to_other_agent",
            "Agents of one environment get one another's rewards.",
            library(
                OUTCOMES,
                "= batch.rewards,",
                "= batch.rewards.reshape(-1, self.agents_per_env)[:, ::-1].reshape(-1),",
            ),
            envs=("multiagent",),
        ),
        # ------------------------------------------------------------------------------ ends of episodes
        Mutant(
            "truncation_ends",
            "A truncation is taken for a termination: nothing is expected after it.",
            both("advantages", "real & ~terminations", "real & ~terminations & ~truncations"),
            envs=("truncation", "population"),
            checks=("advantages_as_defined",),
        ),
        Mutant(
            "bootstrap_after_reset",
            "After a truncation the next episode's first observation says what was still to be had.",
            both("advantages", "values[following]", "values[np.where(truncations, following[following], following)]"),
            envs=("truncation",),
            checks=("advantages_as_defined",),
        ),
        Mutant(
            "bootstrap_from_zeros",
            "The final observation is lost: zeros say what was still to be had after a truncation.",
            both(
                "Rollout.receive",
                "self.observations[rows] = ",
                "self.observations[rows] = (batch.truncations == 0).view(-1, *[1] * (self.observations.dim() - 1)) * ",
            ),
            envs=("truncation",),
        ),
        Mutant(
            "bootstrap_through_termination",
            "A termination is not looked at: what follows is expected to be as good as ever.",
            both("advantages", "real & ~terminations", "real"),
            envs=("truncation",),
            checks=("advantages_as_defined",),
        ),
        Mutant(
            "episode_ends_ignored",
            "Values and advantages run on over the borders of episodes.",
            (
                *both("advantages", "lives = real & ~terminations", "lives = following < len(values) - 1"),
                *both("advantages", "np.where(real, rewards - values, 0)", "np.where(lives, rewards - values, 0)"),
                *both("advantages", "(lives & ~truncations)", "lives"),
            ),
            envs=("truncation",),
            checks=("advantages_as_defined",),
        ),
        Mutant(
            "advantages_cross_episodes",
            "What an episode brings beyond its values is added to the advantages of the one before.",
            both("advantages", "(lives & ~truncations)", "np.ones_like(values)"),
            checks=("advantages_as_defined",),
        ),
        Mutant(
            "agents_endings_ignored",
            "Only the end of the whole environment counts: who dies before lives on in its place's next rows.",
            both(
                "Rollout.receive",
                "self.truncations[before] = host.truncations",
                "self.truncations[before] = host.truncations; "
                "count = self.outcomes.agents_per_env; "
                "over = np.isin(host.agent_ids // count, [info['env_id'] for info in host.infos if 'env' in info]); "
                "self.terminations[before] &= over; self.truncations[before] &= over",
            ),
            envs=("population",),
        ),
        # ------------------------------------------------------------------------------ rows that do not count
        Mutant(
            "reset_row_trained",
            "The row between two episodes, whose action has no effect, is learnt from.",
            (
                *both(
                    "Rollout.__init__",
                    "self.outcomes = outcomes",
                    "self.outcomes = outcomes; self.ended = np.zeros(vec.num_envs * vec.agents_per_env, np.bool_)",
                ),
                *both(
                    "Rollout.receive",
                    "self.real[before] = host.masks",
                    "self.real[before] = host.masks | self.ended[host.agent_ids]; "
                    "self.ended[host.agent_ids] = host.terminations | host.truncations",
                ),
            ),
            envs=("truncation",),
        ),
        Mutant(
            "padding_trained",
            "Rows without an agent, and those before its first, are learnt from.",
            (
                *both(
                    "Rollout.__init__",
                    "self.outcomes = outcomes",
                    "self.outcomes = outcomes; self.ended = np.zeros(vec.num_envs * vec.agents_per_env, np.bool_)",
                ),
                *both(
                    "Rollout.receive",
                    "self.real[before] = host.masks",
                    "self.real[before] = host.masks | ~self.ended[host.agent_ids]; "
                    "self.ended[host.agent_ids] = host.terminations | host.truncations",
                ),
            ),
            envs=("population",),
        ),
        # ------------------------------------------------------------------------------ actions
        Mutant(
            "argmax_play",
            "The likeliest action is played in place of one that is drawn.",
            library(f"{DISTRIBUTION}.sample", "(part - clock.log()).argmax(1)", "part.argmax(1)"),
            envs=("stochastic",),
        ),
        Mutant(
            "wrong_log_prob",
            "The probability that is kept is that of another row's action.",
            both("learn", "distribution.log_prob(choices, aims)", "distribution.log_prob(choices.roll(1, 0), aims)"),
            checks=("ratios_begin_at_one",),
        ),
        Mutant(
            "action_redrawn",
            "An action is drawn twice: one is played, the other one is learnt from.",
            both("learn", "decisions.actions(choices, aims)", "decisions.actions(*distribution.sample())"),
            envs=("bandit", "squared"),
            everywhere=True,
        ),
        Mutant(
            "heads_swapped",
            "The update takes the two choices of an action in the other order.",
            plain("update", "distribution.log_prob(choices, aims)", "distribution.log_prob(choices.flip(1), aims)"),
            envs=("spaces",),
            checks=("ratios_begin_at_one",),
        ),
        Mutant(
            "head_dropped",
            "The log-probability of an action leaves out all but its last part.",
            library(f"{DISTRIBUTION}.log_prob", "reduce(torch.add, terms)", "terms[-1]"),
            envs=("mixed", "spaces"),
            checks=("log_prob_sums",),
        ),
        Mutant(
            "dimension_dropped",
            "The log-probability of an action leaves out the first of its real numbers.",
            library(f"{DISTRIBUTION}.log_prob", "(2 * math.pi)).sum(1)", "(2 * math.pi))[:, 1:].sum(1)"),
            envs=("continuous", "mixed"),
            checks=("log_prob_sums",),
        ),
        Mutant(
            "clipped_actions_stored",
            "What is kept of an action is what the bounds left of it, beside the probability of the whole.",
            both("learn", "= values, choices, aims", "= values, choices, aims.clamp(-1, 1)"),
            envs=("continuous",),
            checks=("ratios_begin_at_one",),
        ),
        Mutant(
            "observation_transposed",
            "The update sees images transposed, play does not.",
            plain(
                "update",
                "actor(rollout.observations[rows])",
                "actor(rollout.observations[rows].transpose(1, -1))",
            ),
            envs=("squared",),
            checks=("ratios_begin_at_one",),
        ),
        Mutant(
            "exploration_collapsed",
            "The policy begins with almost one action only, and nothing rewards entropy.",
            (
                *library(
                    "pufferlib.models.distributions:Decisions.distribution",
                    "= self._split(outputs)",
                    "= self._split(outputs); logits = logits + 8.0 * (torch.arange(logits.shape[1]) == 0)",
                ),
                *both("update", "if config.entropy_coefficient:", "if False:"),
            ),
            checks=("begins_undecided", "entropy_grows"),
        ),
        # ------------------------------------------------------------------------------ whose rows they are
        Mutant(
            "actions_to_other_env",
            "Each environment plays the action of its neighbour in the batch.",
            both(
                "learn",
                "decisions.actions(choices, aims)",
                "decisions.actions(*(part.roll(vec.agents_per_env, 0) for part in (choices, aims)))",
            ),
            envs=("squared", "bandit"),
            everywhere=True,
        ),
        Mutant(
            "actions_one_row_off",
            "Each agent plays the action of the next one in its environment.",
            both(
                "learn",
                "decisions.actions(choices, aims)",
                "decisions.actions(*(part.unflatten(0, (-1, vec.agents_per_env)).roll(1, 1).flatten(0, 1) "
                "for part in (choices, aims)))",
            ),
            envs=("multiagent", "population"),
        ),
        Mutant(
            "agents_observations_swapped",
            "Agents of one environment see one another's observations, and keep their actions and rewards.",
            both(
                "Rollout.receive",
                "self.frames(batch.observations,",
                "self.frames(batch.observations.unflatten(0, (-1, self.outcomes.agents_per_env)).flip(1)"
                ".flatten(0, 1),",
            ),
            envs=("multiagent",),
        ),
        Mutant(
            "previous_actions",
            "What is sent are the actions for the batch before.",
            both(
                "learn",
                "actions = learner.actor.decisions.actions(choices, aims)",
                "newest = learner.actor.decisions.actions(choices, aims); "
                "actions, learner.sent = getattr(learner, 'sent', newest), newest",
            ),
            envs=("identity", "squared"),
            everywhere=True,
        ),
        Mutant(
            "timelines_by_place",
            "Rows are strung together by their place in the batch, whichever agents are in it.",
            (
                *both(
                    "Rollout.receive",
                    "self.newest[host.agent_ids], np.arange(rows.start, rows.stop)",
                    "self.newest[: len(host.agent_ids)], np.arange(rows.start, rows.stop)",
                ),
                *both(
                    "Rollout.receive", "self.newest[host.agent_ids] = new", "self.newest[: len(host.agent_ids)] = new"
                ),
            ),
            envs=("identity",),
            backend="pool",
        ),
        Mutant(
            "actions_sorted",
            "Actions are sent, in training and in play, as if a batch were in the order of environment ids.",
            (
                *both("learn", "vec.send(actions)", "vec.send(actions, env_ids=np.sort(vec.host_batch.env_ids))"),
                *library(
                    "cleanrl_demo.evaluation:_send", "vec.send(actions)", "vec.send(actions, env_ids=np.sort(env_ids))"
                ),
            ),
            envs=("identity",),
            backend="pool",
        ),
        # ------------------------------------------------------------------------------ memories
        Mutant(
            "state_not_carried",
            "The state that the policy returns is dropped: it plays every row with the state of a beginning.",
            library(f"{MEMORY}.keep", "known[agent_ids] = new", "pass"),
            envs=("memory",),
            checks=("ratios_begin_at_one",),
        ),
        Mutant(
            "state_not_reset",
            "Play carries the state on into the next episode, the update begins anew.",
            library(f"{MEMORY}.of", *NEVER_ANEW),
            envs=("bell",),
            checks=("ratios_begin_at_one",),
        ),
        Mutant(
            "state_not_reset_in_update",
            "The update carries the state on into the next episode, play begins anew.",
            recurrent("Rollout.receive", "self.starts[rows] = ~host.masks", "self.starts[rows] = False"),
            checks=("ratios_begin_at_one",),
        ),
        Mutant(
            "state_never_reset",
            "Play and the update both carry the state on into the next episode.",
            (
                *library(f"{MEMORY}.of", *NEVER_ANEW),
                *recurrent("Rollout.receive", "self.starts[rows] = ~host.masks", "self.starts[rows] = False"),
            ),
            envs=("bell",),
        ),
        Mutant(
            "state_by_place",
            "States are kept by place in the batch, whichever agents are in it.",
            (
                *library(f"{MEMORY}.of", "known[agent_ids]", "known[: len(agent_ids)]"),
                *library(f"{MEMORY}.keep", "known[agent_ids]", "known[: len(agent_ids)]"),
            ),
            envs=("memory",),
            backend="pool",
        ),
        Mutant(
            "segments_out_of_order",
            "The stretches of rows that the update unrolls a memory over run backwards.",
            recurrent("Rollout.lines", "np.stack(lines[:-1])", "np.stack(lines[:-1][::-1])"),
            envs=("memory",),
            checks=("ratios_begin_at_one",),
        ),
        # ------------------------------------------------------------------------------ what training does not show
        Mutant(
            "entropy_sign",
            "Entropy is punished in place of rewarded.",
            both("update", "losses = losses - config.entropy", "losses = losses + config.entropy"),
            checks=("entropy_grows",),
        ),
        Mutant(
            "log_prob_averaged",
            "The log-probability of several real numbers is their mean in place of their sum.",
            library(f"{DISTRIBUTION}.log_prob", "(2 * math.pi)).sum(1)", "(2 * math.pi)).mean(1)"),
            checks=("log_prob_sums",),
        ),
        Mutant(
            "agents_shuffled",
            "Agents of one environment have their rows in another order, in observations, actions and rewards alike.",
            (
                *library(f"{NATIVE_ROWS}.step", "env.step(actions)", "env.step(actions[::-1])"),
                *library(
                    f"{NATIVE_ROWS}.write_observations",
                    "rows.observations[...] = self.env.observations",
                    "rows.observations[...] = self.env.observations[::-1]",
                ),
                *library(
                    "pufferlib.emulation.rows:HeldRows.write_outcome",
                    "= self._rewards",
                    "= np.broadcast_to(self._rewards, rows.rewards.shape)[::-1]",
                ),
            ),
            checks=("solved",),
        ),
        Mutant(
            "keys_swapped",
            "Parts of an action reach the environment under one another's names.",
            library("pufferlib.layout.unpack:compile_unpack", "zip(keys, values,", "zip(keys[::-1], values,"),
            checks=("solved",),
            portable=True,
        ),
        Mutant(
            "images_transposed",
            "Images arrive transposed, in play and in the update alike.",
            library(
                "pufferlib.emulation.native:NativeRow.write_observations",
                "= self.env.observations",
                "= self.env.observations.swapaxes(1, -1)",
            ),
            checks=("observations_arrive",),
            portable=True,
        ),
        Mutant(
            "env_ids_ignored",
            "Batches say that their rows are those of the first environments, whoever is in them.",
            library(
                "pufferlib.vectorization.core.batch:Batch.of",
                "infos, env_ids, agent_ids,",
                "infos, np.arange(len(env_ids)), np.arange(len(agent_ids)),",
            ),
            checks=("solved",),
            portable=True,
        ),
        Mutant(
            "final_observation_lost",
            "Zeros stand in the row that ends an episode.",
            library(
                "pufferlib.vectorization.worker.worker:Worker._deliver",
                "env.write_outcome(rows)",
                "env.write_outcome(rows); rows.observations[...] *= not over",
            ),
            checks=("observations_arrive",),
            portable=True,
        ),
    )
}
