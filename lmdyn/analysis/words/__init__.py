"""Sparsity, frequency matching, and the order in which groups of words are learned."""
