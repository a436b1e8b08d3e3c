"""Orbits of any map: of what kind they are, how long they are chaotic, and how sure one can be of it."""
