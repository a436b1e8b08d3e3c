"""How the table of measures is read: what an answer, a refusal and an invariance are, and how they are checked.

A row of the table (``tests/properties/table.py``) says of one measure what its docstring says. Inputs are float64
tensors made from a sample of sizes and a seed, which hypothesis draws; what troubles them (NaN, infinite values,
constants, one row, none, other types) is done to them here.
"""

import linecache
import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lmdyn

Args = tuple[Any, ...]

# ------------------------------------------------------------------------------------------------ outcomes


@dataclass(frozen=True)
class Refused:
    """An error of lmdyn's own, which matches a pattern."""

    says: str


@dataclass(frozen=True)
class Outcome:
    """What is answered, by name."""

    name: str


NAN = Outcome("every number is NaN")
SOME_NAN = Outcome("numbers are those without the trouble, or NaN, and some are NaN")
SAME_OR_NAN = Outcome("numbers are those without the trouble, or NaN")
SAME_OR_NOT_FINITE = Outcome("numbers are those without the trouble, or NaN, or infinite")
LEFT_OUT = Outcome("the numbers are those without that observation")
AS_USUAL = Outcome("the numbers of any other input of this size, in their range")
NOTHING = Outcome("an answer without numbers, or the sums of nothing: 0")
NO_CASE = Outcome("there is no such input")


@dataclass(frozen=True)
class Value:
    """Every number is this one."""

    value: float


Expected = Refused | Outcome | Value


# ------------------------------------------------------------------------------------------------ the row


@dataclass(frozen=True)
class Sample:
    """What inputs are made from."""

    seed: int
    n: int
    d1: int
    d2: int

    @property
    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)


@dataclass(frozen=True, repr=False)
class Measure:
    """One row of the table.

    Attributes:
        names: what it covers, as ``module.name`` below ``lmdyn.analysis``, by spaces; the first one names the row.
        call: of the inputs; answers numbers, tensors, arrays, or what holds such.
        make: inputs of a sample; those of floating point are what is troubled.
        low: least possible number.
        high: greatest.
        invariant: argument (or "all" for one map of all of them) to names of ``MAPS`` that change no number.
        symmetric: whether the first two arguments may change places.
        nan: what a NaN in an argument gives; to an argument, where they differ.
        inf: the same of an infinite number; None: as a NaN.
        minus_inf: the same of −∞; None: as +∞.
        constant: where the first argument is the same number throughout.
        zero: where that number is 0; None: as any other.
        one: of one row.
        empty: of no row.
        lengths: where the first argument lacks the last two rows that the others have.
        integers: of whole numbers where floats are expected.
        half: types whose numbers must be those of the same values in float64.
        rounded: whether products are in the type of the inputs, as a model's are, so that their rounding shows.
        tolerance: of two ways to the same number, relative to numbers of size 1.
        rows: how inputs are cut to some rows; by default all along their first dimension.
        variant: tells apart rows of the same name.
    """

    names: str
    call: Callable[..., Any]
    make: Callable[[Sample], Args]
    low: float = -math.inf
    high: float = math.inf
    invariant: Mapping[int | str, str] = field(default_factory=dict)
    symmetric: bool = False
    nan: Expected | Mapping[int, Expected] = NAN
    inf: Expected | Mapping[int, Expected] | None = None
    minus_inf: Expected | Mapping[int, Expected] | None = None
    constant: Expected = NO_CASE
    zero: Expected | None = None
    one: Expected = NO_CASE
    empty: Expected = NO_CASE
    lengths: Expected = Refused(".")
    integers: Expected = AS_USUAL
    half: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16)
    rounded: bool = False
    tolerance: float = 1e-7
    rows: Callable[[Args, int], Args] | None = None
    variant: str = ""

    def __repr__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        return self.names.split()[0] + (f"[{self.variant}]" if self.variant else "")

    def cut(self, args: Args, rows: int) -> Args:
        if self.rows is not None:
            return self.rows(args, rows)
        return tuple(a[:rows] if isinstance(a, Tensor) else a for a in args)

    def expected(self, trouble: float, argument: int) -> Expected:
        found: Any = self.nan
        if math.isinf(trouble) and self.inf is not None:
            found = self.inf
        if trouble == -math.inf and self.minus_inf is not None:
            found = self.minus_inf
        return found[argument] if isinstance(found, Mapping) else found


# ------------------------------------------------------------------------------------------------ numbers


def numbers(answer: Any) -> Tensor:
    """All numbers of an answer in one row, float64."""
    return torch.cat([torch.zeros(0, dtype=torch.float64), *_parts(answer)])


def _parts(answer: Any) -> list[Tensor]:
    if answer is None or isinstance(answer, str):
        return []
    if isinstance(answer, Tensor):
        return [answer.detach().double().flatten()]
    if isinstance(answer, (int, float, np.ndarray, np.generic)):
        return [torch.as_tensor(np.asarray(answer, dtype=np.float64)).flatten()]
    if isinstance(answer, Mapping):
        return [part for value in answer.values() for part in _parts(value)]
    if is_dataclass(answer):
        return [part for f in fields(answer) for part in _parts(getattr(answer, f.name))]
    return [part for value in answer for part in _parts(value)]


def precision(answer: Any) -> float:
    """The rounding of an answer's own type."""
    if isinstance(answer, Tensor):
        return torch.finfo(answer.dtype).eps if answer.is_floating_point() else 2.0**-52
    if is_dataclass(answer):
        answer = [getattr(answer, f.name) for f in fields(answer)]
    if not isinstance(answer, (Mapping, tuple, list)):
        return 2.0**-52
    return max(map(precision, answer.values() if isinstance(answer, Mapping) else answer), default=2.0**-52)


def same(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    if found.shape != expected.shape:
        return False
    return bool(torch.allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True))


def is_own(error: BaseException) -> bool:
    """Whether lmdyn raised an error, for a user: by a ``raise`` of its own, not within a library nor by accident."""
    if not isinstance(error, (ValueError, TypeError)):
        return False
    last = traceback.extract_tb(error.__traceback__)[-1]
    inside = Path(last.filename).is_relative_to(Path(lmdyn.__file__).parent)
    return inside and linecache.getline(last.filename, last.lineno or 0).lstrip().startswith("raise ")


def check(measure: Measure, args: Args, expected: Expected, clean: Args, dropped: Args | None = None) -> None:
    """Whether a measure answers as its row says.

    Args:
        measure: the row.
        args: its inputs, troubled.
        expected: what the row says of that.
        clean: the inputs without the trouble.
        dropped: these without the observation that is troubled.
    """
    if expected == NO_CASE:
        return
    if isinstance(expected, Refused):
        with pytest.raises((ValueError, TypeError), match=expected.says) as caught:
            answer = measure.call(*args)
            pytest.fail(f"was not refused, but answered {numbers(answer)[:8].tolist()}")
        assert is_own(caught.value), f"an error of a library's: {caught.value!r}"
        return
    found = numbers(measure.call(*args))
    if isinstance(expected, Value):
        assert len(found)
        assert same(found, torch.full_like(found, expected.value), 1e-9), found[:8]
    elif expected == NAN:
        assert len(found)
        assert found.isnan().all(), f"numbers made of nothing: {found[:8].tolist()}"
    elif expected in (SOME_NAN, SAME_OR_NAN, SAME_OR_NOT_FINITE):
        before = numbers(measure.call(*clean))
        assert found.shape == before.shape
        told = ~found.isfinite() if expected == SAME_OR_NOT_FINITE else found.isnan()
        bad = ~told & ~torch.isclose(found, before, rtol=1e-9, atol=1e-9, equal_nan=True)
        assert not bad.any(), f"numbers that the trouble changed: {found[bad][:8].tolist()}"
        some = (found.isnan() & ~before.isnan()).any()
        assert some or expected != SOME_NAN, f"no number is NaN: {found[:8].tolist()}"
    elif expected == LEFT_OUT:
        assert dropped is not None
        assert same(found, numbers(measure.call(*dropped)), 1e-9)
    elif expected == NOTHING:
        assert not found.any(), found[:8]  # no number, or 0
    else:
        assert expected == AS_USUAL
        in_range(measure, found)


def in_range(measure: Measure, found: Tensor) -> None:
    known = found[~found.isnan()]
    assert (known >= measure.low - 1e-12).all(), f"below {measure.low}: {known.min()}"
    assert (known <= measure.high + 1e-12).all(), f"above {measure.high}: {known.max()}"


# ------------------------------------------------------------------------------------------------ maps


def orthogonal(d: int, g: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(d, d, generator=g, dtype=torch.float64)).Q


def _affine(x: Tensor, g: torch.Generator) -> Tensor:
    """Invertible, with a condition number of at most 4."""
    d = x.shape[-1]
    spectrum = 0.5 + 1.5 * torch.rand(d, generator=g, dtype=torch.float64)
    return x @ (orthogonal(d, g) * spectrum @ orthogonal(d, g)) + _shift(torch.zeros_like(x), g)


def _shift(x: Tensor, g: torch.Generator) -> Tensor:
    if x.ndim == 1:
        return x + 10 * torch.randn((), generator=g, dtype=torch.float64)
    return x + 10 * torch.randn(x.shape[-1], generator=g, dtype=torch.float64)


def _lengths(x: Tensor, g: torch.Generator) -> Tensor:
    return x * (0.1 + torch.rand(*x.shape[:-1], 1, generator=g, dtype=torch.float64))


def _of_rows(x: Tensor, g: torch.Generator) -> Tensor:
    return x + torch.randn(*x.shape[:-1], 1, generator=g, dtype=torch.float64)


MAPS: Mapping[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "affine": _affine,
    "shift": _shift,
    "rotation": lambda x, g: x @ orthogonal(x.shape[-1], g),
    "scale": lambda x, g: x * 10.0 ** (8 * torch.rand((), generator=g, dtype=torch.float64) - 4),
    "sign": lambda x, g: -x,
    "lengths": _lengths,  # of each row, by a factor of its own
    "row_shift": _of_rows,  # all features of a row by one number
    "units": lambda x, g: x[..., torch.randperm(x.shape[-1], generator=g)],
    "rising": lambda x, g: x**3 + x,
    "rows": lambda x, g: x[torch.randperm(len(x), generator=g)],
    "samples": lambda x, g: x.index_select(-2, torch.randperm(x.shape[-2], generator=g)),
}
"""What may change nothing: of an argument (…, samples, units), or (samples,)."""
