"""Mutants: code with one bug each, to prove that a test notices. ``edits`` changes functions by their syntax trees."""
