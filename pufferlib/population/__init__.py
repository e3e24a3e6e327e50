"""Populations: many policies in one batch, what they make of each other, and whom to train against.

    Seat           a role in an environment
    PolicyPool     policies by id: frozen ones, and one live version a learner
    Matchup        a policy's id for each seat
    Mixture        how often each matchup is played
    Matchmaker     who plays whom in an environment's next episode: Fixed, Sampled, Prioritized, Capped, random_pairs
    Router         a batch to the policies of its rows, and their actions back
    LearnerView    a VecEnv as one learner sees it, while a router plays all others
    PayoffTable    what each matchup pays each seat, and how sure that is
    Evaluator      plays what a table lacks
    Coordinator    hands Tasks (evaluations, rollouts, trainings) to idle workers, in this process or over Ray
    Ratings        how strong each policy is: rate_table, of a table; Rated, of what a matchmaker has played; standings
    Solver         from payoffs to a mixture (solvers.py)
    Oracle         answers a mixture with a policy: ExactOracle, for games that can be enumerated (games/)
    psro           lets populations grow: solve, respond, evaluate; also self_play, fictitious_self_play
    pipeline_psro  the same with several levels that learn at once
    RemoteOracle   an oracle whose answers are a coordinator's tasks
    League         psro in a folder, from a TOML file; goes on where it was; ``puffer league`` is its command
    population_based_training   learners that do badly go on as copies of those that do well; RemoteTraining has a
                   coordinator's workers train them

docs/population.md shows them at work. ``pip install "pufferlib[games]"`` brings all that they need.
"""

from pufferlib.population.coordinator import Coordinator
from pufferlib.population.evaluate import Evaluator
from pufferlib.population.league import League, Setup
from pufferlib.population.league_settings import Settings
from pufferlib.population.learner_view import LearnerView
from pufferlib.population.loops import Iteration, fictitious_self_play, psro, rectified_targets, self_play
from pufferlib.population.matchmaker import Capped, Fixed, Matchmaker, Prioritized, Sampled, random_pairs
from pufferlib.population.matchup import Matchup, Mixture, product
from pufferlib.population.oracle import ExactOracle, ImprovingOracle, Oracle
from pufferlib.population.payoff import PayoffTable
from pufferlib.population.pbt import Member, population_based_training
from pufferlib.population.pipeline import pipeline_psro
from pufferlib.population.pool import Entry, PolicyPool
from pufferlib.population.ratings import Rated, Rating, Ratings, rate_table
from pufferlib.population.remote_oracle import RemoteOracle, RemoteTraining
from pufferlib.population.router import Router
from pufferlib.population.seat import Seat, seats_of
from pufferlib.population.solvers import Solver
from pufferlib.population.standings import Standing, standings
from pufferlib.population.task_runner import Task
from pufferlib.util.renamed import renamed_members

__all__ = [
    "Capped",
    "Coordinator",
    "Entry",
    "Evaluator",
    "ExactOracle",
    "Fixed",
    "ImprovingOracle",
    "Iteration",
    "League",
    "LearnerView",
    "Matchmaker",
    "Matchup",
    "Member",
    "Mixture",
    "Oracle",
    "PayoffTable",
    "PolicyPool",
    "Prioritized",
    "Rated",
    "Rating",
    "Ratings",
    "RemoteOracle",
    "RemoteTraining",
    "Router",
    "Sampled",
    "Seat",
    "Settings",
    "Setup",
    "Solver",
    "Standing",
    "Task",
    "fictitious_self_play",
    "pipeline_psro",
    "population_based_training",
    "product",
    "psro",
    "random_pairs",
    "rate_table",
    "rectified_targets",
    "seats_of",
    "self_play",
    "standings",
]

__getattr__ = renamed_members(
    __name__, {"Delegated": "RemoteOracle", "DelegatedTraining": "RemoteTraining", "OwnRows": "LearnerView"}
)
