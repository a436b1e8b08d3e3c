"""Derivative of a text's loss along directions in the parameters, by class of token and by use of a parameter."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lmdyn.analysis.inspection.batches import labels_of
from lmdyn.analysis.inspection.forward import IGNORED, is_sharded
from lmdyn.analysis.landscape.applications import separate_applications
from lmdyn.analysis.landscape.linear_head import LinearHead, requiring_grad, watched
from lmdyn.analysis.parameters.loss_gradient import losses_of
from lmdyn.analysis.statistics.distributed import all_reduce_sum, gather
from lmdyn.analysis.statistics.precision import at_least_float32, exact_float

__all__ = ["ClassSlopes", "TokenClasses", "Use", "class_slopes"]


class Use(NamedTuple):
    """Where a parameter is used.

    Attributes:
        parameter: its name.
        application: application of the repeated module that contains it, such as ``block@3``; empty outside of one.
    """

    parameter: str
    application: str = ""


@dataclass(frozen=True)
class TokenClasses:
    """A division of the labelled tokens into classes.

    Attributes:
        number: number of classes.
        of: function that returns the class of each token of a batch, (batch, time), from 0; below 0 for none.
    """

    number: int
    of: Callable[[Mapping[str, Any]], Int[Tensor, "batch time"]]

    def groups(self, batch: Mapping[str, Any]) -> Int[Tensor, "batch time"]:
        """Return the class of each token, on the device of the labels; ``number`` for none."""
        classes = self.of(batch).to(labels_of(batch).device)
        return torch.where(classes < 0, self.number, classes)

    def counts(self, batches: Iterable[Mapping[str, Any]]) -> Float[Tensor, "classes"]:
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


@dataclass(frozen=True)
class ClassSlopes:
    """Loss of a text, its gradient, and its derivative along directions by class and use.

    Attributes:
        loss: mean loss of the labelled tokens in nats.
        gradients: gradient of ``loss`` by parameter, in float32, or float64 for parameters in float64.
        parts: for each direction, and each division of the tokens, the derivative of ``loss`` along this direction,
            by use of a parameter and by class, (classes + 1,) float64: the last entry is of the tokens in no class.
            Over the classes and the uses it adds up to the whole derivative.
    """

    loss: float
    gradients: Mapping[str, Tensor]
    parts: Sequence[Mapping[str, Mapping[Use, Float[Tensor, "classes"]]]]


def class_slopes(
    module: nn.Module,
    batches: Iterable[Mapping[str, Any]],
    call: Callable[[Mapping[str, Any]], Any],
    directions: Sequence[Mapping[str, Tensor]],
    divisions: Mapping[str, TokenClasses],
    *,
    repeated: Mapping[str, str] | None = None,
    head: str | None = None,
) -> ClassSlopes:
    """Compute the loss of a text, its gradient, and its derivative along directions by class of token.

    One forward pass of each batch, and for each division one backward pass for each of its classes that occurs in the
    batch. With ``head``, these end at the input of this linear layer: what is above it, usually most of the work, is
    computed once for all classes, since its row t is a function of the token t alone. ``.grad`` is unchanged. Sums over
    batches and ranks are divided by the number of labelled tokens. Every rank must call it.

    Args:
        module: the module, in the mode in which its loss is to be computed.
        batches: batches of this rank, on the module's device, labels aligned with the logits.
        call: function that calls the module on a batch.
        directions: directions, by name of a parameter in its shape; a parameter that is missing does not move.
        divisions: at least one division of the tokens, by name.
        repeated: module path by display name of the modules whose applications are told apart, see
            :func:`~lmdyn.analysis.landscape.applications.separate_applications`.
        head: path of a linear layer for which :func:`~lmdyn.analysis.landscape.linear_head.splits_at` is true.

    Raises:
        ValueError: without divisions, for a direction of an unknown parameter, a module with sharded weights, or if
            no token has a label.

    Example:
        >>> table = nn.Embedding(2, 2)  # logits by token
        >>> _ = table.weight.data.zero_()
        >>> batch = {"input_ids": torch.tensor([[0, 1]]), "labels": torch.tensor([[1, 1]])}
        >>> found = class_slopes(
        ...     table, [batch], lambda b: table(b["input_ids"]), [{"weight": torch.eye(2)}],
        ...     {"input": TokenClasses(2, lambda b: b["input_ids"])},
        ... )
        >>> found.parts[0]["input"][Use("weight")]
        tensor([ 0.2500, -0.2500,  0.0000], dtype=torch.float64)
    """
    if is_sharded(module):
        raise ValueError("gradients of sharded weights are computed in a training step only")
    if not divisions:
        raise ValueError("expected at least one division of the tokens, got none: use one of a single class")
    names = {id(p): name for name, p in module.named_parameters()}
    parameters = dict(module.named_parameters())
    if unknown := sorted({name for direction in directions for name in direction} - parameters.keys()):
        raise ValueError(
            f"{type(module).__name__} has no parameters {unknown}: name those of named_parameters()"
        )
    moving = [name for name in parameters if any(name in direction for direction in directions)]
    sums = _Sums(directions, divisions, {name: parameters[name] for name in moving})
    with ExitStack() as stack:
        stack.enter_context(requiring_grad([parameters[name] for name in moving]))
        separate = stack.enter_context(separate_applications(module, repeated or {}))
        linear = stack.enter_context(watched(module, head)) if head else None
        for batch in batches:
            separate.clear()
            if linear is not None:
                linear.clear()
            with torch.enable_grad():
                losses = losses_of(call(batch), batch)
            if linear is not None:
                linear.check(losses)
            uses: dict[Use, Tensor] = {Use(name): parameters[name] for name in moving}
            leaves = ((names[key], application, leaf) for (key, application), leaf in separate.leaves.items())
            uses |= {Use(name, application): leaf for name, application, leaf in leaves if name in moving}
            _Batch(sums, losses, batch, uses, names).add(linear)
    return sums.reduced()


class _Sums:
    def __init__(
        self,
        directions: Sequence[Mapping[str, Tensor]],
        divisions: Mapping[str, TokenClasses],
        moving: Mapping[str, nn.Parameter],
    ) -> None:
        # in the type of the gradients: their products are summed in float64
        self.directions = [
            {n: v.to(moving[n].device, at_least_float32(moving[n])) for n, v in direction.items()}
            for direction in directions
        ]
        self.divisions = divisions
        self.gradients = {n: torch.zeros_like(p, dtype=at_least_float32(p)) for n, p in moving.items()}
        self.loss = torch.zeros(2, dtype=torch.float64)
        self.parts: list[dict[str, dict[Use, Tensor]]] = [
            {name: {} for name in divisions} for _ in directions
        ]

    def add(self, i: int, division: str, use: Use, values: Tensor, at: Any = slice(None)) -> None:
        """Add to the derivative along direction i, in the classes ``at``."""
        sums = self.parts[i][division]
        if use not in sums:
            sums[use] = torch.zeros(
                self.divisions[division].number + 1, dtype=torch.float64, device=values.device
            )
        sums[use][at] += values

    def reduced(self) -> ClassSlopes:
        """Sum over ranks, and divide by the number of tokens."""
        loss, tokens = all_reduce_sum(self.loss.cpu()).tolist()
        if not tokens:
            raise ValueError("no token of the text has a label: expected at least one to compute a loss")
        gradients = {name: all_reduce_sum(g).div_(tokens) for name, g in self.gradients.items()}
        own = [use for found in self.parts for sums in found.values() for use in sums]
        uses = list(dict.fromkeys(use for rank in gather(own) for use in rank))
        parts: list[dict[str, dict[Use, Tensor]]] = []
        for found in self.parts:
            parts.append({})
            for division, sums in found.items():
                zeros = torch.zeros(self.divisions[division].number + 1, dtype=torch.float64)
                table = torch.stack([*(sums[u].cpu() if u in sums else zeros for u in uses), zeros])
                table = all_reduce_sum(table) / tokens
                parts[-1][division] = dict(zip(uses, table, strict=False))
        return ClassSlopes(loss / tokens, gradients, parts)


class _Batch:
    """One batch after its forward pass."""

    def __init__(
        self,
        sums: _Sums,
        losses: Tensor,
        batch: Mapping[str, Any],
        uses: Mapping[Use, Tensor],
        names: Mapping[int, str],
    ) -> None:
        self.sums, self.losses, self.batch, self.uses, self.names = sums, losses, batch, uses, names

    def add(self, linear: LinearHead | None) -> None:
        """Add loss, gradients and parts; with a head, backward passes of classes begin at its input."""
        labelled = labels_of(self.batch) != IGNORED
        exact = exact_float(self.losses)
        self.sums.loss = self.sums.loss.to(exact.device) + torch.stack([exact.sum(), labelled.sum()])
        begin, weights = self.losses, torch.ones_like(self.losses)  # by token, summed
        of_output: Tensor | None = None
        moves = bool(self.uses) and self.losses.requires_grad
        if linear is not None and moves:
            (of_output,) = torch.autograd.grad(self.losses.sum(), [linear.output], retain_graph=True)
            begin, weights = linear.input, linear.into(of_output).to(linear.input.dtype)
            for parameter, gradient in linear.own_gradients(of_output):
                if self.names[id(parameter)] in self.sums.gradients:
                    self.sums.gradients[self.names[id(parameter)]] += gradient
        for number, (division, classes) in enumerate(self.sums.divisions.items()):
            groups = classes.groups(self.batch)
            if linear is not None and of_output is not None:
                self._head(linear, of_output, division, groups.flatten())
            if not moves or not begin.requires_grad:  # nothing below moves
                continue
            # one synchronization with the device for all backward passes of this batch
            for c in torch.unique(groups[labelled]).tolist():
                of_class = weights.view(groups.numel(), -1) * (groups == c).view(-1, 1)
                self._below(begin, of_class.view_as(begin), division, c, whole=number == 0)

    def _head(self, linear: LinearHead, of_output: Tensor, division: str, groups: Tensor) -> None:
        """Add the head's own part, for all classes at once: that of a token is ⟨its gradient, ΔW h + Δb⟩."""
        layer = linear.layer
        h = linear.input.detach().to(of_output.dtype)
        for i, direction in enumerate(self.sums.directions):
            for parameter in layer.parameters():
                if (name := self.names[id(parameter)]) not in direction:
                    continue
                by = direction[name]  # of at least float32, also for narrower weights
                moved = h.to(by.dtype) @ by.T if parameter is layer.weight else by
                by_token = exact_float((of_output * moved).sum(-1)).flatten()
                sums = by_token.new_zeros(self.sums.divisions[division].number + 1)
                self.sums.add(
                    i, division, Use(name), sums.index_add_(0, groups.to(by_token.device), by_token)
                )

    def _below(self, begin: Tensor, weights: Tensor, division: str, c: int, whole: bool) -> None:
        """Add the gradients of one class with respect to all uses."""
        found = torch.autograd.grad(
            begin, list(self.uses.values()), weights, retain_graph=True, allow_unused=True
        )
        for use, gradient in zip(self.uses, found, strict=True):
            if gradient is not None:
                self._use(use, gradient, division, c, whole=whole)

    def _use(self, use: Use, gradient: Tensor, division: str, c: int, whole: bool) -> None:
        if whole:
            self.sums.gradients[use.parameter] += gradient
        for i, direction in enumerate(self.sums.directions):
            if use.parameter in direction:
                product = (gradient * direction[use.parameter]).sum(dtype=torch.float64)
                self.sums.add(i, division, use, product, c)
