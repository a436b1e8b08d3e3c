"""Minimal pairs: two sentences, of which a language model should prefer the first."""
