"""Alignment of the two tables of a language model: token embeddings and output vectors."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from lmdyn.analysis.similarity.covariance import CrossCovariance
from lmdyn.analysis.statistics.precision import exact_float, unit_size

__all__ = ["TableAlignment", "table_alignment"]

_ROWS = 8192  # tokens at a time


@dataclass(frozen=True)
class TableAlignment:
    """How similar the input and the output vectors of the tokens are.

    Attributes:
        mean_cosine: mean cosine of a token's input and output vector, over tokens of which neither is 0; NaN if there
            is none, or if the vectors have different widths.
        linear_cka: linear CKA of the tables, tokens as samples; NaN if it is undefined (fewer than 3 tokens, constant
            or non-finite vectors).
    """

    mean_cosine: float
    linear_cka: float


def table_alignment(
    inputs: Float[Tensor, "tokens d1"], outputs: Float[Tensor, "tokens d2"]
) -> TableAlignment:
    """Compute the mean cosine of each token's two vectors, and linear CKA of the two tables.

    The cosine compares coordinates, as tied weights share them; CKA compares the tables up to shift, rotation and
    scale, so that it is high if the same tokens are similar in both. Both are 1 for equal tables.

    Args:
        inputs: vector of each token in the embedding.
        outputs: vector of each token in the output layer.

    Returns:
        Mean cosine in [−1, 1] and CKA in [0, 1].

    Raises:
        ValueError: for tables with different numbers of tokens.

    Reference: Press & Wolf 2017, "Using the output embedding to improve language models"; linear CKA: see
    :func:`lmdyn.analysis.linear_cka`.

    Example:
        >>> table = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 2.0]])
        >>> found = table_alignment(table, table @ torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
        >>> abs(round(found.mean_cosine, 6)), round(found.linear_cka, 6)
        (0.0, 1.0)
    """
    if len(inputs) != len(outputs):
        raise ValueError(f"expected tables of the same tokens, got {len(inputs)} and {len(outputs)} rows")
    covariance = CrossCovariance()
    total, counted = torch.zeros(2, dtype=torch.float64)
    finite = True
    for x, y in zip(inputs.detach().split(_ROWS), outputs.detach().split(_ROWS), strict=True):
        ours, theirs = exact_float(x), exact_float(y)
        finite = finite and bool(ours.isfinite().all() and theirs.isfinite().all())
        if not finite:
            return TableAlignment(torch.nan, torch.nan)
        covariance.update(ours, theirs)
        if ours.shape == theirs.shape:
            units = [normalize(unit_size(part, 1), dim=1) for part in (ours, theirs)]
            total = total + (units[0] * units[1]).sum().cpu()
            counted = counted + (ours.any(1) & theirs.any(1)).sum().cpu()
    try:
        cka = float(covariance.linear_cka())
    except ValueError:  # undefined, as its message says
        cka = torch.nan
    cosine = float((total / counted).clamp(-1, 1)) if counted else torch.nan
    return TableAlignment(cosine, cka)
