"""Ocean as a test of learners: `puffer ocean`, `pytest --ocean`.

A learner under examination is a function

    train(task) -> play

task: what to learn, and for how long (tasks.py). ``task.make()`` makes the environments; ``task.total_steps`` is the
    number of transitions that the demo trainer needs, and ``task.settings`` are all of that trainer's settings.
play: a callable that takes a VecEnv's ``pufferlib.Batch`` and returns the flat actions for ``VecEnv.send``. A row
    whose mask is False begins an agent's episode: the agent's memory must be reset there.

The mean score of ``play`` over 1,000 fresh episodes is compared with the environment's ``bar``. ``train`` may
raise ``tasks.Cannot`` for environments that the learner does not support.

    tasks      the tasks                             demo      the demo trainers as learners
    examining  runs examinations in processes        table     shows examinations in a terminal
    watching   shows a learner's play in a terminal

`cleanrl_demo/suite/plugin.py` is the pytest plugin that adds `--ocean module:train`.
"""
