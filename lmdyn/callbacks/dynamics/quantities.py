"""Quantities of dynamics: shares, numbers of steps, and rates."""

from typing import Any

from lmdyn.runs.schema import Quantity

__all__ = ["rate", "share", "steps"]


def share(name: str, meaning: str, tags: tuple[str, ...] = ("",), **other: Any) -> Quantity:
    """Return a share from 0 to 1."""
    return Quantity(name, meaning, "share", low=0.0, high=1.0, tags=tags, **other)


def steps(name: str, meaning: str, tags: tuple[str, ...] = ("",), **other: Any) -> Quantity:
    """Return a number of steps of a map."""
    return Quantity(name, meaning, "steps", **{"low": 0.0, "tags": tags, **other})


def rate(name: str, meaning: str, tags: tuple[str, ...] = ("",), **other: Any) -> Quantity:
    """Return a rate in nats per step of a map."""
    return Quantity(name, meaning, "nats/step", tags=tags, **other)
