"""Geometry of activations: ranks and spectra, intrinsic dimension, outlying tokens and units."""
