"""Trainers in single files, over the same ``send`` and ``recv`` that users call.

    python -m cleanrl_demo.ppo --env ocean/squared --backend pool

``ppo.py`` is the trainer; ``report.py`` what one sees of a run, with ``recent.py``, ``dashboard.py`` and
``tracking.py``; ``runs.py`` its folder, ``results.py`` what comes of it, ``plot.py`` its curves.
They need the extra ``train``: torch, tensorboard, rich and tyro.
"""
