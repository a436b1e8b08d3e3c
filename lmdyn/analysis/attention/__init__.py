"""Scores of attention maps."""
