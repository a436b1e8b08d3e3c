"""Sums over batches and ranks, correlation, intervals, hashing."""
