"""SplitMix64 against its published stream and against integers of Python."""

import torch

from lmdyn.analysis.statistics.hashing import splitmix64

GOLDEN = 0x9E3779B97F4A7C15  # what the generator adds to its state before each number
WHOLE = 2**64


def signed(bits):
    return (bits + 2**63) % WHOLE - 2**63


def mixed(key):
    """Steele, Lea & Flood 2014, mix64variant13, of a Python integer."""
    z = key % WHOLE
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WHOLE
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WHOLE
    return z ^ (z >> 31)


def test_the_first_numbers_of_the_generator():
    states = torch.tensor([signed(GOLDEN * i) for i in (1, 2, 3)])  # seeded by 0
    found = [int(bits) % WHOLE for bits in splitmix64(states)]
    assert found == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_equals_integers_of_any_size_and_sign():
    keys = [0, 1, -1, 2**63 - 1, -(2**63), *(signed(i * 0x123456789ABCDEF1) for i in range(200))]
    found = splitmix64(torch.tensor(keys))
    assert found.dtype == torch.int64
    assert found.tolist() == [signed(mixed(key)) for key in keys]
    assert bool((found < 0).any())  # 64 bits, read as signed integers
    assert bool((found > 0).any())
