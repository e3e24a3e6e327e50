"""Faces of VecEnv for other libraries: thin, one file each, imported only where they are used."""
