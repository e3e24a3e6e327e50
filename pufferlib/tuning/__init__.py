"""Find the fastest plan for an environment.

autotune     measure, try plans within a budget, return the best with the reason
trial        play one plan in a process of its own
plans        the arguments that autotune chose, in a TOML file
bench        steps per second of one environment on each backend
random_play  drive a VecEnv with random actions, as the measurements do
"""
