"""Populations: many policies in one batch, what they make of each other, and whom to train against.

    Seat           a role in an environment
    PolicyPool     policies by id: frozen ones, and one live version a learner
    Matchup        a policy's id for each seat
    Mixture        how often each matchup is played
    Matchmaker     who plays whom in an environment's next episode: Fixed, Sampled, Prioritized, Capped, random_pairs
    Router         a batch to the policies of its rows, and their actions back
    PayoffTable    what each matchup pays each seat, and how sure that is
    Evaluator      plays what a table lacks

docs/population.md shows them at work. All of it needs torch; solvers of linear programs need SciPy.
"""

from pufferlib.population.evaluate import Evaluator
from pufferlib.population.matchmaker import Capped, Fixed, Matchmaker, Prioritized, Sampled, random_pairs
from pufferlib.population.matchup import Matchup, Mixture, product
from pufferlib.population.payoff import PayoffTable
from pufferlib.population.pool import Entry, PolicyPool
from pufferlib.population.router import Router
from pufferlib.population.seat import Seat, seats_of

__all__ = [
    "Capped",
    "Entry",
    "Evaluator",
    "Fixed",
    "Matchmaker",
    "Matchup",
    "Mixture",
    "PayoffTable",
    "PolicyPool",
    "Prioritized",
    "Router",
    "Sampled",
    "Seat",
    "product",
    "random_pairs",
    "seats_of",
]
