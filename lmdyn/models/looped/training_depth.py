"""The number of iterations of a core in an update of training."""

from typing import Literal

import numpy as np

__all__ = ["Distribution", "training_depth"]

Distribution = Literal["fixed", "uniform", "poisson_lognormal"]


def training_depth(
    step: int, mean: int, distribution: Distribution, *, sigma: float = 0.5, seed: int = 0
) -> int:
    """Return the number of iterations in an update, a pure function of seed and step: equal on all ranks, resumable.

    ``uniform``: 1 … 2·mean − 1 with equal probability. ``poisson_lognormal``: 1 + Poisson(exp τ), with τ normal of
    mean ln(mean − 1) − σ²/2 and standard deviation σ: a heavy right tail, so depths far beyond the mean occur. The
    expectation is ``mean`` in each case (in the publication, mean + 1).

    Args:
        step: number of completed updates.
        mean: expected depth, at least 1.
        distribution: see above; ``fixed`` is the mean itself.
        sigma: σ of the log-normal distribution.
        seed: seed of all updates.

    Reference: Geiping et al. 2025, section 3.3.

    Example:
        >>> [training_depth(step, 4, "uniform") for step in range(8)]
        [6, 4, 7, 4, 4, 5, 4, 6]
    """
    if distribution == "fixed":
        return mean
    draw = np.random.default_rng([seed, step])
    if distribution == "uniform":
        return int(draw.integers(1, 2 * mean))
    if mean == 1:
        return 1
    rate = np.exp(draw.normal(np.log(mean - 1) - sigma**2 / 2, sigma))
    return 1 + int(draw.poisson(rate))
