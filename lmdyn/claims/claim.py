"""A publication's claim as an object: numbers, the regions in which it is true, a floor, and conditions."""

import hashlib
import json
import math
from abc import ABC
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any, Literal

from lmdyn.claims.numbers import Number, Scale, untrained

SCALE_ENDS: dict[Scale, tuple[float, float]] = {
    "plain": (-math.inf, math.inf),
    "fisher": (-1.0, 1.0),
    "logit": (0.0, 1.0),
    "log": (0.0, math.inf),
}

_WORDS: dict[str, Any] = {"words": True}


class Region(ABC):
    """The region of numbers for which a claim is true: from ``low`` to ``high``, which may be infinite."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def _set(region: Region, **values: float) -> None:
    for name, value in values.items():
        object.__setattr__(region, name, value)


def _bound(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError(f"{what} is {value!r}: expected a finite number")
    return float(value)


@dataclass(frozen=True)
class Above(Region):
    """All numbers from a bound upwards; the bound includes the smallest difference that matters.

    Example:
        >>> 0.2 in Above(0.1), 0.0 in Above(0.1), str(Above(0.1))
        (True, False, '≥ 0.1')
    """

    bound: float

    def __post_init__(self) -> None:
        bound = _bound(self.bound, "the bound of Above")
        _set(self, bound=bound, low=bound, high=math.inf)

    def __str__(self) -> str:
        return f"≥ {self.bound:g}"


@dataclass(frozen=True)
class Below(Region):
    """All numbers from a bound downwards; the bound includes the smallest difference that matters."""

    bound: float

    def __post_init__(self) -> None:
        bound = _bound(self.bound, "the bound of Below")
        _set(self, bound=bound, low=-math.inf, high=bound)

    def __str__(self) -> str:
        return f"≤ {self.bound:g}"


@dataclass(frozen=True)
class Within(Region):
    """An interval, for "flat", "equal", "not correlated"."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _set(self, low=_bound(self.low, "low of Within"), high=_bound(self.high, "high of Within"))
        if self.low >= self.high:
            raise ValueError(f"expected Within(low, high) with low < high, got {self.low} and {self.high}")

    def __str__(self) -> str:
        return f"{self.low:g} … {self.high:g}"


def _check_kinds(of: Any) -> None:
    if not isinstance(of.number, Number) or not isinstance(of.region, Region):
        got = f"{type(of.number).__name__} and {type(of.region).__name__}"
        raise TypeError(f"{type(of).__name__}: expected a Number and a Region, got {got}")


@dataclass(frozen=True)
class Part:
    """A number and the region in which it must lie.

    Attributes:
        number: the number of a run.
        region: region in which it must lie, in the number's own units.
        label: name of the number in tables.
        scale: scale on which the mean over seeds is computed; if ``plain``, that of the number.
    """

    number: Number
    region: Region
    label: str = field(default="", metadata=_WORDS)
    scale: Scale = "plain"

    def __post_init__(self) -> None:
        _check_kinds(self)
        if self.scale not in SCALE_ENDS:
            raise ValueError(f"scale must be 'plain', 'fisher', 'logit' or 'log', got {self.scale!r}")
        low, high = SCALE_ENDS[self.scale]
        for end in (self.region.low, self.region.high):
            if math.isfinite(end) and not low <= end <= high:
                raise ValueError(
                    f"region is {self.region}: expected bounds from {low:g} to {high:g} on scale {self.scale!r}"
                )

    @property
    def mean_scale(self) -> Scale:
        """The scale on which the mean is computed."""
        return self.number.scale if self.scale == "plain" else self.scale


@dataclass(frozen=True)
class Condition:
    """A requirement on each seed without which a claim is not judged: a tagger above chance, enough words.

    Attributes:
        says: the condition in words.
        number: the number of each seed.
        region: region in which each seed's number must lie.
    """

    says: str = field(metadata=_WORDS)
    number: Number
    region: Region

    def __post_init__(self) -> None:
        _check_kinds(self)


@dataclass(frozen=True)
class Published:
    """A number printed in a publication, with an interval if available.

    Attributes:
        value: the printed value.
        low: lower end of a 95 % interval, if printed; see :meth:`interval`.
        high: upper end.
        says: what the number is, and where it is printed.
        n: number of observations, from which :meth:`interval` is computed.
        kind: kind of the number, a ``correlation`` or a ``share``.
    """

    value: float
    low: float | None = None
    high: float | None = None
    says: str = ""
    n: int | None = None
    kind: Literal["correlation", "share"] | None = None

    def interval(self) -> tuple[float, float] | None:
        """Return the 95 % interval: as printed, Fisher's for a correlation, or Wilson's for a share; otherwise None."""
        if self.low is not None and self.high is not None:
            return self.low, self.high
        if self.n is None or self.kind is None:
            return None
        from lmdyn.analysis.statistics.intervals import correlation_interval, share_interval

        computed = correlation_interval if self.kind == "correlation" else share_interval
        return computed(self.value, self.n)


def published_correlation(r: float, n: int, says: str = "") -> Published:
    """Return a printed correlation of n pairs."""
    if not (-1 <= r <= 1 and n > 3):
        raise ValueError(f"expected a correlation from -1 to 1 of more than 3 pairs, got r = {r} and n = {n}")
    return Published(r, says=says, n=n, kind="correlation")


def published_share(p: float, n: int, says: str = "") -> Published:
    """Return a printed share (an accuracy) of n cases."""
    if not (0 <= p <= 1 and n > 0):
        raise ValueError(f"expected a share from 0 to 1 of at least 1 case, got p = {p} and n = {n}")
    return Published(p, says=says, n=n, kind="share")


@dataclass(frozen=True)
class Claim:
    """A claim of a publication, stated before it is measured.

    Attributes:
        name: short name, unique in the study, by which a run's provenance refers to it.
        says: the statement of the publication, in a sentence of ours.
        where: section, figure, table.
        parts: numbers and regions.
        combine: ``all`` if all parts must lie in their regions, or ``any``.
        matters: the smallest difference that matters, which the regions include, and why.
        floor: the value of the number without any effect (untrained, shuffled, another seed); or the reason why
            there is no such number.
        void_unless: conditions without which the claim is not judged; they must not read a quantity that a part reads.
        published: the printed number.
        question: claims with the same question are shown together: measures, rules, corpora.
        variant: name of this claim among those of its question.
        measured_by: the command that would measure it.
        inspected: seeds of runs that were inspected before this claim was stated in this form, or of runs that were
            made again since; in addition to those of its study.
        learned: conditions by which the model learned at all, on numbers that no part reads; stated later than the
            claim, and no part of its fingerprint. If one is not met, or not measured, the claim is void.
        forced: what explains the direction without the claim, such as frequency; told with the verdict.
        within: number of training tokens with a label within which the claim says that something happens. A shorter
            run may confirm the claim, but cannot refute it.

    Raises:
        ValueError: if there are no parts, or a condition reads what a part reads.
        TypeError: if the floor is neither a number nor a reason.

    Example:
        >>> from lmdyn.claims.numbers import At, Rows
        >>> rho = At(Rows("Sparsity", "rho_gradient", "h1", where=(("role", "target"),)))
        >>> claim = Claim("rho", "frequent words have sparse gradients", "figure 3", (Part(rho, Above(0.1)),),
        ...               floor="no untrained model is correlated by construction")
        >>> sorted(claim.reads()), len(claim.fingerprint)
        (['Sparsity/rho_gradient'], 64)
    """

    name: str
    says: str
    where: str
    parts: tuple[Part, ...]
    combine: Literal["all", "any"] = "all"
    matters: str = ""
    floor: Number | str = ""
    void_unless: tuple[Condition, ...] = ()
    published: Published | None = None
    question: str = ""
    variant: str = ""
    measured_by: str = ""
    inspected: tuple[int, ...] = ()
    learned: tuple[Condition, ...] = ()
    forced: str = ""
    within: float | None = None

    def __post_init__(self) -> None:
        if not self.parts or not all(isinstance(p, Part) for p in self.parts):
            raise ValueError(
                f"claim {self.name!r}: `parts` must be one or more Part objects, got "
                f"{', '.join(type(part).__name__ for part in self.parts) or 'none'}"
            )
        if self.combine not in ("all", "any"):
            raise ValueError(f"claim {self.name!r}: combine must be 'all' or 'any', got {self.combine!r}")
        if not isinstance(self.floor, (Number, str)) or self.floor == "":
            raise TypeError(
                f"claim {self.name!r}: floor is {self.floor!r}: expected a Number, or a text: why there is no floor"
            )
        if self.within is not None and _bound(self.within, f"claim {self.name!r}: within") <= 0:
            raise ValueError(
                f"claim {self.name!r}: within is {self.within}: expected a number of tokens above 0"
            )
        judged = self.reads()
        for condition in self.void_unless:
            if shared := condition.number.reads() & judged:
                raise ValueError(
                    f"claim {self.name!r}: the condition {condition.says!r} reads {', '.join(sorted(shared))}, as "
                    "the claim does: choose a condition that reads none of the observations that decide the claim"
                )

    def reads(self) -> frozenset[str]:
        """Return the ``Observer/quantity`` by which it is judged, without those of floor and conditions."""
        return frozenset(name for part in self.parts for name in part.number.reads())

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of parts, combination, floor and conditions: what determines the verdict, without texts."""
        floor = self.floor if isinstance(self.floor, Number) else "none"
        return fingerprint_of((self.parts, self.combine, floor, self.void_unless))


def claim(
    name: str,
    says: str,
    where: str,
    number: Number,
    region: Region,
    label: str = "",
    *,
    scale: Scale = "plain",
    floor: Number | str | None = None,
    **about: Any,
) -> Claim:
    """Return a claim about one number, a row in the table of a study.

    Args:
        name: see :class:`Claim`; also ``says`` and ``where``.
        says: the statement.
        where: section, figure, table.
        number: see :class:`Part`; also ``region``, ``label`` and ``scale``.
        region: region in which the number must lie.
        label: name of the number.
        scale: scale of the mean over seeds.
        floor: the floor; default: the same number of the untrained model.
        **about: further arguments of :class:`Claim`.
    """
    floor = untrained(number) if floor is None else floor
    return Claim(name, says, where, (Part(number, region, label, scale),), floor=floor, **about)


@dataclass(frozen=True)
class Study:
    """The claims of one publication, which are judged together.

    Attributes:
        name: ``<author><year>_<word>``, the name of its file.
        title: title of the publication.
        publication: authors, year, and further publications with the same content.
        claims: the claims, in the order in which they are shown.
        inspected: seeds whose runs were inspected before the claims were stated: their results are exploratory.
        inspected_in: conditions of these runs: a run counts as one of them only if it has all values of one of these
            conditions, as the seed does not identify runs of another model or text. If empty, the seed decides.
        terms: meaning of the terms in names of variants; pages explain them before the tables.
        own: what names of variants contain that measure as the publication does, the first of them before the others.
        measured_by: the command that would measure those claims that have none of their own.

    Raises:
        ValueError: if two claims have the same name.
    """

    name: str
    title: str
    publication: str
    claims: tuple[Claim, ...]
    inspected: tuple[int, ...] = (1,)
    inspected_in: tuple[tuple[tuple[str, Any], ...], ...] = ()
    terms: tuple[tuple[str, str], ...] = ()
    own: tuple[str, ...] = ()
    measured_by: str = ""

    def __post_init__(self) -> None:
        names = [claim.name for claim in self.claims]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"study {self.name!r} has several claims called {', '.join(twice)}: rename them")

    def was_inspected(
        self, init: int | None, condition: Mapping[str, Any], also: tuple[int, ...] = ()
    ) -> bool:
        """Return whether a run is one of those inspected before, by its seed and its condition.

        A run whose seed or condition is unknown, because it has no configuration, counts as inspected.

        Args:
            init: its seed; None if unknown.
            condition: its condition.
            also: further inspected seeds, such as those of one claim (``Claim.inspected``).

        Example:
            >>> study = Study("doe2001_word", "", "", (), inspected_in=((("data", "GrammarCorpus"),),))
            >>> study.was_inspected(1, {"data": "GrammarCorpus"}), study.was_inspected(1, {"data": "MyText"})
            (True, False)
        """
        seeds = (*self.inspected, *also)
        if not seeds or init not in (*seeds, None):
            return False
        cases = [all(condition.get(key) == value for key, value in case) for case in self.inspected_in]
        return any(cases) or not (cases and condition)


# ------------------------------------------------------------------------------------------ fingerprints


def canonical(value: Any) -> Any:
    """Convert a frozen dataclass, recursively, to JSON types.

    A dataclass becomes its class name and the fields that differ from their default: adding an argument later
    changes nothing, but a default must never change. Text fields, ``field(metadata={"words": True})``, are left
    out. A ``revision`` of the class that is not 0 is included.

    Raises:
        TypeError: if a value is neither plain nor such a dataclass.

    Example:
        >>> from dataclasses import dataclass, field
        >>> @dataclass(frozen=True)
        ... class Above:
        ...     bound: float
        ...     closed: bool = True
        ...     says: str = field(default="", metadata={"words": True})
        >>> canonical((Above(0.5, says="more than half"), Above(1, closed=False)))
        [['Above', {'bound': 0.5}], ['Above', {'bound': 1, 'closed': False}]]
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, (tuple, list)):
        return [canonical(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): canonical(v) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        told = {
            f.name: canonical(getattr(value, f.name))
            for f in fields(value)
            if not f.metadata.get("words") and not _at_default(f, getattr(value, f.name))
        }
        revision = getattr(type(value), "revision", 0)
        return [type(value).__name__, told, *([revision] if revision else [])]
    raise TypeError(f"{value!r} cannot be part of a claim: expected texts, numbers, tuples or dataclasses")


def _at_default(field: "Field[Any]", value: Any) -> bool:
    return (
        field.default is not MISSING and type(field.default) is type(value) and bool(field.default == value)
    )


def fingerprint_of(value: Any) -> str:
    """Return the SHA-256 of :func:`canonical`, 64 hexadecimal digits.

    Example:
        >>> fingerprint_of((1, "a"))[:8]
        '20109453'
    """
    text = json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
