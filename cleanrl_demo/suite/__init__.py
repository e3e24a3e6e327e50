"""The plugin of `pytest --ocean`; the suite that it runs is ``ocean.suite``.

The plugin is here because every run of pytest imports it, and importing anything from ``ocean`` imports Gymnasium.
"""

__path__.append(f"{__path__[0]}/../moved/suite")  # former locations of modules, for one release
