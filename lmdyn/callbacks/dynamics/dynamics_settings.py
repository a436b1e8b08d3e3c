"""Settings of ``EncoderDynamics`` for the short and the long term and for numerics, as frozen dataclasses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import torch

from lmdyn.analysis.dynamics.synchronization import THRESHOLD, DeviationVariant
from lmdyn.analysis.orbits.lyapunov import check_windows
from lmdyn.callbacks.observing.checked_fields import Above, From, check_fields

__all__ = ["DynamicsNumerics", "FromTwo", "LongTerm", "ShortTerm", "flat_settings"]

FromOne = Annotated[int, From(1)]
FromTwo = Annotated[int, From(2)]


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

    steps: FromOne = 500
    tau: FromOne = 10
    sentences: FromTwo | None = None
    dimension_times: Sequence[int] | None = None
    dimension_sentences: FromTwo | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        check_windows(self.tau, self.steps, "short_term.steps")
        times = self.times
        if any(t < 0 or t > self.steps for t in times) or sorted(set(times)) != list(times):
            raise ValueError(
                f"short_term.dimension_times must increase within 0 … {self.steps}, got {', '.join(map(str, times))}"
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
        resolution: |λ| up to which a period is searched for at the horizon, for the number of attractors.
        follow: multiple of ``steps`` for which trajectories are followed until their kind is known
            (:func:`~lmdyn.analysis.orbit_kind`); 1: not beyond.
        transverse_skip: number of steps before λ⊥ is averaged, in which a random difference aligns, rounded up
            to windows; None for 200.

    Raises:
        ValueError: for numbers out of range, or a window that does not divide a horizon.
    """

    steps: Annotated[int, From(0)] = 100_000
    tau: FromOne = 50
    sentences: FromOne | None = None
    check: Annotated[int, From(0)] = 2
    check_steps: FromOne = 1000
    max_period: FromOne = 256
    tolerance: Annotated[float, Above(0)] = 1e-5
    resolution: Annotated[float, From(0)] = 1e-3
    follow: FromOne = 4
    transverse_skip: Annotated[int, From(0)] | None = None

    @property
    def skipped(self) -> int:
        """Number of steps before λ⊥ is averaged."""
        return 200 if self.transverse_skip is None else self.transverse_skip

    def __post_init__(self) -> None:
        check_fields(self)
        check_windows(self.tau, self.steps or self.tau, "long_term.steps")
        check_windows(self.tau, self.check_steps, "long_term.check_steps")


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
    """

    epsilon: Annotated[float, Above(0)] = 1.0
    threshold: Annotated[float, Above(0)] = THRESHOLD
    reduced: bool = True
    dtype: Literal["float32", "float64"] = "float32"
    batch_size: FromOne = 16
    seed: int = 0
    deviation: DeviationVariant = "printed"

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def torch_dtype(self) -> torch.dtype:
        """``dtype`` as a torch dtype."""
        return cast(torch.dtype, getattr(torch, self.dtype))


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
