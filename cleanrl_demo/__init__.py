"""Single-file trainers built on the same ``send`` and ``recv`` that users call.

    python -m cleanrl_demo.ppo --env ocean/squared --backend pool

Trainers: ``ppo``; ``ppo_lstm`` (recurrent policies); ``ppo_selfplay`` (against past versions of the policy); ``dqn``
(off-policy); ``appo_ray`` (actors on many machines, managed by ``fleet``; it also needs the extra ``ray``);
``ppo_cuda`` and ``a2c_cuda`` (everything stays on the device). ``oracles`` trains policies for populations with PPO and
DQN, ``league_oracles`` for leagues.
On the device: ``teams`` (agents that share a policy), ``cuda_graphs``, ``planner`` (how many environments fit),
``device_video`` (films), ``ddp`` (training by several processes).
Shared: ``session`` (a run, from its environments to the evaluation at its end), ``checkpoints``, ``settings``, ``runs``
(a run's folder), ``results``, ``minibatches``, ``reward_processing`` (rewards and terminations for the learner),
``report`` (with ``recent_statistics``, ``dashboard`` and ``tracking``), ``plot`` (curves), ``evaluation`` (with
``random_policy``), ``video`` and ``film``, ``terminal_view``, and ``suite`` (Ocean as a test of learners).
All of them need the extra ``train``: torch, tensorboard, rich, tyro, matplotlib, SciPy and Pillow.
"""
