"""Cloze questions about facts."""
