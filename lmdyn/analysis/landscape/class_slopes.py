"""Derivative of a text's loss along directions in the parameters, by class of token and by use of a parameter."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import first_tensor
from lmdyn.analysis.inspection.batches import labels_of
from lmdyn.analysis.inspection.forward import IGNORED, Batch, logits_of
from lmdyn.analysis.landscape.applications import separate_applications
from lmdyn.analysis.landscape.line_integral import LineIntegral, LinePoint, integrate_line
from lmdyn.analysis.landscape.loss_change import slopes_of
from lmdyn.analysis.parameters.at_point import at_point
from lmdyn.analysis.parameters.line import differences, point_between
from lmdyn.analysis.parameters.loss_gradient import losses_of, mean_loss, mean_of_sums, requiring_grad
from lmdyn.analysis.statistics.distributed import all_reduce_sum, union_over_ranks
from lmdyn.analysis.statistics.precision import at_least_float32, exact_float

__all__ = ["TextOnLines", "TokenClasses", "moving"]

Key = tuple[str, str, str]
"""Division of the tokens, parameter, application."""


@dataclass(frozen=True)
class TokenClasses:
    """A division of the labelled tokens into classes.

    Attributes:
        number: number of classes.
        of: function that returns the class of each token of a batch, (batch, time), from 0; below 0 for none.
    """

    number: int
    of: Callable[[Batch], Int[Tensor, "batch time"]]

    def groups(self, batch: Batch) -> Int[Tensor, "batch time"]:
        """Return the class of each token, on the device of the labels; ``number`` for none."""
        classes = self.of(batch).to(labels_of(batch).device)
        return torch.where(classes < 0, self.number, classes)

    def counts(self, batches: Iterable[Batch]) -> Float[Tensor, "classes"]:
        """Count the labelled tokens of each class, those in none last, over all ranks, which all must call it.

        Example:
            >>> parity = TokenClasses(2, lambda batch: batch["labels"] % 2)
            >>> parity.counts([{"labels": torch.tensor([[1, 3, 4, -100]])}])
            tensor([1., 2., 0.], dtype=torch.float64)
        """
        found = torch.zeros(self.number + 1, dtype=torch.float64)
        for batch in batches:
            labelled = labels_of(batch) != IGNORED
            found += torch.bincount(self.groups(batch)[labelled], minlength=self.number + 1).cpu()
        return all_reduce_sum(found)


class _Head(NamedTuple):
    """A call of a linear layer."""

    weight: Tensor
    bias: Tensor | None
    input: Tensor
    output: Tensor


class _Sums:
    """Sums over batches: of losses, of gradients, and of derivatives by class and use of a parameter."""

    def __init__(
        self,
        directions: Sequence[Mapping[str, Tensor]],
        divisions: Mapping[str, TokenClasses],
        moving: Mapping[str, nn.Parameter],
    ) -> None:
        # in the type of the gradients: their products are summed in float64
        self._directions = [
            {n: v.to(moving[n].device, at_least_float32(moving[n])) for n, v in direction.items()}
            for direction in directions
        ]
        self._given, self._divisions = directions, divisions
        self._gradients = {n: torch.zeros_like(p, dtype=at_least_float32(p)) for n, p in moving.items()}
        self._loss = torch.zeros(2, dtype=torch.float64)
        self._parts: list[dict[Key, Tensor]] = [{} for _ in directions]

    def add_batch(
        self,
        losses: Tensor,
        batch: Batch,
        uses: Mapping[tuple[str, str], Tensor],
        head: _Head | None,
        names: Mapping[int, str],
    ) -> None:
        """Add a batch after its forward pass; with a head, backward passes of classes begin at its input."""
        labelled = labels_of(batch) != IGNORED
        exact = exact_float(losses)
        self._loss = self._loss.to(exact.device) + torch.stack([exact.sum(), labelled.sum()])
        if not uses or not losses.requires_grad:
            return
        begin, weights = losses, torch.ones_like(losses)  # by token, summed
        groups = {division: classes.groups(batch) for division, classes in self._divisions.items()}
        if head is not None:
            (of_output,) = torch.autograd.grad(losses.sum(), [head.output], retain_graph=True)
            into = of_output @ head.weight.detach().to(of_output.dtype)
            begin, weights = head.input, into.to(head.input.dtype)
            self._add_head(head, of_output, groups, names)
        for number, (division, classes) in enumerate(groups.items() if begin.requires_grad else ()):
            # one synchronization with the device for all backward passes of this batch
            for c in torch.unique(classes[labelled]).tolist():
                of_class = weights.view(classes.numel(), -1) * (classes == c).view(-1, 1)
                found = torch.autograd.grad(
                    begin, list(uses.values()), of_class.view_as(begin), retain_graph=True, allow_unused=True
                )
                reached = [(*use, g) for use, g in zip(uses, found, strict=True) if g is not None]
                for name, application, gradient in reached:
                    if number == 0:
                        self._gradients[name] += gradient
                    for i, by in self._moved(name):
                        product = (gradient * by).sum(dtype=torch.float64)
                        self._part(i, (division, name, application), product.device)[c] += product

    def _add_head(
        self, head: _Head, of_output: Tensor, groups: Mapping[str, Tensor], names: Mapping[int, str]
    ) -> None:
        """Add the head's own part, for all classes at once: that of a token is ⟨its gradient, ΔW h + Δb⟩."""
        rows = of_output.flatten(0, -2).to(head.weight.dtype)  # autocast computes in another one
        x = head.input.detach()
        for parameter in (head.weight, head.bias):
            if parameter is None or id(parameter) not in names:
                continue
            name = names[id(parameter)]
            matrix = parameter.ndim == 2
            self._gradients[name] += rows.T @ x.flatten(0, -2).to(rows.dtype) if matrix else rows.sum(0)
            for i, by in self._moved(name):  # of at least float32, also for narrower weights
                moved = x.to(by.dtype) @ by.T if matrix else by
                by_token = exact_float((of_output * moved).sum(-1)).flatten()
                for division, classes in groups.items():
                    at = classes.flatten().to(by_token.device)
                    self._part(i, (division, name, ""), by_token.device).index_add_(0, at, by_token)

    def _moved(self, name: str) -> list[tuple[int, Tensor]]:
        """Return the numbers of the directions in which a parameter moves, and these."""
        return [(i, of[name]) for i, of in enumerate(self._directions) if name in of]

    def _part(self, i: int, key: Key, device: torch.device) -> Tensor:
        number = self._divisions[key[0]].number + 1
        return self._parts[i].setdefault(key, torch.zeros(number, dtype=torch.float64, device=device))

    def points(self) -> list[LinePoint]:
        """Sum over ranks, and divide by the number of tokens."""
        loss, tokens = mean_of_sums([self._loss])
        gradients = {name: all_reduce_sum(g).div_(tokens) for name, g in self._gradients.items()}
        points = []
        for i, direction in enumerate(self._given):
            keys = union_over_ranks(self._parts[i])
            groups = {k: all_reduce_sum(self._part(i, k, torch.device("cpu")).cpu()) / tokens for k in keys}
            points.append(LinePoint(loss, slopes_of(gradients, direction), groups))
        return points


class TextOnLines:
    """The loss of a text along lines in the parameters of a module.

    Args:
        module: the module, in the mode in which its loss is to be computed; it is left unchanged.
        batches: function that returns the batches of this rank, on the module's device, labels aligned.
        call: function that calls the module on a batch. Its loss must be a function of the parameters alone: a
            recurrent state that one batch hands on to the next depends on them too, unseen by the gradient.
        divisions: at least one division of the tokens into classes, by name.
        repeated: module path by display name of the modules whose applications are told apart, see
            :func:`~lmdyn.analysis.landscape.applications.separate_applications`.

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
        batches: Callable[[], Iterable[Batch]],
        call: Callable[[Batch], Any],
        divisions: Mapping[str, TokenClasses],
        repeated: Mapping[str, str] | None = None,
    ) -> None:
        self._module = module
        self._batches = batches
        self._call = call
        self._divisions, self._repeated = divisions, repeated or {}

    def loss(self) -> float:
        """Return the mean loss at the module's own parameters. Every rank must call it."""
        return mean_loss(self._batches(), self._call)

    def tokens(self) -> dict[str, Tensor]:
        """Return the number of tokens of each class, for each division. Every rank must call it."""
        return {name: classes.counts(self._batches()) for name, classes in self._divisions.items()}

    def points(
        self, values: Mapping[str, Tensor], directions: Sequence[Mapping[str, Tensor]]
    ) -> list[LinePoint]:
        """Compute the loss at other values of parameters and its derivative along directions, by class of token.

        One forward pass of each batch, and for each division one backward pass for each of its classes that occurs in
        the batch. If the logits are the output of a linear layer, these begin at its input: what is above it, usually
        most of the work, is computed once for all classes, since its row t is a function of the token t alone.
        ``.grad`` is unchanged. Sums over batches and ranks are divided by the number of labelled tokens. Every rank
        must call it.

        Args:
            values: parameters by name; those that are missing have the module's own values.
            directions: directions, by name of a parameter in its shape; a parameter that is missing does not move.

        Returns:
            For each direction, the loss and its derivative. The keys of ``groups`` are (division, parameter,
            application), empty outside of a repeated module; their values are by class, (classes + 1,), the tokens in
            none last.

        Raises:
            ValueError: if no token has a label.

        Example:
            >>> table = nn.Embedding(2, 2)  # logits by token
            >>> batch = {"input_ids": torch.tensor([[0, 1]]), "labels": torch.tensor([[1, 1]])}
            >>> by_token = {"input": TokenClasses(2, lambda b: b["input_ids"])}
            >>> text = TextOnLines(table, lambda: [batch], lambda b: table(b["input_ids"]), by_token)
            >>> (found,) = text.points({"weight": torch.zeros(2, 2)}, [{"weight": torch.eye(2)}])
            >>> found.groups["input", "weight", ""]
            tensor([ 0.2500, -0.2500,  0.0000], dtype=torch.float64)
        """
        with at_point(self._module, values):
            return self._points(directions)

    def _points(self, directions: Sequence[Mapping[str, Tensor]]) -> list[LinePoint]:
        parameters = dict(self._module.named_parameters())
        moving = {name: p for name, p in parameters.items() if any(name in moved for moved in directions)}
        names = {id(p): name for name, p in moving.items()}
        known = {*map(id, parameters.values())}
        sums = _Sums(directions, self._divisions, moving)
        last: list[_Head] = []

        def seen(layer: Any, args: tuple[Any, ...], output: Any) -> None:
            x, y = (cast(Tensor, first_tensor(value)) for value in (args, output))
            last[:] = [_Head(layer.weight, layer.bias, x, y)]

        # of one class, a whole backward pass is cheaper
        several = any(classes.number > 1 for classes in self._divisions.values())
        with ExitStack() as stack:
            stack.enter_context(requiring_grad(list(moving.values())))
            separate = stack.enter_context(separate_applications(self._module, self._repeated))
            for layer in self._module.modules() if several else ():
                if type(layer) is nn.Linear:
                    stack.callback(layer.register_forward_hook(seen).remove)
            for batch in self._batches():
                separate.clear()
                with torch.enable_grad():
                    output = self._call(batch)
                    losses = losses_of(output, batch)
                # a layer within a repeated module has leaves of its own in each application
                heads = [h for h in last if h.output is logits_of(output) and id(h.weight) in known]
                uses: dict[tuple[str, str], Tensor] = {(name, ""): p for name, p in moving.items()}
                uses |= {(names[key], at): p for (key, at), p in separate.items() if key in names}
                sums.add_batch(losses, batch, uses, next(iter(heads), None), names)
        return sums.points()

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


def moving(moved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the differences that are not 0 throughout.

    Example:
        >>> list(moving({"a": torch.zeros(2), "b": torch.tensor([0.0, 1.0])}))
        ['b']
    """
    return {name: value for name, value in moved.items() if (value != 0).any()}  # NaN moves
