"""Measure where the time of a VecEnv goes.

timeline          records the durations of sends, receives and a sample of the steps
durations         computes statistics from sums and histograms of durations, and formats them
throughput_model  simulates a plan with measured step times
stats             defines ``VecEnv.stats()``: figures, a table and a verdict that names a better plan
plot              draws stats as a picture
"""
