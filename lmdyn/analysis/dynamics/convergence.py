"""Convergence of a looped model with depth: its state, its prediction, and its loss beyond the trained depth."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.inspection.forward import IGNORED, logits_of
from lmdyn.analysis.inspection.predictions import hits
from lmdyn.analysis.statistics.distributed import all_reduce_sum

__all__ = ["RULES", "LoopSums", "relative_change"]

RULES = ("argmax", "divergence")
"""The criterion by which a prediction counts as settled."""


def relative_change(
    before: Float[Tensor, "*batch d"], after: Float[Tensor, "*batch d"]
) -> Float[Tensor, "*batch"]:
    """Compute ‖after − before‖ / ‖before‖ of each vector, in float64.

    The value is infinite if only ``before`` is 0 or only ``after`` is infinite, and NaN if both are 0, if ``before``
    is infinite, or if one of them is NaN.

    Example:
        >>> relative_change(torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 4.5]]))
        tensor([0.1000], dtype=torch.float64)
    """
    before, after = before.double(), after.double()
    change: Tensor = (after - before).norm(dim=-1) / before.norm(dim=-1)
    return change


class LoopSums:
    """Sums over tokens of quantities measured at each depth t from 0 to the horizon T.

    The map is iterated to T, whose prediction the others are compared with, and then again: memory does not grow with
    T.

    Args:
        horizon: T, at least 1.
        positions: number of tokens of the longest row.
        tolerance: maximum KL(p_T ‖ p_t), in nats, at which a prediction counts as that of T.

    Attributes:
        horizon: T.

    Example:
        >>> from torch import nn
        >>> class Loop(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embed, self.core, self.out = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9)
        ...     def forward(self, input_ids):
        ...         x = self.embed(input_ids)
        ...         for _ in range(6):
        ...             x = self.core(x)
        ...         return self.out(x)
        >>> batch = {"input_ids": torch.tensor([[1, 2, 3]])}
        >>> loop = Loop()
        >>> sums = LoopSums(horizon=12, positions=3)
        >>> sums.update(EncoderMap(loop, batch), batch, torch.ones(1, 3, dtype=torch.bool))
        >>> found = sums.means()
        >>> found["residual"].shape, float(found["divergence"][12])
        (torch.Size([13]), 0.0)
    """

    def __init__(self, horizon: int, positions: int, tolerance: float = 0.01) -> None:
        self.horizon = horizon
        self._positions = positions
        self._tolerance = tolerance
        at_depths = dict.fromkeys(("norm", "divergence", "right", "loss"), (horizon + 1,))
        by_place = dict.fromkeys(
            ("residual", *(f"settled_{rule}" for rule in RULES)), (horizon + 1, positions)
        )
        shapes = {**at_depths, **by_place, "tokens": (positions,), "predicted": (positions,), "labelled": ()}
        self._sums = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}

    @torch.no_grad()
    def update(
        self,
        f: EncoderMap,
        batch: Mapping[str, Any],
        tokens: Bool[Tensor, "batch time"],
        labels: Int[Tensor, "batch time"] | None = None,
    ) -> None:
        """Add a batch.

        Args:
            f: the map of the module.
            batch: tensors by name, on its device.
            tokens: whether each position holds a token of the text.
            labels: ``logits[b, t]`` is the prediction for ``labels[b, t]``; −100 for none. With labels, predictions
                are evaluated at labelled positions, otherwise at all tokens.
        """
        g, start = f.of(batch), f.start(batch)
        at = tokens if labels is None else tokens & (labels != IGNORED)
        x = start
        for _ in range(self.horizon):
            x = g(x)
        last = logits_of(g.finish(batch, x))[at].log_softmax(-1)
        best, p = last.argmax(-1), last.exp()
        place = at.nonzero()[:, 1]
        settled = {rule: torch.zeros_like(place) for rule in RULES}
        unknown = torch.zeros_like(place, dtype=torch.bool)
        x = start
        for t in range(self.horizon + 1):
            log_p = logits_of(g.finish(batch, x))[at].log_softmax(-1) if t < self.horizon else last
            away = (p * (last - log_p)).sum(-1).double().clamp(min=0)
            self._sums["divergence"][t] += away.sum().cpu()
            unknown |= ~log_p.amax(-1).isfinite()
            same = {"argmax": log_p.argmax(-1) == best, "divergence": away <= self._tolerance}
            for rule, kept in same.items():
                settled[rule] = torch.where(kept, settled[rule], min(t + 1, self.horizon))
            if labels is not None:
                wanted = labels[at]
                self._sums["right"][t] += hits(log_p, wanted).double().sum().cpu()
                self._sums["loss"][t] -= log_p.gather(1, wanted[:, None]).double().sum().cpu()
            self._sums["norm"][t] += x[tokens].double().square().mean(-1).sqrt().sum().cpu()
            after = g(x) if t < self.horizon else x
            self._sums["residual"][t] += self._by_place(relative_change(x, after), tokens)
            x = after
        self._sums["tokens"] += self._by_place(tokens.double(), tokens)
        self._sums["predicted"] += self._by_place(at.double(), at)
        self._sums["labelled"] += float(at.sum()) if labels is not None else 0.0
        # a prediction that is not finite is NaN from t = 0 on
        counts = torch.where(unknown, torch.nan, 1.0).double().cpu()
        for rule, depth in settled.items():
            where = (torch.where(unknown, 0, depth).cpu(), place.cpu())
            self._sums[f"settled_{rule}"].index_put_(where, counts, accumulate=True)

    def _by_place(self, values: Tensor, where: Tensor) -> Tensor:
        """Sum over rows, at each position."""
        found = torch.zeros(self._positions, dtype=torch.float64)
        found[: values.shape[1]] = torch.where(where, values, 0.0).sum(0).cpu()
        return found

    def means(self) -> dict[str, Tensor]:
        """Compute the means over all tokens of all ranks; every rank must call it.

        Returns:
            A dict by name, float64. For depth t, (T + 1,): ``residual`` ‖x_{t+1} − x_t‖ / ‖x_t‖, NaN at T; ``norm``,
            the root mean square of a state's entries; ``divergence`` KL(p_T ‖ p_t), nats; with labels ``accuracy`` and
            ``cross_entropy``, nats; ``settled_<rule>``, the share of predictions that have settled by t; those not
            settled below T are censored. For depth and position, (T + 1, positions): ``residual_at``. For the
            position: ``depth_<rule>``, the mean settling depth, restricted to T; NaN if no token has this position.
            A token that is not finite makes the means NaN that include it.
        """
        sums = {name: all_reduce_sum(value) for name, value in self._sums.items()}
        tokens = sums["tokens"]
        predicted = sums["predicted"]
        labelled = sums["labelled"]
        residual = sums["residual"] / tokens
        residual[-1] = torch.nan
        found = {
            "residual": sums["residual"].sum(1) / tokens.sum(),
            "residual_at": residual,
            "norm": sums["norm"] / tokens.sum(),
            "divergence": sums["divergence"] / predicted.sum(),
        }
        found["residual"][-1] = torch.nan
        if labelled > 0:
            found |= {"accuracy": sums["right"] / labelled, "cross_entropy": sums["loss"] / labelled}
        depths = torch.arange(self.horizon + 1, dtype=torch.float64)
        for rule in RULES:
            counts = sums[f"settled_{rule}"]
            found[f"settled_{rule}"] = counts.sum(1).cumsum(0) / predicted.sum()
            found[f"depth_{rule}"] = (depths[:, None] * counts).sum(0) / predicted
        return found
