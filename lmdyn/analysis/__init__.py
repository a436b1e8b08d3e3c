"""Pure mathematics: tensors in, tensors or frozen dataclasses out. Nothing here knows Lightning.

The functions of this package also take numpy arrays, nested lists and tensors that require grad
(:func:`lmdyn.analysis.boundary.takes_arrays`); those of its modules, which call each other, take tensors only.
"""

import inspect as _inspect

from lmdyn.analysis.attention.copying import copying_scores, positive_eigenvalues, vocabulary_product
from lmdyn.analysis.attention.first_token import FirstToken, FirstTokenSums, first_token_attention
from lmdyn.analysis.attention.head_ablation import HeadPlace, ablated_heads
from lmdyn.analysis.attention.head_divergence import HeadDivergence, HeadDivergenceSums, head_divergences
from lmdyn.analysis.attention.induction_scores import induction_scores, uniform_attention
from lmdyn.analysis.attention.repeated_tokens import repeated_tokens, repetition_losses
from lmdyn.analysis.boundary import takes_arrays as _takes_arrays
from lmdyn.analysis.dynamics.convergence import LoopSums, relative_change
from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.dynamics.long_run import LongRun, long_run
from lmdyn.analysis.dynamics.synchronization import (
    Synchronization,
    deviation,
    deviation_floor,
    synchronization_offset,
    synchronize,
)
from lmdyn.analysis.dynamics.synchronized_map import SynchronizedMap, synchronized_map, transverse_exponents
from lmdyn.analysis.geometry.effective_dimension import EffectiveDimension, effective_dimension
from lmdyn.analysis.geometry.group_variance import (
    GroupSums,
    GroupVariance,
    GroupVectors,
    NestedVariance,
    group_variance,
    nested_variance,
)
from lmdyn.analysis.geometry.intrinsic_dimension import IntrinsicDimension, intrinsic_dimension
from lmdyn.analysis.geometry.pictures import (
    MdsPicture,
    PrincipalCourse,
    aligned_courses,
    cosine_distances,
    mds_picture,
    principal_course,
)
from lmdyn.analysis.geometry.rectifiers import find_rectifiers
from lmdyn.analysis.geometry.spectrum import PowerLaw, Spectrum, power_law, rankme, white_noise_rank
from lmdyn.analysis.geometry.vector_sums import VectorGeometry, VectorSums, anisotropy, token_kurtosis
from lmdyn.analysis.inspection.activations import Capture, capture, observing, resolve_sites
from lmdyn.analysis.inspection.sites import FoundSites, find_sites, match_sites
from lmdyn.analysis.interdependence.decomposition import Decomposition, contextual_decomposition
from lmdyn.analysis.interdependence.lstm_layers import state_gradients
from lmdyn.analysis.interdependence.pairwise import (
    PairwiseInterdependence,
    decompositional_interdependence,
    pairwise_interdependence,
)
from lmdyn.analysis.interdependence.pairwise_shapley import (
    PairwiseShapley,
    pairwise_shapley_interaction,
    reading_of,
)
from lmdyn.analysis.interdependence.trees import dependency_distances, off_by_one_distances
from lmdyn.analysis.landscape.barrier import LossLine, loss_barrier
from lmdyn.analysis.landscape.critical_step import critical_step
from lmdyn.analysis.landscape.hessian import Hessian, HessianTrace
from lmdyn.analysis.landscape.line_integral import LineIntegral, LinePoint, integrate_line
from lmdyn.analysis.landscape.loss_change import LossChange, loss_change_allocation
from lmdyn.analysis.landscape.plane import Plane, filter_normalized, random_plane
from lmdyn.analysis.landscape.unit_groups import unit_groups
from lmdyn.analysis.landscape.unit_matching import MatchedUnits, match_units
from lmdyn.analysis.orbits.closed_rate import closed_orbit_rate
from lmdyn.analysis.orbits.correlation_dimension import correlation_dimension
from lmdyn.analysis.orbits.growth_rate import GrowthRate, growth_rate
from lmdyn.analysis.orbits.kaplan_yorke import kaplan_yorke_dimension
from lmdyn.analysis.orbits.lyapunov import LocalExponents, local_lyapunov_exponents
from lmdyn.analysis.orbits.lyapunov_spectrum import LyapunovSpectrum, lyapunov_spectrum
from lmdyn.analysis.orbits.orbit_kind import OrbitKinds, orbit_kind
from lmdyn.analysis.orbits.recurrence import Attractors, Recurrence, attractors
from lmdyn.analysis.orbits.spectral_lines import SpectralLines, spectral_lines
from lmdyn.analysis.orbits.survival import Survival, survival
from lmdyn.analysis.orbits.trajectories import Trajectory, exact_products, iterate
from lmdyn.analysis.orbits.transients import Transients, transient_length
from lmdyn.analysis.orbits.zero_one_test import ZeroOne, decorrelation_lag, zero_one_test
from lmdyn.analysis.parameters.at_point import at_point
from lmdyn.analysis.parameters.exchangeable_units import UnitAxis, UnitGroup, exchange_error, permuted_units
from lmdyn.analysis.parameters.head_matrices import FoundHeads, HeadMatrices, find_heads, head_matrices
from lmdyn.analysis.parameters.line import point_between
from lmdyn.analysis.parameters.loss_gradient import LossGradient, loss_gradient
from lmdyn.analysis.phases.change_points import ChangePoints, change_points
from lmdyn.analysis.phases.map_controls import clumping_p_value, rotated_seeds, smooth_counterpart
from lmdyn.analysis.phases.training_map import TrainingMap, training_map
from lmdyn.analysis.preference.clustering import (
    ClusteredWords,
    Clustering,
    Membership,
    cluster_means,
    typical_words,
    word_clusters,
)
from lmdyn.analysis.preference.independent_components import (
    UnusableEmbeddingsError,
    amari_ica,
    principal_components,
)
from lmdyn.analysis.preference.preference import (
    SplitHalf,
    leading_towers,
    most_frequent_tag,
    preference_standard_error,
    primary_tower,
    split_half_reliability,
    token_preference,
)
from lmdyn.analysis.preference.preference_agreement import Agreement, compare_preferences, shuffled_within
from lmdyn.analysis.preference.tower_predictions import Predictions, TowerPredictions
from lmdyn.analysis.probing.probes import (
    DescriptionLength,
    DiagnosticClassifier,
    ProbeResult,
    control_labels,
    description_length,
    diagnostic_probe,
)
from lmdyn.analysis.probing.tower_heads import HeadTraining, TowerHead, train_tower_heads
from lmdyn.analysis.similarity.block_jackknife import jackknife_similarity
from lmdyn.analysis.similarity.cca import canonical_correlations, cca, pwcca, svcca, svcca_ranks
from lmdyn.analysis.similarity.cka import kernel_cka, linear_cka
from lmdyn.analysis.similarity.covariance import CrossCovariance
from lmdyn.analysis.similarity.divergence import jensen_shannon, kullback_leibler
from lmdyn.analysis.similarity.kernels import cosine_kernel, linear_kernel, rbf_kernel
from lmdyn.analysis.similarity.procrustes import procrustes
from lmdyn.analysis.similarity.rsa import rsa
from lmdyn.analysis.similarity.sweep import sweep
from lmdyn.analysis.statistics.correlation import pearson, spearman
from lmdyn.analysis.statistics.distributed import all_reduce_sum
from lmdyn.analysis.statistics.grouped import GroupedMeans
from lmdyn.analysis.statistics.jackknife import Jackknifed, jackknife
from lmdyn.analysis.weights.alignment import TableAlignment, table_alignment
from lmdyn.analysis.weights.distances import WeightDistance, weight_distance
from lmdyn.analysis.weights.sparsity_of_entries import gini, hoyer
from lmdyn.analysis.weights.spectra import MatrixSpectrum, matrix_spectrum, product_spectrum, singular_values
from lmdyn.analysis.words.acquisition import (
    Acquisition,
    AcquisitionRegression,
    Sigmoid,
    acquisition_agreement,
    acquisition_regression,
    acquisition_step,
    fit_sigmoid,
    forgettability,
    late_variability,
    word_acquisition,
)
from lmdyn.analysis.words.choices import choice_accuracy
from lmdyn.analysis.words.concentration import (
    attention_entropy,
    concentration,
    frequency_correlation,
    normalized_attention_entropy,
    word_tags,
)
from lmdyn.analysis.words.extrema import (
    Extremum,
    extremum,
    extremum_interval,
    extremum_order,
    ngram_extrema,
)
from lmdyn.analysis.words.frequency_matching import MatchedSamples, match_frequency
from lmdyn.analysis.words.minimal_pairs import (
    PairAgreement,
    flips,
    onset,
    pair_accuracy,
    pair_agreement,
    sentence_scores,
)
from lmdyn.analysis.words.ngram_counts import NgramCounts
from lmdyn.analysis.words.ngram_models import NgramModels, NgramScores
from lmdyn.analysis.words.reading import ReadingFit, reading_fit
from lmdyn.analysis.words.surprisal import surprisals, word_surprisals

__all__ = [
    "Acquisition",
    "AcquisitionRegression",
    "Agreement",
    "Attractors",
    "Capture",
    "ChangePoints",
    "ClusteredWords",
    "Clustering",
    "CrossCovariance",
    "Decomposition",
    "DescriptionLength",
    "DiagnosticClassifier",
    "EffectiveDimension",
    "EncoderMap",
    "Extremum",
    "FirstToken",
    "FirstTokenSums",
    "FoundHeads",
    "FoundSites",
    "GroupSums",
    "GroupVariance",
    "GroupVectors",
    "GroupedMeans",
    "GrowthRate",
    "HeadDivergence",
    "HeadDivergenceSums",
    "HeadMatrices",
    "HeadPlace",
    "HeadTraining",
    "Hessian",
    "HessianTrace",
    "IntrinsicDimension",
    "Jackknifed",
    "LineIntegral",
    "LinePoint",
    "LocalExponents",
    "LongRun",
    "LoopSums",
    "LossChange",
    "LossGradient",
    "LossLine",
    "LyapunovSpectrum",
    "MatchedSamples",
    "MatchedUnits",
    "MatrixSpectrum",
    "MdsPicture",
    "Membership",
    "NestedVariance",
    "NgramCounts",
    "NgramModels",
    "NgramScores",
    "OrbitKinds",
    "PairAgreement",
    "PairwiseInterdependence",
    "PairwiseShapley",
    "Plane",
    "PowerLaw",
    "Predictions",
    "PrincipalCourse",
    "ProbeResult",
    "ReadingFit",
    "Recurrence",
    "Sigmoid",
    "SpectralLines",
    "Spectrum",
    "SplitHalf",
    "Survival",
    "Synchronization",
    "SynchronizedMap",
    "TableAlignment",
    "TowerHead",
    "TowerPredictions",
    "TrainingMap",
    "Trajectory",
    "Transients",
    "UnitAxis",
    "UnitGroup",
    "UnusableEmbeddingsError",
    "VectorGeometry",
    "VectorSums",
    "WeightDistance",
    "ZeroOne",
    "ablated_heads",
    "acquisition_agreement",
    "acquisition_regression",
    "acquisition_step",
    "aligned_courses",
    "all_reduce_sum",
    "amari_ica",
    "anisotropy",
    "at_point",
    "attention_entropy",
    "attractors",
    "canonical_correlations",
    "capture",
    "cca",
    "change_points",
    "choice_accuracy",
    "closed_orbit_rate",
    "clumping_p_value",
    "cluster_means",
    "compare_preferences",
    "concentration",
    "contextual_decomposition",
    "control_labels",
    "copying_scores",
    "correlation_dimension",
    "cosine_distances",
    "cosine_kernel",
    "critical_step",
    "decompositional_interdependence",
    "decorrelation_lag",
    "dependency_distances",
    "description_length",
    "deviation",
    "deviation_floor",
    "diagnostic_probe",
    "effective_dimension",
    "exact_products",
    "exchange_error",
    "extremum",
    "extremum_interval",
    "extremum_order",
    "filter_normalized",
    "find_heads",
    "find_rectifiers",
    "find_sites",
    "first_token_attention",
    "fit_sigmoid",
    "flips",
    "forgettability",
    "frequency_correlation",
    "gini",
    "group_variance",
    "growth_rate",
    "head_divergences",
    "head_matrices",
    "hoyer",
    "induction_scores",
    "integrate_line",
    "intrinsic_dimension",
    "iterate",
    "jackknife",
    "jackknife_similarity",
    "jensen_shannon",
    "kaplan_yorke_dimension",
    "kernel_cka",
    "kullback_leibler",
    "late_variability",
    "leading_towers",
    "linear_cka",
    "linear_kernel",
    "local_lyapunov_exponents",
    "long_run",
    "loss_barrier",
    "loss_change_allocation",
    "loss_gradient",
    "lyapunov_spectrum",
    "match_frequency",
    "match_sites",
    "match_units",
    "matrix_spectrum",
    "mds_picture",
    "most_frequent_tag",
    "nested_variance",
    "ngram_extrema",
    "normalized_attention_entropy",
    "observing",
    "off_by_one_distances",
    "onset",
    "orbit_kind",
    "pair_accuracy",
    "pair_agreement",
    "pairwise_interdependence",
    "pairwise_shapley_interaction",
    "pearson",
    "permuted_units",
    "point_between",
    "positive_eigenvalues",
    "power_law",
    "preference_standard_error",
    "primary_tower",
    "principal_components",
    "principal_course",
    "procrustes",
    "product_spectrum",
    "pwcca",
    "random_plane",
    "rankme",
    "rbf_kernel",
    "reading_fit",
    "reading_of",
    "relative_change",
    "repeated_tokens",
    "repetition_losses",
    "resolve_sites",
    "rotated_seeds",
    "rsa",
    "sentence_scores",
    "shuffled_within",
    "singular_values",
    "smooth_counterpart",
    "spearman",
    "spectral_lines",
    "split_half_reliability",
    "state_gradients",
    "surprisals",
    "survival",
    "svcca",
    "svcca_ranks",
    "sweep",
    "synchronization_offset",
    "synchronize",
    "synchronized_map",
    "table_alignment",
    "token_kurtosis",
    "token_preference",
    "train_tower_heads",
    "training_map",
    "transient_length",
    "transverse_exponents",
    "typical_words",
    "uniform_attention",
    "unit_groups",
    "vocabulary_product",
    "weight_distance",
    "white_noise_rank",
    "word_acquisition",
    "word_clusters",
    "word_surprisals",
    "word_tags",
    "zero_one_test",
]

for _name in __all__:
    if _inspect.isfunction(globals()[_name]):
        globals()[_name] = _takes_arrays(globals()[_name])
