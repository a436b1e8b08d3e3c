"""Weight matrices: their spectra, their distance from other checkpoints."""
