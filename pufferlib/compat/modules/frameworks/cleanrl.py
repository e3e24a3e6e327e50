"""PufferLib's module ``frameworks.cleanrl``; see pufferlib/util/compat_names.py."""

from pufferlib.util.compat_names import lead

lead("pufferlib.frameworks.cleanrl")
