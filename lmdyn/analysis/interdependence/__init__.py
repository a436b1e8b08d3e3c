"""Contextual decomposition, interdependence and Shapley interaction."""
