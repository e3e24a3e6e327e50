"""PufferLib's module ``pufferl``; see pufferlib/util/compat_names.py."""

from pufferlib.util.compat_names import lead

module = lead("pufferlib.pufferl")
if __name__ == "__main__":  # python -m pufferlib.pufferl train ENV
    module.main()
