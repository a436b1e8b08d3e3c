"""Copying by an attention head, from the eigenvalues of its output-value circuit between tokens."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.statistics.precision import at_least_float32, exact_float

__all__ = ["copying_scores", "positive_eigenvalues", "vocabulary_product"]

_CHUNK = 4096  # rows of the vocabulary at once


def positive_eigenvalues(matrices: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    """Return Σ Re λ / Σ |λ| over the eigenvalues λ of each matrix, float64.

    1 if all eigenvalues are positive real numbers, −1 if all are negative ones; near 0 for random matrices. NaN for a
    matrix without an eigenvalue other than 0, and for one with entries that are not finite.

    Reference: Elhage et al. 2021, "Copying" (summary by eigenvalues).

    Example:
        >>> positive_eigenvalues(torch.stack([torch.eye(2), -torch.eye(2), torch.tensor([[0.0, -1], [1, 0]])]))
        tensor([ 1., -1.,  0.], dtype=torch.float64)
    """
    a: Tensor = exact_float(matrices).cpu()
    finite = a.isfinite().all(-1).all(-1)
    values = torch.linalg.eigvals(a.where(finite[..., None, None], 0))
    total = values.abs().sum(-1)
    share: Tensor = values.real.sum(-1) / total.where(total > 0, 1)
    return share.where(finite & (total > 0), torch.nan)


def vocabulary_product(
    embedding: Float[Tensor, "vocabulary d"], unembedding: Float[Tensor, "_ e"]
) -> Float[Tensor, "d e"]:
    """Compute W_E W_U, the sum over the vocabulary of the products of a token's input and output vector, in float64.

    Products are in at least float32, by parts of the vocabulary, whose sums are float64.

    Args:
        embedding: one row per token id; W_E transposed in the notation of Elhage et al.
        unembedding: one row per token id, as the weight of an output layer: W_U.

    Raises:
        ValueError: if the tables have no rows, or different numbers of them.

    Example:
        >>> vocabulary_product(torch.eye(2), torch.tensor([[1.0], [2.0]]))
        tensor([[1.],
                [2.]], dtype=torch.float64)
    """
    if len(embedding) != len(unembedding) or not len(embedding):
        raise ValueError(
            f"embedding and unembedding have {len(embedding)} and {len(unembedding)} rows: expected one row per token"
        )
    dtype = torch.promote_types(at_least_float32(embedding), at_least_float32(unembedding))
    parts = zip(embedding.detach().split(_CHUNK), unembedding.detach().split(_CHUNK), strict=True)
    return torch.stack([exact_float(a.to(dtype).T @ b.to(dtype)) for a, b in parts]).sum(0)


def copying_scores(
    v: Float[Tensor, "kv_heads d_value d"],
    o: Float[Tensor, "heads e d_value"],
    product: Float[Tensor, "d e"],
    query_group: Int[Tensor, " heads"] | None = None,
) -> Float[Tensor, "heads"]:
    """Return for each head how far it raises the logit of the token that it attends to: Σ Re λ / Σ |λ|, float64.

    λ are the eigenvalues of the head's circuit from tokens to logits, W_U W_O W_V W_E, a matrix of the size of the
    vocabulary. Those that are not 0 are the eigenvalues of W_V (W_E W_U) W_O, of the size of a head (the order of a
    product of matrices may be rotated), which are computed here. From −1 to 1; positive for copying. The circuit is the
    direct path from embedding to logits through this head alone: norm layers, biases, positions, MLPs and other heads
    are left out.

    Args:
        v: values of each key head.
        o: outputs of each head.
        product: :func:`vocabulary_product` of input and output vectors.
        query_group: for each head its row of ``v``; by default its own.

    Raises:
        ValueError: if the numbers of heads differ, or sizes do not fit.

    Returns:
        One score per head; NaN as in :func:`positive_eigenvalues`.

    Reference: Elhage et al. 2021, sections on OV circuits and copying.

    Example:
        >>> copying_scores(torch.eye(2)[None], torch.eye(2)[None], torch.eye(2, dtype=torch.float64))  # writes x itself
        tensor([1.], dtype=torch.float64)
    """
    values, outputs = exact_float(v), exact_float(o)
    if query_group is not None:
        values = values[query_group.to(values.device)]
    if len(values) != len(outputs):
        raise ValueError(
            f"v, or `query_group` if given, has {len(values)} heads, but o has {len(outputs)}: pass `query_group` with "
            "the row of v for each head of o"
        )
    if tuple(product.shape) != (values.shape[2], outputs.shape[1]) or values.shape[1] != outputs.shape[2]:
        raise ValueError(
            f"v is {tuple(v.shape)}, product {tuple(product.shape)} and o {tuple(o.shape)}: expected (kv_heads, "
            "d_value, d), (d, e) and (heads, e, d_value), with equal d, e and d_value"
        )
    return positive_eigenvalues(values @ exact_float(product).to(values.device) @ outputs)
