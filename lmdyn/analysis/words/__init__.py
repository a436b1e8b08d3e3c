"""Sparsity, frequency matching, and the order in which words are learned."""
