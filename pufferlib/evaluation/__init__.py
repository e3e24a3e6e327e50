"""Evaluation of policies: exactly the episodes of given seeds, and statistics of their results.

run.py: the function ``evaluate``. dealer.py: the loop that deals the episodes to whichever environment is free.
stage.py: the rows that wait for the policy. policies.py: what a policy may be, and what it is called with. noise.py:
the random numbers of sampled actions. consistency.py: a test of whether an environment's episodes depend on earlier
ones. progress.py: a progress bar. episodes.py: the results. statistics.py: their statistics;
parameters.py: the parameters of these.
"""

from pufferlib.evaluation.episodes import Episodes, Runs
from pufferlib.evaluation.noise import uniforms
from pufferlib.evaluation.policies import PolicyBatch
from pufferlib.evaluation.run import evaluate
from pufferlib.evaluation.statistics import Estimate, Profile

__all__ = ["Episodes", "Estimate", "PolicyBatch", "Profile", "Runs", "evaluate", "uniforms"]
