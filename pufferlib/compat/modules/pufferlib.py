"""PufferLib's module ``pufferlib``; see pufferlib/util/compat_names.py."""

from pufferlib.util.compat_names import lead

lead("pufferlib.pufferlib")
