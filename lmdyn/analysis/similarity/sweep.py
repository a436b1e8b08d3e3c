"""Similarity of many representations to one: a sweep over checkpoints that decomposes the reference only once."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.inspection.attributes import did_you_mean
from lmdyn.analysis.similarity.cca import cca_of, pwcca_of, svcca_of
from lmdyn.analysis.similarity.cka import kernel_cka, linear_cka_of
from lmdyn.analysis.similarity.procrustes import procrustes_of
from lmdyn.analysis.similarity.rsa import rsa
from lmdyn.analysis.similarity.scatter import Pair, Side

__all__ = ["MEASURES", "SAMPLED", "known_measures", "measure_of", "sweep"]

_FIXED = re.compile(r"svcca_([1-9]\d*)$")

MEASURES: Mapping[str, Callable[[Pair], Tensor]] = {
    "cca": cca_of,
    "svcca": svcca_of,
    "pwcca": pwcca_of,
    "linear_cka": linear_cka_of,
    "debiased_linear_cka": partial(linear_cka_of, debiased=True),
    "procrustes": procrustes_of,
}
"""Measures that require only covariances, as functions of a ``Pair``, by name."""

SAMPLED: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"kernel_cka": kernel_cka, "rsa": rsa}
"""Measures of the n × n structure of all samples, as functions of two matrices, by name."""


def measure_of(name: str) -> Callable[[Pair], Tensor] | None:
    """Return the measure of a name: one of ``MEASURES``, or ``svcca_<k>``, SVCCA at k leading directions of each side.

    Returns:
        A function of a ``Pair``; None for an unknown name.

    Example:
        >>> x = torch.tensor([[9.0, 1.0], [-9.0, 1.0], [9.0, -1.0], [-9.0, -1.0]])
        >>> measure_of("svcca_1")(Pair.of(x, x[:, 1:])), measure_of("svcca_many")
        (tensor(0., dtype=torch.float64), None)
    """
    if name in MEASURES:
        return MEASURES[name]
    fixed = _FIXED.match(name)
    return partial(svcca_of, directions=(int(fixed[1]), int(fixed[1]))) if fixed else None


def known_measures(names: Sequence[str]) -> dict[str, Callable[[Pair], Tensor]]:
    """Return the measures of some names, in their order.

    Raises:
        ValueError: for an unknown name.
    """
    found = {name: function for name in names if (function := measure_of(name)) is not None}
    if unknown := [name for name in names if name not in found]:
        near = did_you_mean(unknown[0], MEASURES) or ":"
        raise ValueError(
            f"unknown measure {', '.join(unknown)}{near} expected {', '.join(MEASURES)} or svcca_<k>"
        )
    return found


def sweep(
    xs: Iterable[Float[Tensor, "n _"]], y: Float[Tensor, "n d2"], measures: Sequence[str] = ("svcca",)
) -> dict[str, Float[Tensor, "pairs"]]:
    """Compute the similarity of many representations to one reference; the values equal those of each measure alone.

    The reference is centred and decomposed once for all pairs, each x once for all measures. ``xs`` may be a
    generator: only one matrix is held at a time.

    Args:
        xs: matrices (n, d₁), such as one site at each checkpoint; d₁ may differ between them.
        y: (n, d₂) the reference, such as this site at the last checkpoint.
        measures: names from ``MEASURES``: cca, svcca, pwcca (weights from x), linear_cka, debiased_linear_cka,
            procrustes; and ``svcca_<k>`` for k leading directions of each side.

    Returns:
        A dict from each measure to its (pairs,) float64 values in the order of ``xs``.

    Raises:
        ValueError: if a measure is unknown, or if a measure raises one; x is then called ``xs[i]``.

    Example:
        >>> y = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> sweep((y[:, :d] for d in (1, 2)), y, ["linear_cka"])
        {'linear_cka': tensor([0.7071, 1.0000], dtype=torch.float64)}
    """
    functions = known_measures(measures)
    reference = Side.of("y", y)
    values: dict[str, list[Tensor]] = {name: [] for name in measures}
    for i, x in enumerate(xs):
        pair = Pair(Side.of(f"xs[{i}]", x), reference)
        for name, function in functions.items():
            values[name].append(function(pair))
    empty = torch.empty(0, dtype=torch.float64)
    return {name: torch.stack(found) if found else empty for name, found in values.items()}
