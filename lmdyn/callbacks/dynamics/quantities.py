"""Quantities of dynamics: shares, numbers of steps of a map, and rates in nats per step of a map."""

from functools import partial

from lmdyn.runs.schema import Quantity

__all__ = ["rate", "share", "steps"]

share = partial(Quantity, unit="share", low=0.0, high=1.0)
steps = partial(Quantity, unit="steps", low=0.0)
rate = partial(Quantity, unit="nats/step")
