"""What a mutant is, and the functions of the trainers that most of them edit."""

from __future__ import annotations

from dataclasses import dataclass

from cleanrl_demo import ppo, ppo_lstm

from .edits import Edit

__all__ = ["ADVANTAGES", "LEARN", "RECEIVE", "ROLLOUT", "UPDATE", "Mutant"]

LEARN = (ppo.learn, ppo_lstm.learn)
UPDATE = (ppo.update, ppo_lstm.update)
ADVANTAGES = (ppo.advantages, ppo_lstm.advantages)
ROLLOUT = (ppo.Rollout.__init__, ppo_lstm.Rollout.__init__)
RECEIVE = (ppo.Rollout.receive, ppo_lstm.Rollout.receive)


@dataclass(frozen=True)
class Mutant:
    """A bug, and what should catch it."""

    name: str
    """what results are stored under: a mutant whose edits come to another bug needs another name"""
    description: str
    """one sentence: what a trainer, or the library below it, gets wrong"""
    edits: tuple[Edit, ...]
    envs: tuple[str, ...] = ()
    """environments that should catch it, without ocean/"""
    checks: tuple[str, ...] = ()
    """checks that should catch it (checks.py); where no environment should, training is known not to show it"""
    everywhere: bool = False
    """whether it may fail on all environments, as nothing need be learnt with it"""
    backend: str = "serial"
    """the backend of its trainings: serial, or pool if it shows there only (trainings.py has environments that need a
    pool)"""
    portable: bool = False
    """whether it shows only on the portable path, PUFFERLIB_NATIVE=0, or only off policy, where the matrix has no
    learner: such a mutant is checked, but not trained"""
