"""Monotone courses without a break: splines whose knots are far apart."""

import numpy as np
import numpy.typing as npt
import scipy

__all__ = ["fit_monotone"]

Array = npt.NDArray[np.float64]

_DEGREE = 3


def fit_monotone(x: Array, y: Array, spacing: float) -> Array:
    """Fit a monotone cubic spline by least squares: rising or falling, whichever fits better.

    The spline is a sum of integrated B-splines with weights of one sign, and has two continuous derivatives. Its knots
    are evenly spaced, at least ``spacing`` apart, so that it cannot follow changes that are sharper.

    Args:
        x: (n,) increasing positions, such as log10 of the steps.
        y: (n,) values.
        spacing: least distance of knots, in units of x.

    Returns:
        The fitted values, (n,).

    Reference: monotone splines: Ramsay 1988.

    Example:
        >>> x = np.linspace(0, 3, 20)
        >>> bool(np.abs(fit_monotone(x, np.exp(-x), 0.5) - np.exp(-x)).max() < 1e-3)
        True
    """
    basis = _rising(x, spacing)
    fits = []
    for sign in (1.0, -1.0):
        # an intercept of any sign is the difference of two positive ones
        design = np.column_stack([np.ones_like(x), -np.ones_like(x), sign * basis])
        weights, rest = scipy.optimize.nnls(design, y, maxiter=50 * design.shape[1])
        fits.append((float(rest), design @ weights))
    return np.asarray(min(fits, key=lambda fit: fit[0])[1])


def _rising(x: Array, spacing: float) -> Array:
    """Return rising basis functions from 0 to 1 at the positions, (n, functions)."""
    low, high = float(x[0]), float(x[-1])
    parts = max(1, int((high - low) / spacing))
    inner = np.linspace(low, high, parts + 1)
    knots = np.concatenate([[low] * _DEGREE, inner, [high] * _DEGREE])
    number = len(knots) - _DEGREE - 1
    # sums of the last B-splines rise monotonically from 0 to 1 (they add up to 1)
    values = scipy.interpolate.BSpline.design_matrix(np.clip(x, low, high), knots, _DEGREE).toarray()
    return np.asarray(values[:, ::-1].cumsum(1)[:, : number - 1])
