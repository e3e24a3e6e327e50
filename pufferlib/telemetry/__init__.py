"""Measure where the time of a VecEnv goes.

timeline          records the durations of sends, receives and a sample of the steps
durations         computes statistics from sums and histograms of durations, and formats them
throughput_model  simulates a plan with measured step times, to estimate its throughput
stats             defines the result of ``VecEnv.stats()``: figures, a table and a verdict that may name a better plan
plot              draws stats as a picture
"""
