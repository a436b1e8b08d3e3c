"""Pure mathematics: tensors in, tensors or frozen dataclasses out. Nothing here knows Lightning."""

from lmdyn.analysis.activations import Capture, capture, observing, resolve_sites
from lmdyn.analysis.cca import canonical_correlations, cca, pwcca, svcca
from lmdyn.analysis.cka import kernel_cka, linear_cka
from lmdyn.analysis.covariance import CrossCovariance
from lmdyn.analysis.decomposition import Decomposition, contextual_decomposition
from lmdyn.analysis.divergence import jensen_shannon, kullback_leibler
from lmdyn.analysis.grouped import GroupedMeans
from lmdyn.analysis.interdependence import (
    PairwiseInterdependence,
    decompositional_interdependence,
    pairwise_interdependence,
)
from lmdyn.analysis.kernels import cosine_kernel, linear_kernel, rbf_kernel
from lmdyn.analysis.lstm import state_gradients
from lmdyn.analysis.probes import (
    DescriptionLength,
    DiagnosticClassifier,
    ProbeResult,
    control_labels,
    description_length,
    diagnostic_probe,
)
from lmdyn.analysis.procrustes import procrustes
from lmdyn.analysis.rank_correlation import spearman
from lmdyn.analysis.rsa import rsa
from lmdyn.analysis.shapley import ShapleyInteraction, shapley_interaction
from lmdyn.analysis.sparsity import (
    MatchedSamples,
    attention_entropy,
    concentration,
    frequency_correlation,
    match_frequency,
    word_tags,
)
from lmdyn.analysis.sweep import sweep
from lmdyn.analysis.trees import dependency_distances

__all__ = [
    "Capture",
    "CrossCovariance",
    "Decomposition",
    "DescriptionLength",
    "DiagnosticClassifier",
    "GroupedMeans",
    "MatchedSamples",
    "PairwiseInterdependence",
    "ProbeResult",
    "ShapleyInteraction",
    "attention_entropy",
    "canonical_correlations",
    "capture",
    "cca",
    "concentration",
    "contextual_decomposition",
    "control_labels",
    "cosine_kernel",
    "decompositional_interdependence",
    "dependency_distances",
    "description_length",
    "diagnostic_probe",
    "frequency_correlation",
    "jensen_shannon",
    "kernel_cka",
    "kullback_leibler",
    "linear_cka",
    "linear_kernel",
    "match_frequency",
    "observing",
    "pairwise_interdependence",
    "procrustes",
    "pwcca",
    "rbf_kernel",
    "resolve_sites",
    "rsa",
    "shapley_interaction",
    "spearman",
    "state_gradients",
    "svcca",
    "sweep",
    "word_tags",
]
