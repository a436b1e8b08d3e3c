"""Micro-F1 of edge probes: the definition of an answer, and the score of summed counts."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lmdyn.analysis.inspection.predictions import hits

__all__ = ["f1_counts", "micro_f1", "one_hot"]


def f1_counts(logits: Tensor, labels: Tensor, multi_label: bool) -> tuple[Tensor, Tensor, int]:
    """Count the right answers and the answers of each of S probes, and the true labels, for some spans.

    With one label per span, the answer is the highest logit; with any number of labels, each logit above 0 is an
    answer. If the highest logit of a span is not finite, the right answers of the probe are NaN, and so is its F1.

    Args:
        logits: logits, (S, n, C).
        labels: (n,) classes, or (n, C) ones and zeros.
        multi_label: whether a span can have any number of labels.

    Returns:
        Right answers (S,) float64, answers (S,), and number of true labels.

    Raises:
        ValueError: if there are no classes, or if the numbers of labels and spans differ.

    Example:
        >>> right, answers, gold = f1_counts(torch.tensor([[[2.0, -1.0], [3.0, 1.0]]]), torch.tensor([0, 1]), True)
        >>> right.tolist(), answers.tolist(), gold
        ([2.0], [3], 2)
    """
    if logits.shape[-1] == 0 or logits.shape[1] != len(labels):
        raise ValueError(
            f"expected logits (probes, spans, classes) and one label per span, got {tuple(logits.shape)} and "
            f"{len(labels)} labels"
        )
    answered = (logits > 0).sum((1, 2))
    if not multi_label:
        right = hits(logits, labels.expand(logits.shape[:2])).double().sum(1)
        return right, torch.full_like(answered, len(labels)), len(labels)
    gold = one_hot(labels, logits.shape[-1]).bool()
    right = torch.where(logits.amax(-1).isfinite(), ((logits > 0) & gold).sum(-1).double(), torch.nan).sum(1)
    return right, answered, int(gold.sum())


def micro_f1(tp: Tensor, fp: Tensor, fn: Tensor) -> Tensor:
    """Compute 2 TP / (2 TP + FP + FN) of summed counts, float64 on the CPU; NaN without answers and true labels."""
    tp, fp, fn = (count.cpu().double() for count in (tp, fp, fn))
    return 2 * tp / (2 * tp + fp + fn)


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Convert labels (N,) to integers 0 and 1, (N, C); labels with one column per class are unchanged."""
    return F.one_hot(labels, num_classes) if labels.ndim == 1 else labels.long()
