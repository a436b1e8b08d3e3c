"""Findings before training about later failures and meaningless results, and the memory of observations."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from lmdyn.callbacks.observing.memory import free_memory, in_words
from lmdyn.callbacks.observing.run import warn

What = Literal["data", "module", "observation", "cost", "run"]


@dataclass(frozen=True)
class Finding:
    """One reason for which an observer cannot run, or for which a number will be missing.

    Attributes:
        what: kind of condition: on the ``data``, on the ``module``, of an ``observation`` tried
            on one batch, on memory or disk (``cost``), or on the ``run``, such as its schedules.
        why: what was expected and what was found, and how to make it run.
        error: exception that was raised.
        stops: whether nothing could be measured, or the number would be wrong; else some of the numbers are missing.

    Example:
        >>> print(Finding("data", "the probe set has no layer 'upos': choose others by `layers`"))
        the probe set has no layer 'upos': choose others by `layers`
    """

    what: What
    why: str
    error: Exception | None = field(default=None, compare=False, repr=False)
    stops: bool = True

    def __str__(self) -> str:
        return self.why


def expected(what: str, got: str, remedy: str, *, of: What = "data", stops: bool = True) -> Finding:
    """Create a finding in the order of all messages: expected, found, remedy.

    Example:
        >>> print(expected("100 pairs of words", "12", "lower `min_pairs`"))
        expected 100 pairs of words, got 12: lower `min_pairs`
    """
    return Finding(of, f"expected {what}, got {got}: {remedy}", stops=stops)


@dataclass(frozen=True)
class Cost:
    """Memory that an observation requires in addition to the module and one batch, estimated from shapes.

    Attributes:
        what: description, with the numbers of the estimate.
        memory: bytes.
        remedy: how to reduce it.
        host: whether it is in the host's memory, independent of the module's device.
    """

    what: str
    memory: int
    remedy: str = ""
    host: bool = False

    def __str__(self) -> str:
        return f"about {in_words(self.memory)}: {self.what}"


Foreseen = Finding | Cost


class ForeseenError(ValueError):
    """Known, before training, to fail or to be meaningless later.

    Attributes:
        findings: the reasons.
    """

    def __init__(self, whose: str, findings: Sequence[Finding]) -> None:
        super().__init__("; ".join(f"{whose}: {finding}" for finding in findings))
        self.findings = tuple(findings)


def beyond_memory(costs: Iterable[Cost], device: torch.device) -> list[Finding]:
    """Return a finding for each place, device or host, whose free memory the total cost exceeds.

    Args:
        costs: memory required at the same time.
        device: device of the module.
    """
    found = []
    by_place: dict[torch.device, list[Cost]] = {}
    for cost in costs:
        by_place.setdefault(torch.device("cpu") if cost.host else device, []).append(cost)
    for place, held in by_place.items():
        there = free_memory(place)
        needed = sum(cost.memory for cost in held)
        if there is not None and needed > there:
            largest = max(held, key=lambda cost: cost.memory)
            found.append(
                expected(
                    f"about {in_words(needed)} of memory ({largest.what})",
                    f"{in_words(there)} free on the {'host' if place.type == 'cpu' else place.type}",
                    largest.remedy or "observe fewer tokens or sites",
                    of="cost",
                )
            )
    return found


def raise_or_warn(whose: str, foreseen: Iterable[Foreseen], device: torch.device) -> list[Cost]:
    """Raise an error for what would fail or be wrong; warn about what will be missing.

    Returns:
        The memory costs.

    Raises:
        ForeseenError: with all findings that stop.
    """
    given = list(foreseen)
    costs = [c for c in given if isinstance(c, Cost)]
    findings = [*(f for f in given if isinstance(f, Finding)), *beyond_memory(costs, device)]
    if stopping := [f for f in findings if f.stops]:
        raise ForeseenError(whose, stopping)
    for finding in findings:
        warn(whose, str(finding))
    return costs
