"""Evaluation of policies: exactly the episodes of given seeds, and statistics of their results.

run.py: the function ``evaluate``. tasks.py: several environments. seeds.py: the seeds of episodes. rules.py: what is
played, in which order, and what came out. dealer.py: the loop that deals the episodes to whichever environment is free.
stage.py: the rows that wait for the policy. policies.py: what a policy may be, and what it is called with. chunks.py:
policies that decide on several steps. noise.py: the random numbers of sampled actions. consistency.py: a test of
whether an environment's episodes depend on earlier ones. store.py: a file from which it goes on. progress.py: a
progress bar. film.py: the pictures of an episode, and its file. filming.py: how pictures are taken. reel.py: the films
of chosen episodes. episodes.py: the results. statistics.py: their statistics; parameters.py: the parameters of these.
plot.py: a plot.
"""

from pufferlib.evaluation.chunks import ChunkedPolicy
from pufferlib.evaluation.episodes import Episodes, Runs
from pufferlib.evaluation.noise import uniforms
from pufferlib.evaluation.policies import PolicyBatch
from pufferlib.evaluation.run import EvaluationInterrupted, evaluate
from pufferlib.evaluation.statistics import Estimate, Profile

__all__ = [
    "ChunkedPolicy",
    "Episodes",
    "Estimate",
    "EvaluationInterrupted",
    "PolicyBatch",
    "Profile",
    "Runs",
    "evaluate",
    "uniforms",
]
