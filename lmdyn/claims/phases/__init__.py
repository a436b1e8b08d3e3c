"""``lmdyn phases``: change points of recorded curves, and their order over seeds."""
