"""Trainers in single files, over the same ``send`` and ``recv`` that users call.

    python -m cleanrl_demo.ppo --env ocean/squared --backend pool

Trainers: ``ppo``; ``ppo_lstm`` (policies with a memory); ``ppo_selfplay`` (against its past selves); ``dqn`` (off
policy); ``appo_ray`` (actors on many machines, kept by ``fleet``; needs the extra ``ray``, too); ``ppo_cuda`` and
``a2c_cuda`` (everything stays on the device). ``oracles`` has PPO and DQN learn for populations.
On the device: ``teams`` (agents that learn together), ``cuda_graphs``, ``planner`` (how many environments fit),
``device_video`` (films), ``ddp`` (one trainer of several processes).
Shared: ``session`` (environments, checkpoints), ``settings``, ``runs`` (a run's folder), ``results``, ``minibatches``,
``reward_processing`` (rewards and endings for the learner), ``report`` with ``recent_statistics``, ``dashboard`` and
``tracking``, ``plot`` (curves), ``evaluation`` (with ``random_policy``), ``video`` and ``film``, ``terminal_view``.
They need the extra ``train``: torch, tensorboard, rich, tyro, matplotlib, SciPy and Pillow.
"""
