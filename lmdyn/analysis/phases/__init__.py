"""Phases of training: where the course of a curve changes, if it does."""
