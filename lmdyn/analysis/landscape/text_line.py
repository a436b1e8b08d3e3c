"""The loss of a text at points of a line between two states of a module, and its derivative along the line."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lmdyn.analysis.landscape.class_slopes import ClassSlopes, TokenClasses, class_slopes
from lmdyn.analysis.landscape.line_integral import LineIntegral, LinePoint, integrate_line
from lmdyn.analysis.landscape.loss_change import slopes_of
from lmdyn.analysis.parameters.at_point import at_point
from lmdyn.analysis.parameters.line import differences, point_between
from lmdyn.analysis.parameters.loss_gradient import mean_loss

__all__ = ["TextOnLines"]


class TextOnLines:
    """The loss of a text along lines in the parameters of a module.

    Args:
        module: the module, in the mode in which its loss is to be computed; it is left unchanged.
        batches: function that returns the batches of this rank, on the module's device, labels aligned.
        call: function that calls the module on a batch. Its loss must be a function of the parameters alone: a
            recurrent state that one batch hands on to the next depends on them too, unseen by the gradient.
        divisions: divisions of the tokens into classes.
        repeated: path of each repeated module, by the name of its applications.
        head: linear layer at which the losses split, if there is one; see ``class_slopes``.

    Example:
        >>> layer = nn.Linear(1, 2, bias=False)
        >>> batch = {"x": torch.ones(1, 1, 1), "labels": torch.tensor([[0]])}
        >>> divisions = {"": TokenClasses(1, lambda b: torch.zeros_like(b["labels"]))}
        >>> text = TextOnLines(layer, lambda: [batch], lambda b: layer(b["x"]), divisions)
        >>> start, end = {"weight": torch.zeros(2, 1)}, {"weight": torch.tensor([[1.0], [0.0]])}
        >>> found = text.between(start, end)
        >>> round(found.loss_change, 4), found.points, round(found.groups["", "weight", ""][0].item(), 4)
        (-0.3799, 3, -0.3799)
    """

    def __init__(
        self,
        module: nn.Module,
        batches: Callable[[], Iterable[Mapping[str, Any]]],
        call: Callable[[Mapping[str, Any]], Any],
        divisions: Mapping[str, TokenClasses],
        *,
        repeated: Mapping[str, str] | None = None,
        head: str | None = None,
    ) -> None:
        self._module, self._batches, self._call = module, batches, call
        self._divisions, self._repeated = divisions, dict(repeated or {})
        # for a single class of all tokens, a whole backward pass is cheaper
        self._head = head if any(d.number > 1 for d in divisions.values()) else None

    def loss(self) -> float:
        """Return the mean loss at the module's own parameters. Every rank must call it."""
        return mean_loss(self._batches(), self._call)

    def tokens(self) -> dict[str, Tensor]:
        """Return the number of tokens of each class, for each division. Every rank must call it."""
        return {name: classes.counts(self._batches()) for name, classes in self._divisions.items()}

    def points(
        self, values: Mapping[str, Tensor] | None, moved: Sequence[Mapping[str, Tensor]]
    ) -> list[LinePoint]:
        """Return loss and derivative at ``values`` (None: the module's own) along several directions, in one pass.

        The keys of ``groups`` are (division, parameter, application), their values by class. Every rank must call it.
        """
        found = self._slopes(values, moved)
        points = []
        for direction, divisions in zip(moved, found.parts, strict=True):
            groups = {(name, *use): part for name, uses in divisions.items() for use, part in uses.items()}
            points.append(LinePoint(found.loss, slopes_of(found.gradients, direction), groups))
        return points

    def between(
        self, start: Mapping[str, Tensor], end: Mapping[str, Tensor], most_points: int = 17
    ) -> LineIntegral:
        """Integrate along the line between two states; parameters that do not move are left out.

        Raises:
            ValueError: for names or shapes that differ.
        """
        moved = moving(differences(start, end))
        start, end = ({name: values[name] for name in moved} for values in (start, end))
        return integrate_line(
            lambda alpha: self.points(point_between(start, end, alpha), [moved])[0], most_points
        )

    def _slopes(
        self, values: Mapping[str, Tensor] | None, moved: Sequence[Mapping[str, Tensor]]
    ) -> ClassSlopes:
        with at_point(self._module, values or {}):
            return class_slopes(
                self._module,
                self._batches(),
                self._call,
                moved,
                self._divisions,
                repeated=self._repeated,
                head=self._head,
            )


def moving(moved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the differences that are not 0 throughout.

    Example:
        >>> list(moving({"a": torch.zeros(2), "b": torch.tensor([0.0, 1.0])}))
        ['b']
    """
    if not moved:
        return {}
    there = torch.stack([(value != 0).any().cpu() for value in moved.values()]).tolist()  # NaN moves
    return {name: value for (name, value), moves in zip(moved.items(), there, strict=True) if moves}
