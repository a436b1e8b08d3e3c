"""Rows of the records of ``EncoderDynamics``, and gathering over ranks."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.statistics.distributed import gather, rank_and_world_size

__all__ = ["Row", "gathered", "gathered_rows", "over_t"]


class Row(NamedTuple):
    """One number, and its groups."""

    quantity: str
    length: int | None = None
    term: str | None = None
    width: int | None = None
    kind: str | None = None
    t: int | None = None
    sentence: int | None = None
    token: int | None = None
    key: int | None = None
    component: int | None = None
    value: float = float("nan")


def over_t(
    quantity: str, values: Float[Tensor, "times"], *, every: int = 1, term: str | None = None, kind: str | None = None,
    sentence: int | None = None, token: int | None = None, component: int | None = None,
) -> list[Row]:  # fmt: skip
    """Return a row for each t whose value is a number."""
    where = {"term": term, "kind": kind, "sentence": sentence, "token": token, "component": component}
    return [
        Row(quantity, t=i * every, value=value, **where)  # type: ignore[arg-type]
        for i, value in enumerate(values.tolist())
        if value == value
    ]


def gathered(mine: Tensor) -> Tensor:
    """Gather the last axis, sentences, of all ranks in order: rank r has the numbers r, r + world size and so on."""
    parts: Sequence[Tensor] = gather(mine.cpu()) if rank_and_world_size()[1] > 1 else [mine]
    if len(parts) == 1:
        return mine
    whole = torch.empty(*mine.shape[:-1], sum(p.shape[-1] for p in parts), dtype=mine.dtype)
    for rank, part in enumerate(parts):
        whole[..., rank :: len(parts)] = part
    return whole


def gathered_rows(mine: Tensor) -> Tensor:
    """Gather as :func:`gathered` along the first axis, on the device of this rank's values."""
    return gathered(mine.movedim(0, -1)).movedim(-1, 0).to(mine.device)
