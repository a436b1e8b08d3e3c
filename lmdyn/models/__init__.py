"""LightningModules, one file for each architecture."""

from lmdyn.models.causal_lm import CausalLanguageModel, CausalOutput, CausalTagger
from lmdyn.models.lamb import LAMB
from lmdyn.models.looped.looped_lm import LoopedLanguageModel
from lmdyn.models.lstm import LSTMLanguageModel
from lmdyn.models.masked_lm import MaskedLanguageModel
from lmdyn.models.pretrained import PretrainedLM
from lmdyn.models.stacked_lstm import RecurrentOutput, StackedLSTM, carry_state
from lmdyn.models.tagger import LSTMTagger
from lmdyn.models.two_tower import TwoTowerLanguageModel, TwoTowerOutput

__all__ = [
    "LAMB",
    "CausalLanguageModel",
    "CausalOutput",
    "CausalTagger",
    "LSTMLanguageModel",
    "LSTMTagger",
    "LoopedLanguageModel",
    "MaskedLanguageModel",
    "PretrainedLM",
    "RecurrentOutput",
    "StackedLSTM",
    "TwoTowerLanguageModel",
    "TwoTowerOutput",
    "carry_state",
]
