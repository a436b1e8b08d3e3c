"""Pure mathematics: tensors in, tensors or frozen dataclasses out. Nothing here knows Lightning."""

from lmdyn.analysis.activations import Capture, capture, observing, resolve_sites
from lmdyn.analysis.cca import canonical_correlations, cca, pwcca, svcca
from lmdyn.analysis.cka import kernel_cka, linear_cka
from lmdyn.analysis.correlation import pearson, spearman
from lmdyn.analysis.covariance import CrossCovariance
from lmdyn.analysis.decomposition import Decomposition, contextual_decomposition
from lmdyn.analysis.divergence import jensen_shannon, kullback_leibler
from lmdyn.analysis.grouped import GroupedMeans
from lmdyn.analysis.independent_components import (
    UnusableEmbeddingsError,
    amari_ica,
    amari_index,
    fast_ica,
    principal_components,
)
from lmdyn.analysis.interdependence import (
    PairwiseInterdependence,
    decompositional_interdependence,
    pairwise_interdependence,
)
from lmdyn.analysis.kernels import cosine_kernel, linear_kernel, rbf_kernel
from lmdyn.analysis.lstm import state_gradients
from lmdyn.analysis.preference import (
    Predictions,
    SplitHalf,
    TowerPredictions,
    leading_towers,
    most_frequent_tag,
    preference_standard_error,
    primary_tower,
    split_half_reliability,
    token_preference,
)
from lmdyn.analysis.preference_agreement import Agreement, compare_preferences
from lmdyn.analysis.probes import (
    DescriptionLength,
    DiagnosticClassifier,
    ProbeResult,
    control_labels,
    description_length,
    diagnostic_probe,
)
from lmdyn.analysis.procrustes import procrustes
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
from lmdyn.analysis.tower_heads import HeadTraining, TowerHead, train_tower_heads
from lmdyn.analysis.trees import dependency_distances
from lmdyn.analysis.word_clusters import (
    ClusteredWords,
    Clustering,
    Membership,
    cluster_means,
    typical_words,
    word_clusters,
)

__all__ = [
    "Agreement",
    "Capture",
    "ClusteredWords",
    "Clustering",
    "CrossCovariance",
    "Decomposition",
    "DescriptionLength",
    "DiagnosticClassifier",
    "GroupedMeans",
    "HeadTraining",
    "MatchedSamples",
    "Membership",
    "PairwiseInterdependence",
    "Predictions",
    "ProbeResult",
    "ShapleyInteraction",
    "SplitHalf",
    "TowerHead",
    "TowerPredictions",
    "UnusableEmbeddingsError",
    "amari_ica",
    "amari_index",
    "attention_entropy",
    "canonical_correlations",
    "capture",
    "cca",
    "cluster_means",
    "compare_preferences",
    "concentration",
    "contextual_decomposition",
    "control_labels",
    "cosine_kernel",
    "decompositional_interdependence",
    "dependency_distances",
    "description_length",
    "diagnostic_probe",
    "fast_ica",
    "frequency_correlation",
    "jensen_shannon",
    "kernel_cka",
    "kullback_leibler",
    "leading_towers",
    "linear_cka",
    "linear_kernel",
    "match_frequency",
    "most_frequent_tag",
    "observing",
    "pairwise_interdependence",
    "pearson",
    "preference_standard_error",
    "primary_tower",
    "principal_components",
    "procrustes",
    "pwcca",
    "rbf_kernel",
    "resolve_sites",
    "rsa",
    "shapley_interaction",
    "spearman",
    "split_half_reliability",
    "state_gradients",
    "svcca",
    "sweep",
    "token_preference",
    "train_tower_heads",
    "typical_words",
    "word_clusters",
    "word_tags",
]
