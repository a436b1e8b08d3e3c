"""Letters as paths for a pen: the outline of a glyph, in steps of equal length."""

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.textpath import TextPath
from torch import Tensor

__all__ = ["letter_path", "pen_velocity"]

_PIECES = 64  # straight pieces per curve between two knots


def letter_path(letter: str, steps: int, font: str = "DejaVu Sans") -> Float[Tensor, "_ 2"]:
    """Return points along the outline of a letter, at equal distances along it, from its first point back to it.

    Args:
        letter: one character whose glyph has a single outline, such as U and S; O has two.
        steps: number of steps, from 1.
        font: name of a font that matplotlib can find. DejaVu Sans is part of matplotlib; the publication's is Arial.

    Returns:
        (steps + 1, 2) float64, x to the right and y upwards; the letter is 1 high, its lower left corner at 0. The
        first and the last point are the same.

    Raises:
        ValueError: for several characters, an unknown font, a glyph without a single outline, or less than one step.

    Reference: Inoue et al. 2022, appendix E.

    Example:
        >>> path = letter_path("U", 28)
        >>> path.shape, bool((path[0] == path[-1]).all()), path[:, 1].max().round(decimals=2).item()
        (torch.Size([29, 2]), True, 1.0)
    """
    if steps < 1:
        raise ValueError(f"steps is {steps}: expected at least 1")
    if len(letter) != 1 or letter.isspace():
        raise ValueError(f"letter is {letter!r}: expected one visible character")
    points = _outline(letter, font)
    along = np.concatenate([[0.0], np.linalg.norm(np.diff(points, axis=0), axis=1).cumsum()])
    at = np.linspace(0, along[-1], steps + 1)
    path = np.stack([np.interp(at, along, points[:, axis]) for axis in (0, 1)], 1)
    path[-1] = path[0]
    return torch.from_numpy(path)


def pen_velocity(letter: str, steps: int, font: str = "DejaVu Sans") -> Float[Tensor, "steps 2"]:
    """Return the steps of :func:`letter_path`: (steps, 2) differences of its points, with sum 0.

    A single step is 0.

    Example:
        >>> pen_velocity("S", 28).sum(0).abs().max().item() < 1e-12
        True
    """
    return letter_path(letter, steps, font).diff(dim=0)


def _outline(letter: str, font: str) -> npt.NDArray[np.float64]:
    """Return the outline (points, 2) as a closed line of short straight pieces, 1 high."""
    properties = FontProperties(family=font)
    try:
        findfont(properties, fallback_to_default=False)
    except ValueError as error:
        raise ValueError(
            f"font {font!r} is not installed: install the font, or use another font, such as 'DejaVu Sans'"
        ) from error
    glyph = TextPath((0, 0), letter, size=100, prop=properties)
    outlines = int((np.asarray(glyph.codes) == glyph.MOVETO).sum())
    if outlines != 1:
        raise ValueError(
            f"the glyph {letter!r} of {font!r} has {outlines} outlines: choose a letter with one outline, such as U"
        )
    share = np.linspace(0, 1, _PIECES + 1)[1:]
    pieces = []
    for curve, code in cast(Any, glyph.iter_bezier()):
        end = share[-1:] if code in (glyph.MOVETO, glyph.LINETO, glyph.CLOSEPOLY) else share
        pieces.append(np.atleast_2d(curve(end)))
    points: npt.NDArray[np.float64] = np.concatenate([*pieces, pieces[0]])
    points -= points.min(0)
    points /= points[:, 1].max()
    return points
