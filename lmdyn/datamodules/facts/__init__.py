"""Cloze questions on facts."""
