"""Observations of many steps, gathered in few files that can be deleted at any time."""
