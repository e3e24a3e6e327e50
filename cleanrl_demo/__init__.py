"""Trainers in single files, over the same ``send`` and ``recv`` that users call.

    python -m cleanrl_demo.ppo --env ocean/squared --backend pool

``ppo.py`` is the trainer, ``policy.py`` its network, ``report.py`` what one sees of a run, ``plot.py`` its curves.
They need the extra ``train``: torch, tensorboard, rich and tyro.
"""
