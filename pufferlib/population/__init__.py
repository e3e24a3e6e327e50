"""Populations: play many policies in one batch, measure them against each other, and train new ones.

    Seat           a role in an environment
    PolicyPool     a collection of policies by id: frozen ones, and the current version of each learner
    Matchup        the ids of the policies that play, one per seat
    Mixture        a distribution over matchups
    Matchmaker     assigns a matchup to an environment's next episode: Fixed, Sampled, Prioritized, Capped, random_pairs
    Router         passes each row of a batch to its policy, and returns the actions in order
    LearnerView    a VecEnv with only the rows in which one learner acts; a router plays all other rows
    PayoffTable    the payoffs of each matchup for each seat, with confidence intervals
    Evaluator      plays the episodes that a table lacks
    Coordinator    assigns Tasks (evaluations, rollouts, training) to idle workers, in this process or over Ray
    Ratings        the strength of each policy: rate_table rates the policies of a table, Rated those of a matchmaker;
                   standings lists a table's policies with their ratings
    Solver         computes a mixture from payoffs (solvers.py)
    Oracle         answers a mixture with a policy: ExactOracle, for games that can be enumerated (games/)
    psro           grows populations: solves, responds, evaluates; also self_play, fictitious_self_play
    pipeline_psro  psro with several levels of policies that learn at once
    RemoteOracle   an oracle that computes its answers as tasks on a coordinator's workers
    League         psro in a folder, configured by a TOML file and resumable; ``puffer league`` runs it
    population_based_training   replaces the weights of bad learners with those of good ones; RemoteTraining trains them
                   on a coordinator's workers

docs/population.md shows how to use these. ``pip install "pufferlib[games]"`` installs what they need; a Coordinator
with actors also needs ``pufferlib[ray]``.
"""

from pufferlib.population.games.exact_oracle import ExactOracle
from pufferlib.population.league import League, Setup
from pufferlib.population.league_settings import Settings
from pufferlib.population.learner_view import LearnerView
from pufferlib.population.matchmaking import (
    Capped,
    Fixed,
    Matchmaker,
    Matchup,
    Mixture,
    Prioritized,
    Sampled,
    Seat,
    product,
    random_pairs,
    seats_of,
)
from pufferlib.population.payoff import PayoffTable
from pufferlib.population.pbt import Member, population_based_training
from pufferlib.population.playing import Evaluator
from pufferlib.population.pool import Entry, PolicyPool
from pufferlib.population.ratings import Rated, Rating, Ratings, Standing, rate_table, standings
from pufferlib.population.response_oracles import (
    ImprovingOracle,
    Iteration,
    Oracle,
    fictitious_self_play,
    pipeline_psro,
    psro,
    rectified_targets,
    self_play,
)
from pufferlib.population.router import Router
from pufferlib.population.solvers import Solver
from pufferlib.population.task_queue import Coordinator, RemoteOracle, RemoteTraining
from pufferlib.population.tasks import Task
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
