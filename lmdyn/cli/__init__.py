"""The command line: inspect (first); fit, validate, test, predict (LightningCLI); analyze and report (afterwards)."""

INSPECT_FIRST = (
    "First: `lmdyn inspect MODEL` says which observers run on a model, and writes a yaml to start from."
)
"""For the help of each other command."""
