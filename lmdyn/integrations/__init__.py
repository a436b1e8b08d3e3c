"""Observers outside Lightning: in any training loop, and in transformers' Trainer."""
