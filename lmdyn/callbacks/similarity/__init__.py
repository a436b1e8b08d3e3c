"""Representations compared with those of a reference."""
