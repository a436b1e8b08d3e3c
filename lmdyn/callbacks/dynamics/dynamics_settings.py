"""Settings of ``EncoderDynamics`` for the short and the long term and for numerics, as frozen dataclasses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Final, Literal, TypeVar, get_args

import torch

from lmdyn.analysis.dynamics.synchronization import THRESHOLD, DeviationVariant

__all__ = ["NOT_GIVEN", "DynamicsNumerics", "LongTerm", "ShortTerm", "flat_settings", "with_flat"]

Precision = Literal["float32", "float64"]
G = TypeVar("G", "ShortTerm", "LongTerm", "DynamicsNumerics")

NOT_GIVEN: Final[Any] = object()
"""A flat argument that was not given, as distinct from one that is null."""


@dataclass(frozen=True)
class ShortTerm:
    """Settings of deviation, synchronization, local exponents and effective dimension from the start on.

    Attributes:
        steps: horizon t.
        tau: steps per window, a divisor of ``steps``.
        sentences: number of sentences; None for all.
        dimension_times: t at which the effective dimension is measured; None for every 25 steps.
        dimension_sentences: number of sentences for it, whose number minus one is its maximum; None for ``sentences``.

    Raises:
        ValueError: for numbers out of range, or a window that does not divide the horizon.
    """

    steps: int = 500
    tau: int = 10
    sentences: int | None = None
    dimension_times: Sequence[int] | None = None
    dimension_sentences: int | None = None

    def __post_init__(self) -> None:
        _check_types(self)
        _check_windows("short_term.steps", self.steps, self.tau)
        for name in ("sentences", "dimension_sentences"):
            value = getattr(self, name)
            if value is not None and value < 2:
                raise ValueError(f"short_term.{name} is {value}: expected a number from 2, or null for all")
        times = self.times
        if any(t < 0 or t > self.steps for t in times) or sorted(set(times)) != list(times):
            raise ValueError(
                f"expected short_term.dimension_times that increase from 0 to at most short_term.steps, {self.steps}, "
                f"got {self.dimension_times}"
            )

    @property
    def times(self) -> Sequence[int]:
        """The t at which the effective dimension is measured."""
        return range(0, self.steps + 1, 25) if self.dimension_times is None else self.dimension_times


@dataclass(frozen=True)
class LongTerm:
    """Settings of local exponents until a distant horizon, chaotic transients, and attractors.

    Attributes:
        steps: horizon t; 0 for no long term.
        tau: steps per window, a divisor of ``steps``.
        sentences: number of sentences; None for all.
        check: number of sentences that are also iterated on the full map, for ``check_steps``.
        check_steps: a multiple of ``tau``.
        max_period: maximum period of an attractor.
        tolerance: distance, relative to the state's norm, below which states count as equal.
        resolution: |λ| that counts as 0 when trajectories at the horizon are classified, if ``follow`` is 0.
        follow: multiple of ``steps`` for which trajectories are followed until their kind is known
            (:func:`~lmdyn.analysis.orbit_kind`); 1: not beyond; 0: they are classified as up to version 0.1, in which
            every small λ counted as quasi-periodic.
        transverse_skip: number of steps before λ⊥ is averaged, in which a random difference aligns, rounded up
            to windows; None for 200, and for 0 if ``follow`` is 0, as up to version 0.1.

    Raises:
        ValueError: for numbers out of range, or a window that does not divide a horizon.
    """

    steps: int = 100_000
    tau: int = 50
    sentences: int | None = None
    check: int = 2
    check_steps: int = 1000
    max_period: int = 256
    tolerance: float = 1e-5
    resolution: float = 1e-3
    follow: int = 4
    transverse_skip: int | None = None

    @property
    def skipped(self) -> int:
        """Number of steps before λ⊥ is averaged."""
        if self.transverse_skip is not None:
            return self.transverse_skip
        return 200 if self.follow else 0

    def __post_init__(self) -> None:
        _check_types(self)
        least_sentences = 1 if self.sentences is None else self.sentences
        if (
            min(self.steps, self.check, self.follow, self.skipped) < 0
            or min(self.max_period, least_sentences) < 1
        ):
            raise ValueError(
                f"expected steps, check, follow and transverse_skip from 0, max_period and sentences from 1, got {self}"
            )
        if self.tolerance <= 0 or self.resolution < 0:
            raise ValueError(f"expected tolerance above 0 and resolution from 0, got {self}")
        _check_windows("long_term.steps", self.steps or self.tau, self.tau)
        _check_windows("long_term.check_steps", self.check_steps, self.tau)


@dataclass(frozen=True)
class DynamicsNumerics:
    """Settings of the computation of trajectories.

    Attributes:
        epsilon: norm of the perturbation over the joint state.
        threshold: D below which tokens are synchronized.
        reduced: whether to continue with the map of one token.
        dtype: ``float32`` or ``float64``.
        batch_size: number of sentences to which the full map is applied at once.
        seed: seed of the perturbations.
        deviation: distance between tokens: ``printed`` or ``released``, see :func:`~lmdyn.analysis.deviation`.

    Raises:
        ValueError: for numbers out of range, or another dtype or deviation.
    """

    epsilon: float = 1.0
    threshold: float = THRESHOLD
    reduced: bool = True
    dtype: Precision = "float32"
    batch_size: int = 16
    seed: int = 0
    deviation: DeviationVariant = "printed"

    def __post_init__(self) -> None:
        _check_types(self)
        if self.deviation not in get_args(DeviationVariant):
            raise ValueError(
                f"deviation is {self.deviation!r}: expected one of {list(get_args(DeviationVariant))}"
            )
        if self.dtype not in get_args(Precision):
            raise ValueError(f"dtype is {self.dtype!r}: expected one of {list(get_args(Precision))}")
        if self.epsilon <= 0 or self.threshold <= 0 or self.batch_size < 1:
            raise ValueError(f"expected epsilon and threshold above 0 and batch_size from 1, got {self}")

    @property
    def torch_dtype(self) -> torch.dtype:
        """``dtype`` as a torch dtype."""
        return {"float32": torch.float32, "float64": torch.float64}[self.dtype]


def _check_types(group: Any) -> None:
    """Check the types of values; individual arguments are checked nowhere else.

    Raises:
        ValueError: with the attribute, its type and the value.
    """
    for name, field in type(group).__dataclass_fields__.items():
        value, kind = getattr(group, name), str(field.type).replace("<class '", "").replace("'>", "")
        numbers = value if name == "dimension_times" and value is not None else [value]
        whole = all(isinstance(n, Integral) and not isinstance(n, bool) for n in numbers)
        if not (
            (value is None and "None" in kind)
            or (kind.startswith("bool") and isinstance(value, bool))
            or (("int" in kind) and whole)
            or (kind.startswith("float") and isinstance(value, Real) and math.isfinite(value))
            or name in ("dtype", "deviation")
        ):
            raise ValueError(f"{type(group).__name__}.{name} is {value!r}: expected {kind}")


def _check_windows(name: str, steps: int, tau: int) -> None:
    if tau < 1 or steps < tau or steps % tau:
        raise ValueError(
            f"{name} is {steps}, but a window has {tau} steps: expected a multiple of it, such as "
            f"{max(1, round(steps / max(tau, 1))) * max(tau, 1)}"
        )


def with_flat(group: G, **flat: Any) -> G:
    """Return settings with individual values, as before they were grouped.

    Args:
        group: the settings.
        **flat: values by attribute, :data:`NOT_GIVEN` for those to keep.

    Raises:
        ValueError: for a value that the group sets differently, or of another type.

    Example:
        >>> with_flat(ShortTerm(tau=5), steps=20, tau=NOT_GIVEN)
        ShortTerm(steps=20, tau=5, sentences=None, dimension_times=None, dimension_sentences=None)
    """
    if (
        isinstance(group, type)
        or not hasattr(group, "__dataclass_fields__")
        or not flat.keys() <= vars(group).keys()
    ):
        raise ValueError(
            f"expected settings with {list(flat)} (ShortTerm, LongTerm, DynamicsNumerics), got {group!r}"
        )
    given = {name: value for name, value in flat.items() if value is not NOT_GIVEN}
    default = type(group)()
    for name, value in given.items():
        if getattr(group, name) not in (getattr(default, name), value):
            raise ValueError(
                f"{type(group).__name__}.{name} is {getattr(group, name)!r}, but also given as a separate argument, "
                f"{value!r}: remove the latter, the older form"
            )
    try:
        return replace(group, **given)
    except TypeError as error:
        types = {
            name: field.type for name, field in type(group).__dataclass_fields__.items() if name in given
        }
        raise ValueError(f"expected {types}, got {given}") from error


def flat_settings(prefix: str, group: ShortTerm | LongTerm | DynamicsNumerics) -> dict[str, Any]:
    """Return settings by their names in files of observations.

    Example:
        >>> flat_settings("short_", ShortTerm(dimension_times=(0, 25)))  # doctest: +NORMALIZE_WHITESPACE
        {'short_steps': 500, 'short_tau': 10, 'short_sentences': None, 'dimension_times': [0, 25],
         'dimension_sentences': None}
    """
    return {
        f"{prefix}{name}" if name in ("steps", "tau", "sentences") else name: (
            list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        )
        for name, value in vars(group).items()
    }
