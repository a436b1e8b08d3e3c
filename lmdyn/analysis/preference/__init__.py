"""Preference of towers for words; independent components and clusters of words."""
