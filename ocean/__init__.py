"""Ocean: small environments, most of which reveal whether a particular part of a learner is broken.

Each file is an environment: ``ocean/squared.py`` contains the class ``Squared``, and the registry lists it as
``ocean/squared``. The class is a ``PufferEnv`` or a Gymnasium or PettingZoo environment, with these additions:

    chance    float, the mean score of a uniform policy with the default parameters; None if episodes never end
    best      float, the mean score of the best policy; None if episodes never end
    bar       float, the mean score at which a learner passes; ``puffer ocean`` skips environments without one
    solve()   returns the actions of a scripted policy that reaches ``best``: an array with one action per agent or, in
              a Gymnasium environment, an action of its action space

An environment reports ``info["score"]``, in [0, 1], on the last step of every episode. ``needs_memory = True`` in its
class means that no policy without memory reaches ``bar``. Files whose names start with an underscore are not
environments.

Importing this package registers the names with Gymnasium, but imports none of the environments' files:
``gymnasium.make("ocean/squared")`` works after ``import ocean``, ``gymnasium.make("ocean:ocean/squared")`` without it.
"""

import pkgutil

import gymnasium


def _register() -> None:
    for module in pkgutil.iter_modules(__path__):
        name = f"ocean/{module.name}"
        if not module.ispkg and not module.name.startswith("_") and name not in gymnasium.registry:
            gymnasium.register(name, entry_point=f"pufferlib.emulation.registered:{module.name}")


_register()
