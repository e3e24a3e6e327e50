"""The chaos suite: millions of steps while workers are killed and stopped and environments fail, every row checked.

``tale`` is what a row says, ``envs`` tell it and misbehave, ``checker`` proves that nothing is missing, ``monkey``
sends signals from a process of its own, ``board`` is the memory that all of them share, ``learner`` plays one of the
``arrangements``, and ``run`` all of them.
"""
