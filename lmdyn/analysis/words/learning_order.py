"""In which order groups of words are learned."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["learning_order", "rescaled"]


def rescaled(accuracy: Float[Tensor, "steps *groups"]) -> Float[Tensor, "steps *groups"]:
    """Accuracy over that of the last observation, by group; NaN where that is 0 or not finite.

    Values from 0; above 1 where a group was better than it is in the end.

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
    """The training step at which each group's rescaled accuracy first reaches ``level``.

    Between two observations the curve is taken as straight over log(1 + step). What is there from the first observation
    on has that step. This puts into a number what the publication reads off its curves: which rise earlier from 0, or
    are steeper.

    Args:
        steps: training steps (optimizer updates) of the observations, rising, from 0.
        accuracy: of each group at each of them, from 0; NaN: not observed there.
        level: share of the accuracy at the group's last observation, above 0 and up to 1.
        least: a group whose last accuracy is not above this was not learned: a curve over next to nothing is noise.

    Returns:
        (groups,) float64 steps; NaN for a group without any value, or that was not learned.

    Raises:
        ValueError: steps that do not rise, another number of rows than steps, a level outside of (0, 1],
            ``least`` below 0, an infinite accuracy.

    Reference: Chiang, Huang & Lee 2020, section 3 and appendix C.4.

    Example:
        >>> learning_order(torch.tensor([0, 9, 99]), torch.tensor([[0.0, 0.0], [0.4, 0.0], [0.4, 0.8]])).tolist()
        [2.16..., 30.62...]
    """
    if not 0 < level <= 1:
        raise ValueError(f"level is a share of the last accuracy, above 0 and up to 1: got {level}")
    if least < 0:
        raise ValueError(f"least is an accuracy from 0, got {least}")
    if len(steps) != len(accuracy) or bool((steps.diff() <= 0).any()):
        raise ValueError(
            f"expected a row of accuracy for each of rising steps, got {len(accuracy)} rows for steps {steps.tolist()}"
        )
    if bool(accuracy.isinf().any()):
        raise ValueError(
            "expected finite accuracies, or NaN where a group was not observed, got an infinite one"
        )
    reached = torch.full((accuracy.shape[1],), torch.nan, dtype=torch.float64)
    place = steps.double().log1p()
    for group, values in enumerate(accuracy.double().T):
        there = ~values.isnan()
        if not there.any() or values[there][-1] <= least:
            continue
        x, share = place[there], rescaled(values[there])
        first = int((share >= level).nonzero()[0])  # the last one is 1
        at = x[first]
        if first > 0:
            part = (level - share[first - 1]) / (share[first] - share[first - 1])
            at = x[first - 1] + part * (x[first] - x[first - 1])
        reached[group] = at.expm1()
    return reached
