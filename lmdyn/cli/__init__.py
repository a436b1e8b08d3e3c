"""The command line: inspect (first); fit, validate, test, predict (LightningCLI); analyze and report (afterwards)."""

INSPECT_FIRST = (
    "First: `lmdyn inspect MODEL` shows which observers run on a model and writes a starting yaml."
)
"""Epilog of the help of all other commands."""
