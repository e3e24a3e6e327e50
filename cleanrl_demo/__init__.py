"""Single-file trainers built on the same ``send`` and ``recv`` that users call, with the parts of CleanRL's scripts.

    python -m cleanrl_demo.ppo --env ocean/squared --backend pool

Trainers: ``ppo``; ``ppo_lstm`` (recurrent policies); ``ppo_selfplay`` (against the current policy and its past
versions); ``dqn`` (off-policy); ``sac`` and ``td3`` (off-policy, continuous actions); ``qmix`` (off-policy, agents
of a team) and ``maddpg`` (off-policy, critics that see all agents); ``appo_ray`` and ``dqn_ray`` (actors on many
machines; also need the extra ``ray``); ``ppo_cuda`` and ``a2c_cuda`` (everything stays on the device);
``ppo_fused`` (kernels and a compiled learner, on the CPU). The code that they share is in ``pufferlib.training``.
All trainers run with NumPy and torch alone, and use the other packages of the extra ``train`` if they are installed:
tensorboard for curves, rich for a dashboard, tyro for the help.

The parts are in the order of CleanRL's: arguments (``Config``), agent (``Learner``), rollout (``Rollout``, or a
``ReplayBuffer`` in place of it), generalised advantage estimates (``advantages``), minibatches and losses (``update``).
The loop with its logging (``learn``), which calls them, comes after them, then what starts or resumes a run (``train``,
``resume``).
"""

__path__.append(f"{__path__[0]}/moved")  # former locations of modules, for one release
