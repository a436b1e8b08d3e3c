"""Comparison of representations with those of a reference."""
