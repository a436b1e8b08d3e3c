"""Chains of runs: their lock, costs and cards, and the commands that made a run."""
