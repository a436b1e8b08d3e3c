"""Observers and their foundations: schedules, probe sets, calls of analyses, stored and logged observations."""

from lmdyn.callbacks.attention.attention_patterns import AttentionPatterns
from lmdyn.callbacks.attention.induction import Induction
from lmdyn.callbacks.dynamics.depth_performance import DepthPerformance
from lmdyn.callbacks.dynamics.dynamics_settings import DynamicsNumerics, LongTerm, ShortTerm
from lmdyn.callbacks.dynamics.encoder_dynamics import EncoderDynamics
from lmdyn.callbacks.dynamics.handwriting import Handwriting
from lmdyn.callbacks.dynamics.loop_convergence import LoopConvergence
from lmdyn.callbacks.geometry.geometry import Geometry
from lmdyn.callbacks.geometry.trajectory import Trajectory
from lmdyn.callbacks.interdependence.interdependence import Interdependence
from lmdyn.callbacks.interdependence.scaffold_rule import ScaffoldRule
from lmdyn.callbacks.landscape.curvature import Curvature
from lmdyn.callbacks.landscape.landscape import Landscape
from lmdyn.callbacks.landscape.loss_change_allocation import LossChangeAllocation
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import Accumulator, ObservedBatch, ProbeSet
from lmdyn.callbacks.observing.recording import observe_together
from lmdyn.callbacks.observing.reference import (
    Checkpoint,
    Checkpoints,
    Earlier,
    Itself,
    OwnFinal,
    OwnInitial,
    Previous,
    Reference,
)
from lmdyn.callbacks.observing.requirements import Finding, requirements
from lmdyn.callbacks.observing.run import Run
from lmdyn.callbacks.observing.streaming_observer import Sites, StreamingObserver, Watched
from lmdyn.callbacks.preference.tower_preference import TowerPreference
from lmdyn.callbacks.preference.word_clusters import WordClusters
from lmdyn.callbacks.probing.diagnostic_probe import DiagnosticProbe
from lmdyn.callbacks.probing.downstream import Downstream
from lmdyn.callbacks.probing.edge_probe import EdgeProbe
from lmdyn.callbacks.similarity.similarity import Similarity
from lmdyn.callbacks.training.checkpoint import ScheduledCheckpoint
from lmdyn.callbacks.training.forked_from import ForkedFrom
from lmdyn.callbacks.training.resume import RunState
from lmdyn.callbacks.training.time_budget import TimeBudget
from lmdyn.callbacks.weights.weight_spectra import WeightSpectra
from lmdyn.callbacks.words.choices import Choices
from lmdyn.callbacks.words.learning_curves import LearningCurves
from lmdyn.callbacks.words.minimal_pairs import MinimalPairs
from lmdyn.callbacks.words.ngram_divergence import NgramDivergence
from lmdyn.callbacks.words.reading import Reading
from lmdyn.callbacks.words.sparsity import Sparsity
from lmdyn.callbacks.words.surprisals import Surprisals
from lmdyn.callbacks.words.token_learning import TokenLearning
from lmdyn.callbacks.words.world_knowledge import WorldKnowledge
from lmdyn.runs.schedule import Progress, Steps
from lmdyn.runs.schema import Quantity, select, wide
from lmdyn.runs.store import ObservationStore

__all__ = [
    "Accumulator",
    "AttentionPatterns",
    "Checkpoint",
    "Checkpoints",
    "Choices",
    "Curvature",
    "DepthPerformance",
    "DiagnosticProbe",
    "Downstream",
    "DynamicsNumerics",
    "Earlier",
    "EdgeProbe",
    "EncoderDynamics",
    "Finding",
    "ForkedFrom",
    "Geometry",
    "Handwriting",
    "Induction",
    "Interdependence",
    "Itself",
    "Landscape",
    "LearningCurves",
    "LongTerm",
    "LoopConvergence",
    "LossChangeAllocation",
    "MinimalPairs",
    "NgramDivergence",
    "ObservationStore",
    "ObservedBatch",
    "Observer",
    "OwnFinal",
    "OwnInitial",
    "Previous",
    "ProbeSet",
    "Progress",
    "Quantity",
    "Reading",
    "Reference",
    "Run",
    "RunState",
    "ScaffoldRule",
    "ScheduledCheckpoint",
    "ShortTerm",
    "Similarity",
    "Sites",
    "Sparsity",
    "Steps",
    "StreamingObserver",
    "Surprisals",
    "TimeBudget",
    "TokenLearning",
    "TowerPreference",
    "Trajectory",
    "Watched",
    "WeightSpectra",
    "WordClusters",
    "WorldKnowledge",
    "observe_together",
    "requirements",
    "select",
    "wide",
]
