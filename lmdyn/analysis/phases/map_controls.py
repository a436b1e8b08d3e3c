"""What a training map shows of curves without states: smooth counterparts, and rotated seeds."""

import numpy as np
import numpy.typing as npt

from lmdyn.analysis.phases.smooth_course import fit_monotone
from lmdyn.analysis.phases.training_map import seed_order, state_likelihood

__all__ = ["clumping_p_value", "rotated_seeds", "smooth_counterpart"]

Array = npt.NDArray[np.float64]


def smooth_counterpart(
    steps: npt.ArrayLike, values: npt.ArrayLike, *, spacing: float = 0.5, seed: int = 0
) -> Array:
    """Return smooth, monotone curves with the noise of the given ones: what they would be without phases.

    Each curve is replaced by its monotone spline in log10 of the step (knots at least ``spacing`` decades apart; the
    smooth alternative of :func:`~lmdyn.analysis.phases.change_points.change_points`), plus its residuals in random
    order. The residuals of all measures of a seed keep their steps together.

    Args:
        steps: (steps,) increasing and positive.
        values: (seeds, steps, measures).
        spacing: least distance of knots in decades.
        seed: seed of the orders; the order of the seeds does not matter.

    Returns:
        Curves in the shape of ``values``.

    Example:
        >>> steps = 10 ** np.linspace(0, 3, 20)
        >>> jumps = np.repeat((np.arange(20) > 9.5)[None, :, None], 2, axis=0)
        >>> smooth = smooth_counterpart(steps, jumps)
        >>> smooth.shape, bool(np.abs(np.diff(smooth[0, :, 0])).max() < 1)
        ((2, 20, 1), True)
    """
    x = np.log10(np.asarray(steps, np.float64))
    given = np.asarray(values, np.float64)
    generator = np.random.default_rng(seed)
    courses = np.stack(
        [np.stack([fit_monotone(x, curve, spacing) for curve in one.T], axis=1) for one in given]
    )
    orders = np.empty((len(given), len(x)), dtype=np.int64)
    orders[seed_order(given)] = [generator.permutation(len(x)) for _ in given]
    noise = [rest[order] for rest, order in zip(given - courses, orders, strict=True)]
    return np.asarray(courses + np.stack(noise))


def rotated_seeds(values: npt.ArrayLike, generator: np.random.Generator) -> Array:
    """Return as many seeds with exactly the same mean and covariance over steps and measures, rotated at random.

    If seeds are independent draws of a Gaussian process, rotated ones have the same distribution, whatever its mean
    course and its covariance: seeds differ gradually, in noise, speed or level. Seeds that fork into two groups do not:
    rotated ones lie between them.

    Args:
        values: (seeds, steps, measures).
        generator: source of the rotation.

    Returns:
        Curves in the shape of ``values``.

    Reference: Langsrud 2005, "Rotation tests".

    Example:
        >>> seeds = np.random.default_rng(0).standard_normal((5, 3, 2))
        >>> other = rotated_seeds(seeds, np.random.default_rng(1))
        >>> [np.allclose(of(other, axis=0), of(seeds, axis=0)) for of in (np.mean, np.std, np.max)]
        [True, True, False]
    """
    given = np.asarray(values, np.float64)
    n = len(given)
    # an orthonormal basis whose first vector is constant; the rest is rotated by a uniformly distributed matrix
    basis = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, 1:]]))[0]
    turned, signs = np.linalg.qr(generator.standard_normal((n - 1, n - 1)))
    turned = turned * np.sign(np.diag(signs))
    rows = given.reshape(n, -1)
    mean = rows.mean(0)
    deviations = basis[:, 1:] @ turned @ (basis[:, 1:].T @ (rows - mean))
    return np.asarray((mean + deviations).reshape(given.shape))


def clumping_p_value(
    values: npt.ArrayLike, *, most: int = 8, rotations: int = 39, restarts: int = 1, seed: int = 0
) -> float:
    """Return the p-value of "seeds differ gradually", against observations that lie closer to few points.

    The statistic is :func:`~lmdyn.analysis.phases.training_map.state_likelihood`, and its distribution that of
    :func:`rotated_seeds`. The test is exact for any Gaussian process. A small p-value does not say that
    seeds fork: changes that come at different steps, even smooth ones, are no Gaussian process either.

    Args:
        values: (seeds, steps, measures).
        most: largest number of states.
        rotations: number of rotations; the p-value is at least 1 / (rotations + 1).
        restarts: number of starting points of each fit.
        seed: seed of rotations and starting points; the order of the seeds does not matter.

    Example:
        >>> noise = 0.1 * np.random.default_rng(0).standard_normal((20, 6, 1))
        >>> fork = np.where(np.arange(20) < 10, 1.0, -1.0)[:, None, None] + noise
        >>> clumping_p_value(fork, most=2, rotations=19)
        0.05
    """
    given = np.asarray(values, np.float64)
    if rotations < 19:
        raise ValueError(f"expected at least 19 rotations, got {rotations}")
    given = given[seed_order(given)]
    generator = np.random.default_rng(seed)
    observed = state_likelihood(given, most=most, restarts=restarts, seed=seed)
    null = [
        state_likelihood(rotated_seeds(given, generator), most=most, restarts=restarts, seed=seed)
        for _ in range(rotations)
    ]
    return (1 + sum(value >= observed for value in null)) / (rotations + 1)
