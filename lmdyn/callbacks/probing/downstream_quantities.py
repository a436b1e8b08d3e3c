"""Quantities of ``Downstream``."""

from lmdyn.callbacks.observing.schema import Quantity

__all__ = ["DOWNSTREAM"]

_TASK, _TASKS = ("<task>",), ("<tasks>",)


def _metric(name: str, meaning: str, unit: str = "", low: float = 0.0) -> Quantity:
    return Quantity(name, meaning, unit, low=low, high=1.0, better="higher", tags=_TASK)


DOWNSTREAM = (
    _metric("score", "Score of a task on its development set: an accuracy, an F1 or a correlation.", low=-1.0),
    Quantity("score_error", "Standard error of the score over development examples.", low=0.0, tags=_TASK),
    Quantity("baseline", "Score of predicting without reading.", low=-1.0, high=1.0, tags=_TASK),
    Quantity(
        "average", "Mean score of these tasks, joined by +.", low=-1.0, high=1.0, better="higher", tags=_TASKS
    ),
    Quantity("average_error", "Standard error of the average, for independent tasks.", low=0.0, tags=_TASKS),
    Quantity("average_baseline", "Mean of the baselines of these tasks.", low=-1.0, high=1.0, tags=_TASKS),
    _metric("accuracy", "Development examples whose label is predicted; for MNLI, by set.", "share"),
    _metric("f1", "F1 of label 1, or of the words of answers."),
    _metric("matthews", "Matthews' correlation, 0 if it is undefined.", low=-1.0),
    _metric("pearson", "Pearson's correlation with the scores, 0 if it is undefined.", low=-1.0),
    _metric("spearman", "Spearman's correlation with the scores, 0 if it is undefined.", low=-1.0),
    _metric("exact_match", "Answers equal to those of the data.", "share"),
    Quantity(
        "train_loss", "Mean loss of the last tenth of the fine-tuning: cross-entropy in nats, or squared error.",
        low=0.0, better="lower", tags=_TASK,
    ),
)  # fmt: skip
