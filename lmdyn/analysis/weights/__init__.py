"""Spectra of weight matrices, their distances, and alignment of their tables."""
