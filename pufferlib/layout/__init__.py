"""Layouts: the position of each leaf of a nested space in a flat row, and conversions in both directions.

leaves         a space as a tree of leaves
layout         the offset of each leaf in a row: ``observation_layout``, ``action_layout``
pack, unpack   samples to rows, rows to samples
action_values  checks of an action's values
"""

from pufferlib.layout.layout import ActionLayout, Layout, Leaf, action_layout, observation_layout

__all__ = ["ActionLayout", "Layout", "Leaf", "action_layout", "observation_layout"]
