"""A looped model at each depth: convergence of its state, settling of its prediction, and its loss."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.dynamics.convergence import RULES, LoopSums
from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.inspection.batches import text_of
from lmdyn.analysis.inspection.forward import device_of, logits_of
from lmdyn.analysis.orbits.trajectories import exact_products
from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.callbacks.conditions.finding import Cost, Foreseen
from lmdyn.callbacks.dynamics.loops.loop_convergence_figures import loop_convergence_figures
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import to_device
from lmdyn.callbacks.observing.schema import Quantity
from lmdyn.callbacks.observing.store import UNDECIDED

__all__ = ["LoopConvergence"]

log = logging.getLogger(__name__)

_TIMES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_AT = ("t=<t>",)


class LoopConvergence(Observer):
    """State and prediction of a looped model during the iteration of its core, up to and beyond its own depth.

    The core is iterated as a map (:class:`~lmdyn.analysis.EncoderMap`) to a horizon T, each text with the input that
    the model injects, in float32 without tf32 or autocast; x_t is the state of a token at depth t, p_t the prediction
    that the model computes from x_t by all that follows its core. A model whose layers are not shared has no such depth
    and raises an error.

    *State.* ``residual``, the mean over tokens of ‖x_{t+1} − x_t‖ / ‖x_t‖: 0 at a fixed point, near 1 or above if
    states keep moving. *Prediction.* ``divergence``, the mean of KL(p_T ‖ p_t); a prediction has settled at the first t
    from which, up to T, its most probable class is that of T (rule ``argmax``), or KL(p_T ‖ p_t) is at most the
    tolerance (``divergence``). Predictions that change up to the horizon itself are right-censored: ``censored_share``
    is their share, and ``settling_depth`` is the mean restricted to T, a lower bound of the mean. *Loss.*
    ``cross_entropy`` and ``accuracy`` of the labels at each depth, also beyond that of training.

    Predictions are evaluated at labelled positions, or without labels at all tokens of the text. If rows have padding,
    attention masks it, as in training. With several processes, each reads its share of the batches.

    Rows have the columns ``rule``, ``t`` and ``position``; rows with a position (``residual`` and ``settling_depth`` at
    this position of the text, from 0) are for figures and tables, not for loggers.

    Args:
        horizon: T; None for four times the model's own depth, at least 16.
        times: recorded depths t, increasing from 0 to T; None for some up to T, with the model's own depth and T.
        tolerance: tolerance of the rule ``divergence``, nats.
        sites: module path by display name of the layers of the core; None to find them, see :class:`EncoderMap`.
        max_tokens: approximate number of tokens to observe.
        **kwargs: see :class:`~lmdyn.callbacks.Observer`.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for numbers out of range, or a module that does not iterate one map.

    Reference: Geiping et al. 2025, sections 5 and 6; of early exits by such rules, Schuster et al. 2022.

    Example:
        >>> LoopConvergence(horizon=64).tolerance
        0.01
    """

    uses_labels = None

    recorded = (
        Quantity("residual", "Relative change of the state in the next iteration.", low=0.0, tags=_AT),
        Quantity("norm", "Root mean square of a state's entries.", low=0.0, tags=_AT),
        Quantity("divergence", "Mean KL(p_T ‖ p_t) of predictions.", "nats", low=0.0, tags=_AT),
        Quantity("cross_entropy", "Mean −ln p_t of the labels.", "nats", low=0.0, better="lower", tags=_AT),
        Quantity(
            "accuracy", "Labels that are most probable at t.", "share", low=0.0, high=1.0, better="higher", tags=_AT
        ),
        Quantity(
            "settled_share", "Predictions settled by t, by the rule argmax or divergence.", "share", low=0.0, high=1.0,
            tags=("<rule>/t=<t>",),
        ),
        Quantity("settling_depth", "Mean settling depth, restricted to T.", "steps", low=0.0, tags=("<rule>",)),
        Quantity("censored_share", "Predictions that changed up to T.", "share", low=0.0, high=1.0, tags=("<rule>",)),
        Quantity("depth", "Number of iterations of the model itself.", "steps", low=1.0),
        Quantity("horizon", "T.", "steps", low=1.0),
    )  # fmt: skip

    several_runs = True

    def __init__(
        self,
        *,
        horizon: int | None = None,
        times: Sequence[int] | None = None,
        tolerance: float = 0.01,
        sites: Mapping[str, str] | None = None,
        max_tokens: int | None = 4096,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_tokens=max_tokens, **kwargs)
        if tolerance <= 0 or (horizon is not None and horizon < 1):
            raise ValueError(f"expected tolerance above 0 and horizon from 1, got {tolerance} and {horizon}")
        if times is not None and (not times or times[0] < 0 or list(times) != sorted(set(times))):
            raise ValueError(f"times is {list(times)}: expected increasing integers from 0")
        if times is not None and horizon is not None and times[-1] > horizon:
            raise ValueError(f"times extend to {times[-1]}, beyond the horizon, {horizon}: raise `horizon`")
        self.horizon, self.times, self.tolerance = horizon, times, tolerance
        self.core = None if sites is None else dict(sites)
        self._positions, self._padded = 0, False

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments; those found with the module are undecided until it is read, also in a continued run."""
        later = [k for k in ("horizon", "times") if self.hparams[k] is None and k not in self._found]
        return super().settings | dict.fromkeys(later, UNDECIDED)

    def prepare(self) -> None:
        """Determine the length of rows, and whether they have padding."""
        for batch in self.probe_set.batches():
            self._positions = max(self._positions, text_of(batch).shape[1])
            mask = batch.get("attention_mask")
            self._padded |= isinstance(mask, Tensor) and not bool(mask.bool().all())

    def check_module(self, module: nn.Module) -> None:
        """Raise an error for a module that does not iterate one map, or returns no logits."""
        f, batch = self._map_of(module)
        depth = len(f.maps)
        self.horizon = int(self.found("horizon", lambda: max(16, 4 * depth)))
        least = [t for t in {*_TIMES, depth, self.horizon} if t <= self.horizon]
        self.times = tuple(self.found("times", lambda: sorted(least)))
        if self.times[-1] > self.horizon:
            raise ValueError(
                f"{self.name}: times extend to {self.times[-1]}, beyond the horizon, {self.horizon}: raise `horizon`"
            )
        self._found["sites"] = self.core or {f"layer{i}": path for i, path in enumerate(f.unit, start=1)}
        logits_of(f.finish(batch, f.start(batch)))

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report the memory of the logits of a batch at two depths."""
        f, batch = self._map_of(module)
        logits = logits_of(f.finish(batch, f.start(batch)))
        yield Cost(
            f"logits of a batch, {' × '.join(map(str, logits.shape))}, at two depths and their differences",
            4 * 4 * logits.numel(),
            "use a `probe` with smaller batches",
        )

    def _map_of(self, module: nn.Module) -> tuple[EncoderMap, dict[str, Any]]:
        """Return the core as a map, and the first batch."""
        batch = to_device(next(iter(self.probe_set.batches())), device_of(module))
        try:
            f = EncoderMap(module, batch, forward=self.forward, masked=self._padded, sites=self.core)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error
        if not f.shared:
            raise ValueError(
                f"{self.name} requires a model that iterates a core, but the {len(f.maps)} layers of this one differ: "
                "EncoderDynamics observes them as depth; if there is a core, name its layers by `sites`"
            )
        return f, batch

    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Iterate this rank's batches, and gather all ranks' sums."""
        assert self.horizon is not None
        assert self.times is not None
        device, sums = device_of(module), LoopSums(self.horizon, self._positions, self.tolerance)
        with exact_products():
            f, _ = self._map_of(module)
            for batch in self.probe_set.batches(*rank_and_world_size()):
                batch = to_device(batch, device)
                text = text_of(batch)
                mask = batch.get("attention_mask")
                tokens = torch.ones_like(text, dtype=torch.bool) if mask is None else mask.bool()
                sums.update(f, batch, tokens, batch.get("labels"))
        rows = self._rows(sums.means(), len(f.maps))
        table = pd.DataFrame(rows, columns=list(_Row._fields)).assign(site="")
        broken = sorted(set(table.loc[table["value"].isna(), "quantity"]))
        if broken and rank_and_world_size()[0] == 0:
            log.warning("%s at step %d: %s are not finite", self.name, step, ", ".join(broken))
        types: dict[str, Any] = {"t": "Int64", "position": "Int64", "rule": object, "value": "float64"}
        return table[["quantity", "site", "rule", "t", "position", "value"]].astype(types)

    def _rows(self, means: Mapping[str, Tensor], depth: int) -> list["_Row"]:
        assert self.horizon is not None
        assert self.times is not None
        rows = [_Row("depth", value=float(depth)), _Row("horizon", value=float(self.horizon))]
        here = [t for t in self.times if 0 < t < self.horizon]
        rows += [_Row("residual", t=t, value=float(means["residual"][t])) for t in here]
        for name in ("norm", "divergence", "cross_entropy", "accuracy"):
            if name in means:
                rows += [_Row(name, t=t, value=float(means[name][t])) for t in self.times]
        for rule in RULES:
            share, at = means[f"settled_{rule}"], means[f"depth_{rule}"]
            before = [t for t in self.times if t < self.horizon]
            rows += [_Row("settled_share", rule, t, value=float(share[t])) for t in before]
            censored = 1 - float(share[self.horizon - 1])
            mean = float((1 - share[:-1]).sum())  # of an integer from 0 to T
            rows += [_Row("censored_share", rule, value=censored), _Row("settling_depth", rule, value=mean)]
            rows += [
                _Row("settling_depth", rule, position=i, value=v) for i, v in enumerate(at.tolist()) if v == v
            ]
        for t in here:
            rows += [
                _Row("residual", t=t, position=i, value=v)
                for i, v in enumerate(means["residual_at"][t].tolist())
                if v == v
            ]
        return rows

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return all rows except those of one position."""
        return observations["position"].isna()

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw state, prediction and loss over depth; by position; over training."""
        return loop_convergence_figures(observations)


class _Row(NamedTuple):
    quantity: str
    rule: str | None = None
    t: int | None = None
    position: int | None = None
    value: float = float("nan")
