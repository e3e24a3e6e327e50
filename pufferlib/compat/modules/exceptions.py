"""PufferLib's module ``exceptions``; see pufferlib/util/compat_names.py."""

from pufferlib.util.compat_names import lead

lead("pufferlib.exceptions")
