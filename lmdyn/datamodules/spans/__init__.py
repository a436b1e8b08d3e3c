"""Labelled spans for edge probing."""
