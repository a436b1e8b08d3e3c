"""Sums and small objects over ranks: all communication of analyses between processes."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

__all__ = [
    "all_reduce_sum",
    "all_reduce_sums",
    "divided",
    "gather",
    "rank_and_world_size",
    "union_over_ranks",
]

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def rank_and_world_size() -> tuple[int, int]:
    """Return this process's rank and the number of processes; (0, 1) without a process group.

    Example:
        >>> rank_and_world_size()
        (0, 1)
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Return the sum of ``tensor`` over ranks, on every rank, as a new tensor; ``tensor`` without a process group.

    With NCCL, the sum is computed on the current CUDA device, whatever the device of ``tensor``.

    Example:
        >>> all_reduce_sum(torch.tensor(2.0))
        tensor(2.)
    """
    if rank_and_world_size()[1] == 1:
        return tensor
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"  # the current one
    total = tensor.to(device, copy=True)
    torch.distributed.all_reduce(total)
    return total.to(tensor.device)


def gather(value: T) -> list[T]:
    """Return the values of all ranks, in the order of ranks, on every rank; every rank must call it.

    Example:
        >>> gather("mine")
        ['mine']
    """
    world_size = rank_and_world_size()[1]
    if world_size == 1:
        return [value]
    values: list[T | None] = [None] * world_size
    torch.distributed.all_gather_object(values, value)
    return cast(list[T], values)


def union_over_ranks(keys: Iterable[K]) -> tuple[K, ...]:
    """Return the keys of all ranks, on every rank in the order of the first that has them; every rank must call it.

    Sums by name need it: a rank without data may have no names.

    Example:
        >>> union_over_ranks(["loss", "surprisal"])
        ('loss', 'surprisal')
    """
    return tuple(dict.fromkeys(key for of_rank in gather(tuple(keys)) for key in of_rank))


def all_reduce_sums(tensors: Mapping[K, Tensor]) -> dict[K, Tensor]:
    """Return the sums over ranks of float64 tensors by name; every rank must call it, and some may have no tensors.

    Example:
        >>> all_reduce_sums({"loss": torch.ones(1).double()})
        {'loss': tensor([1.], dtype=torch.float64)}
    """
    shapes: dict[K, tuple[int, ...]] = {}
    for of_rank in gather({name: tuple(total.shape) for name, total in tensors.items()}):
        shapes |= of_rank
    zeros = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    return {name: all_reduce_sum(tensors.get(name, of_none)) for name, of_none in zeros.items()}


def divided(
    jobs: Iterable[tuple[Callable[[], Any], Callable[[Any], Iterable[T]]]], *, together: bool = False
) -> list[T]:
    """Do jobs, divided among ranks, and return all results in the order of the jobs, on every rank.

    Args:
        jobs: the same on every rank: a function that reads something, and one that yields results from it.
        together: whether every rank must read what one of them needs, as sharded weights.

    Example:
        >>> divided([(lambda: 3, range), (lambda: 2, range)])
        [0, 1, 2, 0, 1]
    """
    rank, ranks = rank_and_world_size()
    own: dict[int, list[T]] = {}
    for number, (read, results) in enumerate(jobs):
        mine = number % ranks == rank
        values = read() if mine or together else None
        if mine:
            own[number] = list(results(values))
    by_job = {number: found for part in gather(own) for number, found in part.items()}
    return [result for number in sorted(by_job) for result in by_job[number]]
