"""Mutants: the demo trainer, and the library below it, with one bug each, to prove that Ocean notices.

    python -m tests.mutants [--mutant NAME…] [--env NAME…]

``edits`` changes functions by their syntax trees. ``catalogue`` joins ``rewards``, ``actions``, ``memories``
and ``checked``, ``learners`` trains them, ``checks`` finds some without training. ``trainings`` stores verdicts,
``matrix`` says which environment of Ocean catches which mutant, ``run`` fills it, and ``page`` writes it down.
"""
