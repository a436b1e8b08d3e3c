"""Encoders as dynamical systems."""
