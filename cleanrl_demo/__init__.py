"""Trainers that are each one readable script over ``pufferlib.make``: copy one and change it."""
