"""Checks before training: findings about data and modules, amounts of data, memory and disk."""
