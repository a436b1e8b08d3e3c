"""LightningModules, one file for each architecture."""

from lmdyn.models.lstm import LSTMLanguageModel

__all__ = ["LSTMLanguageModel"]
