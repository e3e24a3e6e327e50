"""The pytest plugin that adds `--ocean`; the suite that it runs is ``ocean.suite``.

The plugin is not in ``ocean``, because every run of pytest imports it, and importing anything from ``ocean`` would also
import Gymnasium.
"""

__path__.append(f"{__path__[0]}/../moved/suite")  # former locations of modules, for one release
