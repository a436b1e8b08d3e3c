"""Pure mathematics: tensors in, tensors or frozen dataclasses out. Nothing here knows Lightning."""

from lmdyn.analysis.activations import Capture, capture, observing, resolve_sites
from lmdyn.analysis.grouped import GroupedMeans
from lmdyn.analysis.sparsity import (
    MatchedSamples,
    attention_entropy,
    concentration,
    frequency_correlation,
    match_frequency,
    word_tags,
)

__all__ = [
    "Capture",
    "GroupedMeans",
    "MatchedSamples",
    "attention_entropy",
    "capture",
    "concentration",
    "frequency_correlation",
    "match_frequency",
    "observing",
    "resolve_sites",
    "word_tags",
]
