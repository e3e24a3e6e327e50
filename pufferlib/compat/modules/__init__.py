"""The modules that only PufferLib has, under PufferLib's names: ``pufferlib.__path__`` includes this folder."""
