"""Single-file trainers built on the same ``send`` and ``recv`` that users call.

    python -m cleanrl_demo.ppo --env ocean/squared --backend pool

Trainers: ``ppo``; ``ppo_lstm`` (recurrent policies); ``ppo_selfplay`` (against the current policy and its past
versions); ``dqn`` (off-policy); ``appo_ray`` (actors on many machines; also needs the extra ``ray``); ``ppo_cuda`` and
``a2c_cuda`` (everything stays on the device). The code that they share is in ``pufferlib.training``.
All trainers need the extra ``train``: torch, tensorboard, rich, tyro, matplotlib, SciPy and Pillow.
"""

__path__.append(f"{__path__[0]}/moved")  # former locations of modules, for one release
