"""Helpers that do not depend on environments.

files        replace files atomically, and lock folders
toml         read and write TOML
memory       measure memory; parse and format byte counts
cgroups      find the control groups that limit this process
suggestions  suggest the nearest valid name for a misspelt one
renamed      old names that still work, with a warning
philox       counter-based random numbers, the same on host and device
annotations  types that annotations share
"""
