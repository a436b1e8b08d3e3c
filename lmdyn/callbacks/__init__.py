"""Observers and what they stand on: when to look, what to gather, which analysis to call, what to log."""

from lmdyn.callbacks.checkpoint import ScheduledCheckpoint
from lmdyn.callbacks.learning_curves import LearningCurves
from lmdyn.callbacks.observer import Observer, Run, StreamingObserver
from lmdyn.callbacks.probe import Accumulator, ProbeSet, Seen
from lmdyn.callbacks.run_state import RunState
from lmdyn.callbacks.schedule import Progress, Steps
from lmdyn.callbacks.sparsity import Sparsity
from lmdyn.callbacks.store import ObservationStore

__all__ = [
    "Accumulator",
    "LearningCurves",
    "ObservationStore",
    "Observer",
    "ProbeSet",
    "Progress",
    "Run",
    "RunState",
    "ScheduledCheckpoint",
    "Seen",
    "Sparsity",
    "Steps",
    "StreamingObserver",
]
