"""Experiments: arms, repeats, verdicts."""
