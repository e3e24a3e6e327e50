"""Layouts: where each leaf of a nested space lies in a flat row, and the way there and back.

leaves         a space as a tree of leaves
layout         the place of each leaf in a row: ``observation_layout``, ``action_layout``
pack, unpack   samples to rows, rows to samples
action_values  which values an action may hold
"""

from pufferlib.layout.layout import ActionLayout, Layout, Leaf, action_layout, observation_layout

__all__ = ["ActionLayout", "Layout", "Leaf", "action_layout", "observation_layout"]
