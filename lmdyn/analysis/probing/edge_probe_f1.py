"""Micro-F1 of edge probes: the definition of an answer, and the score of summed counts."""

import torch.nn.functional as F
from torch import Tensor

__all__ = ["f1_counts", "micro_f1", "one_hot"]


def f1_counts(logits: Tensor, labels: Tensor, multi_label: bool) -> tuple[Tensor, Tensor, int]:
    """Count the right answers and the answers of each of S probes, and the true labels, for some spans.

    With one label per span, the answer is the highest logit; with any number of labels, each logit above 0 is an
    answer. A span with a NaN logit has no right answer.

    Args:
        logits: logits, (S, n, C).
        labels: (n,) classes, or (n, C) ones and zeros.
        multi_label: whether a span can have any number of labels.

    Returns:
        Right answers (S,), answers (S,), and number of true labels.

    Raises:
        ValueError: if there are no classes, or if the numbers of labels and spans differ.

    Example:
        >>> right, answers, gold = f1_counts(torch.tensor([[[2.0, -1.0], [3.0, 1.0]]]), torch.tensor([0, 1]), True)
        >>> right.tolist(), answers.tolist(), gold
        ([2], [3], 2)
    """
    if logits.shape[-1] == 0 or logits.shape[1] != len(labels):
        raise ValueError(
            f"expected logits (probes, spans, classes) and one label per span, got {tuple(logits.shape)} and "
            f"{len(labels)} labels"
        )
    known = ~logits.isnan().any(-1)  # a comparison with NaN would also count as an answer
    if not multi_label:
        right = ((logits.argmax(-1) == labels) & known).sum(1)
        return right, right.new_full(right.shape, len(labels)), len(labels)
    answered, gold = logits > 0, one_hot(labels, logits.shape[-1]).bool()
    return (answered & gold & known[..., None]).sum((1, 2)), answered.sum((1, 2)), int(gold.sum())


def micro_f1(tp: Tensor, fp: Tensor, fn: Tensor) -> Tensor:
    """Compute 2 TP / (2 TP + FP + FN) of summed counts, float64 on the CPU; NaN without answers and true labels."""
    tp, fp, fn = (count.cpu().double() for count in (tp, fp, fn))
    return 2 * tp / (2 * tp + fp + fn)


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Convert labels (N,) to integers 0 and 1, (N, C); labels with one column per class are unchanged."""
    return F.one_hot(labels, num_classes) if labels.ndim == 1 else labels.long()
