"""Orbits of any map: their kind, the length of their chaotic part, and the certainty of both."""
