"""A looped model at each depth: convergence of its state, settling of its prediction, and its loss."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.dynamics.convergence import RULES, LoopSums
from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.inspection.batches import tokens_of
from lmdyn.analysis.inspection.forward import device_of, logits_of
from lmdyn.analysis.orbits.trajectories import exact_products
from lmdyn.callbacks.dynamics.quantities import share, steps
from lmdyn.callbacks.observing.checked_fields import Above, From
from lmdyn.callbacks.observing.findings import Cost, Foreseen
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.panels import standard_figures
from lmdyn.callbacks.observing.probe import to_device
from lmdyn.callbacks.observing.sums import Row, tabulate
from lmdyn.runs.schema import Quantity
from lmdyn.runs.store import UNDECIDED

__all__ = ["LoopConvergence"]

_TIMES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_AT = ("t=<t>",)
_OVER_DEPTH: dict[str, Any] = {"tags": _AT, "panel": "over_depth", "over": "t"}


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

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for numbers out of range, or a module that does not iterate one map.

    Reference: Geiping et al. 2025, sections 5 and 6; of early exits by such rules, Schuster et al. 2022.

    Example:
        >>> LoopConvergence(horizon=64).tolerance
        0.01
    """

    horizon: Annotated[int, From(1)] | None = None
    times: Sequence[Annotated[int, From(0)]] | None = None
    tolerance: Annotated[float, Above(0)] = 0.01
    sites: Mapping[str, str] | None = None
    max_tokens: Annotated[int, From(1)] | None = 4096

    several_runs = True
    recorded = (
        Quantity("residual", "Mean relative change of a state per iteration.", low=0.0, **_OVER_DEPTH),
        Quantity("norm", "Root mean square of a state's entries.", low=0.0, tags=_AT),
        Quantity("divergence", "Mean KL(p_T ‖ p_t) over predictions.", "nats", low=0.0, **_OVER_DEPTH),
        Quantity(
            "cross_entropy",
            "Mean −ln p_t of the labels after t iterations.",
            "nats",
            low=0.0,
            better="lower",
            **_OVER_DEPTH,
        ),
        share("accuracy", "Share of labels most probable after t steps.", better="higher", **_OVER_DEPTH),
        share(
            "settled_share",
            "Share of predictions that have settled by t, by the rule argmax or divergence.",
            tags=("<rule>/t=<t>",),
            panel="settled",
            over="t",
        ),
        steps(
            "settling_depth",
            "Mean depth at which predictions settle; a prediction that has not settled counts with T.",
            tags=("<rule>",),
            panel="by_position",
            over="position",
            lines="rule",
        ),
        share(
            "censored_share",
            "Share of predictions that still change at T.",
            tags=("<rule>",),
            panel="over_training",
            lines="rule",
        ),
        steps("depth", "Number of iterations in the model's own forward pass.", low=1.0),
        steps("horizon", "T, the number of iterations observed.", low=1.0),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positions, self._padded = 0, False
        if self.times is not None and (not self.times or list(self.times) != sorted(set(self.times))):
            raise ValueError(f"times is {list(self.times)}: expected increasing whole numbers from 0")
        self._check_horizon(self.times, self.horizon)

    def _check_horizon(self, times: Sequence[int] | None, horizon: int | None) -> None:
        if times is not None and horizon is not None and times[-1] > horizon:
            raise ValueError(
                f"{self.name}: times extend to {times[-1]}, beyond the horizon, {horizon}: raise `horizon`"
            )

    def prepare(self) -> None:
        """Determine the length of rows, and whether they have padding."""
        for later in ("horizon", "times"):  # found with the module
            self.found(later, lambda: UNDECIDED)
        for batch in self.probe_set.batches():
            tokens = tokens_of(batch)
            self._positions = max(self._positions, tokens.shape[1])
            self._padded |= not bool(tokens.all())

    def check_module(self, module: Module) -> None:
        """Raise an error for a module that does not iterate one map."""
        f, _ = self._map_of(module)
        depth = len(f.maps)
        horizon = int(self.found("horizon", lambda: max(16, 4 * depth)))
        times = self.found("times", lambda: sorted(t for t in {*_TIMES, depth, horizon} if t <= horizon))
        self._check_horizon(times, horizon)
        self._found["sites"] = self.sites or {f"layer{i}": path for i, path in enumerate(f.unit, start=1)}

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report the memory of the logits of a batch at two depths; raise an error if there are none."""
        f, batch = self._map_of(module)
        logits = logits_of(f.finish(batch, f.start(batch)))
        yield Cost(
            f"logits of a batch, {' × '.join(map(str, logits.shape))}, at two depths and their differences",
            4 * 4 * logits.numel(),
            "use a `probe` with smaller batches",
        )

    def _map_of(self, module: Module) -> tuple[EncoderMap, dict[str, Any]]:
        """Return the core as a map, and the first batch."""
        batch = to_device(next(iter(self.probe_set.batches())), device_of(module))
        f = EncoderMap(module, batch, forward=self.forward, masked=self._padded, sites=self.sites)
        if not f.shared:
            raise ValueError(
                f"{self.name} requires a model that repeats the same layers, but {type(module).__name__} applies each "
                "layer once. If layers are repeated, name these layers with `sites`; otherwise use EncoderDynamics"
            )
        return f, batch

    def measure(self, module: Module, step: int) -> pd.DataFrame:
        """Iterate this rank's batches, and gather all ranks' sums."""
        sums = LoopSums(self.settings["horizon"], self._positions, self.tolerance)
        with exact_products():
            f, _ = self._map_of(module)
            for batch in self.probe_set.of_this_rank(device_of(module)):
                sums.update(f, batch, tokens_of(batch), batch.get("labels"))
        rows = self._rows(sums.means(), len(f.maps), sums.horizon)
        return tabulate(rows, {"rule": None, "t": int, "position": int}, self.name, step)

    def _rows(self, means: Mapping[str, Tensor], depth: int, horizon: int) -> Iterator[Row]:
        yield {"site": ""}, {"depth": float(depth), "horizon": float(horizon)}
        times: Sequence[int] = self.settings["times"]
        before = [t for t in times if t < horizon]
        for name in ("residual", "norm", "divergence", "cross_entropy", "accuracy"):
            for t in (t for t in times if name != "residual" or 0 < t < horizon):
                if name in means:
                    yield {"t": t}, {name: float(means[name][t])}
        for rule in RULES:
            share = means[f"settled_{rule}"]
            for t in before:
                yield {"rule": rule, "t": t}, {"settled_share": float(share[t])}
            mean = float((1 - share[:-1]).sum())  # of an integer from 0 to T
            yield {"rule": rule}, {"censored_share": 1 - float(share[horizon - 1]), "settling_depth": mean}
            yield from _by_position("settling_depth", means[f"depth_{rule}"], rule=rule)
        for t in before:
            if t > 0:
                yield from _by_position("residual", means["residual_at"][t], t=t)

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return all rows except those of one position."""
        return observations["position"].isna()

    @classmethod
    def figures(cls, observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw state, prediction and loss over depth, and the change of the state also by position."""
        change = replace(cls.recorded[0], panel="change_by_position", over="position", lines="t")
        return super().figures(observations, settings) | standard_figures(observations, [change])


def _by_position(quantity: str, values: Tensor, **place: Any) -> Iterator[Row]:
    for i, value in enumerate(values.tolist()):
        if value == value:
            yield {**place, "position": i}, {quantity: value}
