"""Ocean: small environments, each of which shows at once whether one part of a learner is broken.

One file is one environment: ``ocean/squared.py`` holds the class ``Squared``, which the registry offers as
``ocean/squared`` because the file is there. The class is a ``PufferEnv``, or where its spaces are nested a Gymnasium
environment, and adds these things:

    chance    float, the mean score of a uniform policy under the default parameters
    best      float, the mean score of the best policy
    bar       float, the mean score from which a learner has passed; ``puffer ocean`` leaves out what has none
    solve()   (num_agents,) actions of a scripted policy that reaches ``best``; of a Gymnasium environment one action,
              of its own space

and reports ``info["score"]``, in [0, 1], on the last step of every episode. ``needs_memory = True`` says that no policy
without a memory passes. Files whose name starts with an underscore are no environments.

Importing this package registers the names with Gymnasium, so that ``gymnasium.make("ocean/squared")`` makes them after
``import ocean``, and ``gymnasium.make("ocean:ocean/squared")`` without it. None of the files is imported by that.
"""

import pkgutil

import gymnasium


def _register() -> None:
    for module in pkgutil.iter_modules(__path__):
        name = f"ocean/{module.name}"
        if not module.name.startswith("_") and name not in gymnasium.registry:
            gymnasium.register(name, entry_point=f"pufferlib.emulation.registered:{module.name}")


_register()
