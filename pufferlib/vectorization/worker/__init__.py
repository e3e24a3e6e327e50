"""One worker's environments.

worker  construction, resets and steps of the environments, and THE autoreset
"""
