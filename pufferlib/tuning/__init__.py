"""The search for the fastest plan for an environment.

autotune     measurement of an environment, trials of plans within a budget, and the best with the reason
trial        a trial of one plan, in a subprocess
plans        the arguments that autotune chose, in a TOML file
bench        steps per second of one environment on each backend
random_play  random actions for a VecEnv, with which all of these measure
"""
