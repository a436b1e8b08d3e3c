"""LightningModules, one file for each architecture."""

from lmdyn.models.lstm import LSTMLanguageModel
from lmdyn.models.stacked_lstm import RecurrentOutput, StackedLSTM, carry_state
from lmdyn.models.tagger import LSTMTagger

__all__ = ["LSTMLanguageModel", "LSTMTagger", "RecurrentOutput", "StackedLSTM", "carry_state"]
