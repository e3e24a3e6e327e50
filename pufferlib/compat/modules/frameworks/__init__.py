"""PufferLib 1's package ``frameworks``; of its modules, ``cleanrl`` is here."""

import functools

from pufferlib.util import compat_names

__getattr__ = functools.partial(compat_names.member, __name__)
