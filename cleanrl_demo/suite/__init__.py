"""Ocean as an examination of learners: `puffer ocean`, `pytest --ocean`.

A learner under examination is a function

    train(task) -> play

task: what to learn, and how long (tasks.py). ``task.make()`` makes the environments; ``task.total_steps`` is the number
    of transitions that the demo trainer needs, and ``task.settings`` are what it is told besides.
play: a callable that is given batches of a VecEnv, as ``pufferlib.Batch`` has them, and returns the flat actions that
    ``VecEnv.send`` takes. Rows whose mask is False begin an agent's episode: there a memory is reset.

What ``play`` scores over 1,000 fresh episodes is compared with the environment's ``bar``. Of environments that it was
never meant for, ``train`` may raise ``tasks.Cannot``.

    tasks      what there is to be learnt            demo      the demo trainer as such a function
    examining  learners, each in a process           table     what one sees of it in a terminal
    plugin     `pytest --ocean module:train`         watching  a learner's play in a terminal
"""
