"""What the datamodules that train share: their loaders, and the batch of all ranks together."""
