"""Observers of models that iterate a core."""
