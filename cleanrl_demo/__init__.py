"""Trainers in single files, over the same ``send`` and ``recv`` that users call.

    python -m cleanrl_demo.ppo --env ocean/squared --backend pool

``ppo.py`` is the trainer, ``ppo_lstm.py`` the one for policies with a memory, ``ppo_selfplay.py`` one that plays
against its past selves, ``dqn.py`` one that learns off policy (``oracles.py`` has it learn for populations, and PPO),
``appo_ray.py`` one whose actors play on many machines (``fleet.py`` keeps them; it needs the extra ``ray``, too);
``ppo_cuda.py`` and ``a2c_cuda.py`` keep everything on the device, with ``teams.py`` (who learns together there) and
``iterations.py`` (CUDA graphs); ``planner.py`` says how many environments fit there, ``exposures.py`` films them,
``peers.py`` makes one of several processes;
``session.py`` is what is around them, with ``settings.py`` (where settings come from), ``runs.py`` (a run's folder) and
``results.py`` (what comes of it); ``outcomes.py`` is what they make of rewards and endings. ``report.py`` is what is
seen of a run, with ``recent.py``, ``dashboard.py`` and ``tracking.py``; ``plot.py`` draws curves. ``evaluation.py``
says how good a policy is (``acting.py``: chance at play), ``video.py`` films it (``film.py``), ``watch.py`` shows it in
a terminal. They need the extra ``train``: torch, tensorboard, rich, tyro, matplotlib, SciPy and Pillow.
"""
