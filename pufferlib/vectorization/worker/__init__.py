"""One worker's environments.

worker     making, resetting and stepping them, and THE autoreset
step_loop  the plain case of a step, on the portable path
"""
