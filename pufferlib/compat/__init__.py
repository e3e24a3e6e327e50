"""The interface of PufferLib 1 to 3, for programs that were written for it: they run unchanged.

exceptions, namespace, utils, spaces, pytorch, wrappers, top   PufferLib's modules of these names; ``top`` holds what
                                                               ``import pufferlib`` has in version 3
structs        how nested spaces lie in a row
sources        environments as the wrappers pass them on to workers
gymnasium_env, pettingzoo_env   the two wrapper classes of PufferLib's ``emulation``
puffer_env     its PufferEnv, which makes its own buffers
creators, vecenv, vector   its vectorization, on ``pufferlib.make``
models, cleanrl   its policies, and those that sample their actions
advantage_op   its advantages as an operation of torch
settings, loggers, timing, trainer, pufferl   version 3's settings (default.ini), loggers, times, PuffeRL and command
versions       the version for which a program was written

``pufferlib/util/compat_names.py`` is the table of the names. docs/migrating.md lists what differs on purpose.
"""
