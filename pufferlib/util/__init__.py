"""Helpers that do not depend on environments.

files        replace files atomically
toml         read and write TOML
memory       measure memory; parse and format byte counts
sockets      connect two processes that share a key
cgroups      find the control groups that may limit this process
suggestions  suggest the nearest valid name for a misspelt one
parameters   declare parameters once, in a TypedDict, for several functions
flags        write integers in command-line arguments in full
renamed      keep old names working, with a warning
compat_names the names that programs for PufferLib 1 to 3 import, and where they are
philox       counter-based random numbers, the same on host and device
annotations  types used in annotations across the package
"""
