"""Helpers that do not depend on environments.

files        files that are complete at any time
toml         TOML, read and written
memory       how much memory is available; cgroups: the limits of a container
suggestions  the nearest valid name for a wrong one
philox       counter-based random numbers, the same on host and device
annotations  types that annotations share
"""
