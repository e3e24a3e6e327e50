"""Measurement of where the time of a VecEnv goes.

timeline          recording of a sample of the durations of sends, receives and steps
durations         sums and histograms of durations, as figures and as text
throughput_model  simulation of a plan from measured step times
stats             ``VecEnv.stats()``: figures, a table and a verdict that names a better plan
plot              stats as a picture
"""
