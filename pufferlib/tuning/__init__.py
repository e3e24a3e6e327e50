"""Search for the fastest plan for an environment.

autotune     measures an environment, tries plans within a budget, and returns the best with the reason
trial        tries one plan in a subprocess
plans        holds the arguments that autotune chose; saves them to a TOML file and loads them
bench        measures steps per second of one environment on each backend
random_play  plays a VecEnv with random actions, for all of these measurements
"""
