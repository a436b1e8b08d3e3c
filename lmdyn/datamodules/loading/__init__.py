"""Shared by the datamodules for training: their loaders, and the batch of all ranks together."""
