"""Geometry of activations."""
