"""Micro-F1 of edge probes: what counts as an answer, and the score of summed counts."""

import torch.nn.functional as F
from torch import Tensor

__all__ = ["f1_counts", "micro_f1", "one_hot"]


def f1_counts(logits: Tensor, labels: Tensor, multi_label: bool) -> tuple[Tensor, Tensor, int]:
    """Right answers and answers of each of S probes, and the labels to be found, of some spans.

    With one label a span, the answer is the highest logit; with any number of labels, each logit above 0 is one.
    Nothing is right of a span with a logit that is NaN.

    Args:
        logits: (S, n, C).
        labels: (n,) classes, or (n, C) ones and zeros.
        multi_label: whether a span has any number of labels.

    Returns:
        (S,) right answers, (S,) answers, number of labels.

    Raises:
        ValueError: no classes, or other labels than spans.

    Example:
        >>> right, answers, gold = f1_counts(torch.tensor([[[2.0, -1.0], [3.0, 1.0]]]), torch.tensor([0, 1]), True)
        >>> right.tolist(), answers.tolist(), gold
        ([2], [3], 2)
    """
    if logits.shape[-1] == 0 or logits.shape[1] != len(labels):
        raise ValueError(
            f"expected logits (probes, spans, classes) and a label a span, got {tuple(logits.shape)}, {len(labels)}"
        )
    known = ~logits.isnan().any(-1)  # a comparison with NaN is an answer, too
    if not multi_label:
        right = ((logits.argmax(-1) == labels) & known).sum(1)
        return right, right.new_full(right.shape, len(labels)), len(labels)
    answered, gold = logits > 0, one_hot(labels, logits.shape[-1]).bool()
    return (answered & gold & known[..., None]).sum((1, 2)), answered.sum((1, 2)), int(gold.sum())


def micro_f1(tp: Tensor, fp: Tensor, fn: Tensor) -> Tensor:
    """2 TP / (2 TP + FP + FN) of summed counts, float64 on the CPU; NaN where nothing is answered nor to be found."""
    tp, fp, fn = (count.cpu().double() for count in (tp, fp, fn))
    return 2 * tp / (2 * tp + fp + fn)


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """(N, C) whole numbers 0 and 1, of labels (N,); what has a column for each label stays."""
    return F.one_hot(labels, num_classes) if labels.ndim == 1 else labels.long()
