"""The order in which groups of words are learned."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["learning_order", "rescaled"]


def rescaled(accuracy: Float[Tensor, "steps *groups"]) -> Float[Tensor, "steps *groups"]:
    """Divide accuracy by that of the last observation, by group; NaN if the last is 0 or not finite.

    Values are at least 0, and above 1 if a group had a higher accuracy than it has at the end.

    Reference: Chiang, Huang & Lee 2020, figure 1.

    Example:
        >>> rescaled(torch.tensor([[0.1, 0.0], [0.4, 0.0]]))
        tensor([[0.2500,    nan],
                [1.0000,    nan]])
    """
    last = accuracy[-1:]
    return accuracy / torch.where((last > 0) & last.isfinite(), last, torch.nan)


def learning_order(
    steps: Int[Tensor, "steps"],
    accuracy: Float[Tensor, "steps groups"],
    level: float = 0.5,
    least: float = 0.0,
) -> Float[Tensor, "groups"]:
    """Return the training step at which each group's rescaled accuracy first reaches ``level``.

    Between two observations, the curve is taken as linear in log(1 + step). A group that has reached the level at the
    first observation gets the step of this observation. The publication reads from its curves which groups rise
    earlier or more steeply; this is a number for it.

    Args:
        steps: training steps (optimizer updates) of the observations, increasing, at least 0.
        accuracy: accuracy of each group at each step, at least 0; NaN if not observed.
        level: share of the accuracy at the group's last observation, above 0 and at most 1.
        least: a group whose last accuracy is not above this value was not learned; its curve is mostly noise.

    Returns:
        (groups,) float64 steps; NaN for a group that has no value or was not learned.

    Raises:
        ValueError: if steps do not increase, if the number of rows is not that of the steps, or if an accuracy is
            infinite.

    Reference: Chiang, Huang & Lee 2020, section 3 and appendix C.4.

    Example:
        >>> learning_order(torch.tensor([0, 9, 99]), torch.tensor([[0.0, 0.0], [0.4, 0.0], [0.4, 0.8]])).tolist()
        [2.16..., 30.62...]
    """
    if len(steps) != len(accuracy) or (steps.diff() <= 0).any():
        raise ValueError(
            f"expected one row of accuracy for each increasing step, got {len(accuracy)} rows for steps "
            f"{', '.join(map(str, steps.tolist()))}"
        )
    if accuracy.isinf().any():
        raise ValueError("expected finite accuracies, or NaN for a group without observations, got infinity")
    reached = torch.full((accuracy.shape[1],), torch.nan, dtype=torch.float64)
    place = steps.double().log1p()
    for group, values in enumerate(accuracy.double().T):
        there = ~values.isnan()
        if not there.any() or values[there][-1] <= least:
            continue
        x, share = place[there], rescaled(values[there])
        first = int((share >= level).nonzero()[0])  # the last share is 1
        at = x[first]
        if first > 0:
            part = (level - share[first - 1]) / (share[first] - share[first - 1])
            at = x[first - 1] + part * (x[first] - x[first - 1])
        reached[group] = at.expm1()
    return reached
