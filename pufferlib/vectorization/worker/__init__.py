"""One worker's environments.

worker     make, reset and step them, and THE autoreset
step_loop  the same for the plain case of a step, on the portable path
"""
