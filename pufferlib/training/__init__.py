"""Shared parts of the trainers: runs and their folders, checkpoints, settings, reports, evaluation and films.

    session            runs training: environments, stretches between checkpoints, evaluation
    checkpoints        the checkpoint files in a run's folder
    settings           merges flags, files and the settings for an environment's family (defaults.toml)
    runs               creates and reads a run's folder
    results            the results of a run: episodes as they end, and a summary
    minibatches        minibatches of the rows to learn from, and a policy's weights as one vector
    reward_processing  scales and bounds rewards for a learner, and treats lost lives as terminations
    report             shows and stores the progress of training, with recent_statistics, dashboard and tracking
    plot               draws the curves of runs
    evaluation         plays episodes with a saved policy, or with random_policy
    video, film        films environments; terminal_view shows one in a terminal
    oracles            trains policies for populations with PPO or DQN; league_oracles does so for leagues

On a device:

    cuda_graphs        CUDA graphs of training iterations
    planner            the number of environments that fit in memory
    teams              groups of agents that share a policy
    device_video       films of kernel environments
    ddp                training by several processes

Over Ray, ``fleet`` requests rollouts from actors on many machines.

The trainers are in ``cleanrl_demo``. They need the extra ``train``: torch, tensorboard, rich, tyro, matplotlib, SciPy
and Pillow.
"""
