"""Interdependence of words, and rules over a distance."""
