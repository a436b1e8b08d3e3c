"""Metrics of downstream tasks: those of GLUE and SQuAD 2.0, and a single score per task."""

import math
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.statistics.correlation import pearson, spearman
from lmdyn.analysis.statistics.precision import at_least_float32

__all__ = [
    "Metrics",
    "Spans",
    "best_spans",
    "classification_metrics",
    "exact_match",
    "normalized_answer",
    "regression_metrics",
    "span_metrics",
    "task_score",
    "token_f1",
]

Metrics = Literal["chiang2020", "glue"]
"""The convention of scores: that of Chiang, Huang & Lee 2020, or of GLUE."""

_SCORES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "chiang2020": {"MRPC": ("f1",), "QQP": ("f1",)},
    "glue": {
        "CoLA": ("matthews",),
        "acceptability": ("matthews",),
        "MRPC": ("f1", "accuracy"),
        "QQP": ("f1", "accuracy"),
        "STS-B": ("pearson", "spearman"),
        "similarity": ("pearson", "spearman"),
    },
}
_BY_KIND = {"classification": ("accuracy",), "regression": ("spearman",), "span": ("f1", "exact_match")}


def task_score(
    task: str, kind: str, values: Mapping[str, Mapping[str, float]], metrics: Metrics = "chiang2020"
) -> float:
    """Compute a single score of a task: the mean of its metrics, and over its evaluation sets (MNLI has two).

    ============== ===================== ===========================
    task           ``chiang2020``        ``glue``
    ============== ===================== ===========================
    CoLA           accuracy              Matthews correlation
    MRPC, QQP      F1                    mean of F1 and accuracy
    STS-B          Spearman              mean of Pearson and Spearman
    SQuAD2.0       mean of F1 and EM     mean of F1 and EM
    others         accuracy              accuracy
    ============== ===================== ===========================

    Other regressions use Spearman's correlation; with ``glue``, the grammar's ``acceptability`` is scored as CoLA and
    its ``similarity`` as STS-B.

    Args:
        task: name of the task.
        kind: ``classification``, ``regression`` or ``span``.
        values: for each evaluation set, the values by metric.
        metrics: convention of scores.

    Returns:
        Score in [0, 1], or in [−1, 1] for correlations.

    Reference: Chiang, Huang & Lee 2020, figures 5 and 12; Wang et al. 2018, section 3.

    Example:
        >>> task_score("MRPC", "classification", {"": {"accuracy": 0.8, "f1": 0.9}})
        0.9
        >>> task_score("MNLI", "classification", {"matched": {"accuracy": 0.5}, "mismatched": {"accuracy": 1.0}})
        0.75
    """
    wanted = _SCORES[metrics].get(task, _BY_KIND[kind])
    return float(np.mean([[of_set[metric] for metric in wanted] for of_set in values.values()]))


def classification_metrics(
    predictions: Int[Tensor, "n"], labels: Int[Tensor, "n"], num_labels: int
) -> dict[str, float]:
    """Compute the accuracy; for two labels also the F1 of label 1 and Matthews' correlation (0 if undefined).

    Args:
        predictions: (n,) predicted labels.
        labels: (n,) true labels.
        num_labels: number of different labels.

    Raises:
        ValueError: if there are no examples, or if the numbers of predictions and labels differ.

    Example:
        >>> classification_metrics(torch.tensor([1, 1, 0]), torch.tensor([1, 0, 0]), 2)["accuracy"]
        0.666...
    """
    _check_examples(predictions, labels)
    values = {"accuracy": float((predictions == labels).double().mean())}
    if num_labels == 2:
        n = len(labels)
        true = int((labels == 1).sum())
        predicted = int((predictions == 1).sum())
        both = int(((labels == 1) & (predictions == 1)).sum())
        values["f1"] = 2 * both / (true + predicted) if true + predicted else 0.0
        below = math.sqrt(true * (n - true) * predicted * (n - predicted))
        values["matthews"] = (n * both - true * predicted) / below if below else 0.0
    return values


def regression_metrics(predictions: Float[Tensor, "n"], labels: Float[Tensor, "n"]) -> dict[str, float]:
    """Compute Pearson's and Spearman's correlation; 0 if undefined: a constant gives no order.

    See :mod:`lmdyn.analysis.statistics.correlation`; both are also undefined for fewer than 3 examples. NaN if a
    prediction or a label is not finite: a diverged model has no score.

    Raises:
        ValueError: if there are no examples, or if the numbers of predictions and labels differ.

    Example:
        >>> found = regression_metrics(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([0.0, 1.0, 2.0]))
        >>> round(found["spearman"], 6)
        1.0
    """
    _check_examples(predictions, labels)
    a = predictions.double().cpu().numpy()
    b = labels.double().cpu().numpy()
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return {"pearson": math.nan, "spearman": math.nan}
    values = {"pearson": pearson(a, b), "spearman": spearman(a, b)}
    return {name: value if np.isfinite(value) else 0.0 for name, value in values.items()}


def _check_examples(predictions: Tensor, labels: Tensor) -> None:
    if not len(labels):
        raise ValueError("labels is empty: expected labels of at least one example")
    if predictions.shape != labels.shape:
        raise ValueError(f"expected predictions shaped {tuple(labels.shape)}, got {tuple(predictions.shape)}")


# ------------------------------------------------------------------------------------------------ spans


def normalized_answer(text: str) -> str:
    """Normalize an answer as SQuAD compares it: lower case, without punctuation and articles, single spaces.

    Reference: Rajpurkar et al. 2016, section 6.

    Example:
        >>> normalized_answer("The  U.S. Army,")
        'us army'
    """
    letters = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(?:a|an|the)\b", " ", letters).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Return 1 if the normalized prediction is one of the answers; an empty prediction means "no answer".

    Example:
        >>> exact_match("the cat", ["Cat.", "dog"]), exact_match("", []), exact_match("cat", [])
        (1.0, 1.0, 0.0)
    """
    return max(float(normalized_answer(prediction) == a) for a in _gold(answers))


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """Compute the harmonic mean of precision and recall of the words, for the best answer; 1 or 0 if there is none.

    Example:
        >>> round(token_f1("a black cat", ["the cat"]), 3), token_f1("", [])
        (0.667, 1.0)
    """
    return max(_f1(normalized_answer(prediction).split(), a.split()) for a in _gold(answers))


def _gold(answers: Sequence[str]) -> list[str]:
    """Return the normalized answers; empty ones do not count, and no answers are one empty answer."""
    return [a for a in map(normalized_answer, answers) if a] or [""]


def _f1(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    common = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * common / (len(predicted) + len(gold))


def span_metrics(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Compute exact match and F1 of SQuAD 2.0: means over all questions, each in [0, 1].

    Args:
        predictions: an answer to each question, empty for "no answer".
        answers: the answers to each question, empty if there are none.

    Raises:
        ValueError: if there are no questions, or if the numbers of predictions and questions differ.

    Reference: Rajpurkar, Jia & Liang 2018, section 5.

    Example:
        >>> span_metrics(["cat", ""], [["the cat"], ["dog"]])
        {'exact_match': 0.5, 'f1': 0.5}
    """
    if not answers or len(predictions) != len(answers):
        raise ValueError(
            f"expected at least one question and one prediction for each question, got {len(answers)} questions and "
            f"{len(predictions)} predictions"
        )
    pairs = list(zip(predictions, answers, strict=True))
    return {
        "exact_match": float(np.mean([exact_match(p, a) for p, a in pairs])),
        "f1": float(np.mean([token_f1(p, a) for p, a in pairs])),
    }


@dataclass(frozen=True)
class Spans:
    """The best span of each window; see :func:`best_spans`.

    Attributes:
        start: (n,) first position.
        end: (n,) last position.
        score: (n,) sum of its logits; -inf if the window has no span, NaN if a logit within it is NaN.
        null: (n,) score of "no answer": the sum of both logits at position 0.
    """

    start: Int[Tensor, "n"]
    end: Int[Tensor, "n"]
    score: Float[Tensor, "n"]
    null: Float[Tensor, "n"]


def best_spans(
    start: Float[Tensor, "n time"],
    end: Float[Tensor, "n time"],
    inside: Bool[Tensor, "n time"],
    max_length: int = 30,
) -> Spans:
    """Find the span with the highest sum of start and end logits, start ≤ end, of at most ``max_length`` positions.

    A question has no answer if ``null - score > 0`` (a threshold of 0), with the lowest null and the best span of all
    windows of its text.

    Args:
        start: (n, time) logits for each position to be the first.
        end: (n, time) logits for each position to be the last.
        inside: (n, time) whether an answer can start and end at each position.
        max_length: maximum number of positions of a span.

    Raises:
        ValueError: if the shapes differ.

    Reference: Devlin et al. 2019, section 4.3.

    Example:
        >>> start, end = torch.tensor([[9.0, 1.0, 3.0, 2.0]]), torch.tensor([[9.0, 5.0, 0.0, 4.0]])
        >>> spans = best_spans(start, end, torch.tensor([[False, True, True, True]]))
        >>> spans.start.item(), spans.end.item(), spans.score.item(), spans.null.item()
        (2, 3, 7.0, 18.0)
    """
    if not start.shape == end.shape == inside.shape:
        raise ValueError(
            f"start {tuple(start.shape)}, end {tuple(end.shape)}, inside {tuple(inside.shape)}: expected equal shapes"
        )
    start = start.to(at_least_float32(start))
    end = end.to(at_least_float32(end))
    time = start.shape[1]
    low = torch.full_like(start, -torch.inf)
    first = torch.where(inside, start, low)
    last = torch.where(inside, end, low)
    score, at, length = (
        low[:, 0].clone(),
        torch.zeros_like(low[:, 0]).long(),
        torch.zeros_like(low[:, 0]).long(),
    )
    for d in range(min(max_length, time)):
        best = (first[:, : time - d] + last[:, d:]).max(1)
        better = best.values > score
        score = torch.where(better, best.values, score)
        at = torch.where(better, best.indices, at)
        length = torch.where(better, d, length)
    # comparisons with NaN are False, so another span would be selected
    unknown = ((start.isnan() | end.isnan()) & inside).any(1)
    score = torch.where(unknown, torch.nan, score)
    return Spans(at, at + length, score, start[:, 0] + end[:, 0])
