"""Pseudo-random numbers that are functions of a key: the same in any order, process and number of ranks."""

import torch
from jaxtyping import Int
from torch import Tensor

__all__ = ["splitmix64"]


def splitmix64(keys: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Mix each key into 64 bits by SplitMix64, as signed integers; one to one, on any device.

    Args:
        keys: (…) int64, read as 64 bits.

    Reference: Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators", mix64variant13.

    Example:
        >>> bits = splitmix64(torch.tensor(0x9E3779B97F4A7C15 - 2**64))  # the first number after a state of 0
        >>> hex(int(bits) % 2**64)
        '0xe220a8397b1dcdaf'
    """
    z = keys.to(torch.int64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64)):
        z = (z ^ _right(z, shift)) * factor
    return z ^ _right(z, 31)


def _right(z: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros (torch fills with the sign)."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
