"""Sums and small objects over ranks: all communication of analyses between processes."""

from collections.abc import Hashable, Iterable
from typing import TypeVar, cast

import torch
from torch import Tensor

__all__ = ["all_reduce_sum", "gather", "rank_and_world_size", "union_over_ranks"]

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
    device = (
        torch.device("cuda", torch.cuda.current_device())
        if torch.distributed.get_backend() == "nccl"
        else "cpu"
    )
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
