"""PufferLib's module ``_C``; see pufferlib/util/compat_names.py."""

from pufferlib.util.compat_names import lead

lead("pufferlib._C")
