"""What is on disk: observations, checkpoints, locks, provenance, configurations and the folders of runs."""
