"""Probes, output heads and readouts trained on features of a frozen model; metrics of tasks."""
