"""One worker's environments.

worker     construction, resets and steps of the environments, and THE autoreset
step_loop  the plain case of a step, on the portable path
"""
