"""Effect of single tokens on the logits around them, by changing tokens and comparing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import observing
from lmdyn.analysis.inspection.forward import Batch, Forward, call_module, is_sharded, logits_of

__all__ = ["OFFSETS", "TokenEffects", "token_effects"]

OFFSETS = (-2, -1, 0, 1, 2)
"""Positions of the compared logits, relative to the changed token."""

FLOOR = 1e-6
"""Smallest change, as a share of the logits' scale, that is not a rounding error of float32."""

_NOISE = 4.0  # an effect must exceed this multiple of the difference between repeated forward passes
_ROWS, _ROUNDS = 12, 6


@dataclass(frozen=True)
class TokenEffects:
    """Effect of changing single tokens on the logits at their positions and next to them.

    Attributes:
        changes: largest change of a logit by its position relative to the token, one of ``OFFSETS``, as a share of the
            logits' scale; NaN if it was not measured.
        threshold: difference that a repeated forward pass may have, as the same share.
        finite: whether some of these logits are finite; otherwise, nothing is known.
        replaced: number of parameters that are zero, and were replaced by random numbers.
    """

    changes: Mapping[int, float]
    threshold: float
    finite: bool
    replaced: int = 0

    def depends(self, offset: int) -> bool | None:
        """Return whether the logits ``offset`` positions after a token depend on it; None if this was not measured."""
        change = self.changes.get(offset, math.nan)
        return None if math.isnan(change) else change > self.threshold

    @property
    def any(self) -> bool:
        """Return whether any changed token had an effect."""
        return any(self.depends(offset) for offset in OFFSETS)

    @property
    def mixes(self) -> bool:
        """Return whether logits depend on the token of another position."""
        return any(self.depends(offset) for offset in OFFSETS if offset)

    @property
    def reads_ahead(self) -> bool | None:
        """Return whether logits depend on a later token; None if not measured, or if nothing has an effect."""
        found = [self.depends(offset) for offset in OFFSETS if offset < 0]
        return True if any(found) else False if False in found and self.any else None


def token_effects(
    module: nn.Module,
    batches: Sequence[Batch],
    places: Sequence[Bool[Tensor, "_ _"]],
    real: Sequence[Bool[Tensor, "_ _"]],
    forward: Forward | None = None,
    *,
    key: str = "input_ids",
) -> TokenEffects:
    """Change single tokens and compare the logits around them with those of the unchanged text.

    The batch keeps its shape: in each forward pass, one token is changed in half of up to 12 of its rows, to another id
    that occurs in the batches and is not special, and the other rows show the random variation of the logits. All
    passes draw the same random numbers, except a repeated one if there is only one row. If no token has an effect on
    other positions, parameters that are zero, such as a head's or a gate's at step 0, are replaced by random numbers
    during the measurement. Weights, gradients, modes and generators are not changed.

    Args:
        module: the module.
        batches: batches with the names of Hugging Face, on the module's device.
        places: for each batch, (rows, time), the tokens to change; some of them are used, spread over rows and time,
            the same ones in each process.
        real: for each batch, (rows, time), the logits that are compared: those of text.
        forward: as in :func:`~lmdyn.analysis.inspection.forward.call_module`.
        key: the entry of the batch whose tokens are changed.

    Example:
        >>> module = nn.Embedding(3, 5)  # returns 5 "logits" per token, by that token alone
        >>> ids = torch.tensor([[0, 2, 1, 0]])
        >>> found = token_effects(module, [{"input_ids": ids}], [ids > 0], [ids >= 0])
        >>> found.depends(0), found.depends(1), found.mixes
        (True, False, False)
    """
    measure = partial(_measured, module, batches, places, real, forward, key)
    found = measure()
    zeros = _zero_parameters(module) if found.finite and not found.mixes else {}
    if not zeros:
        return found
    with _replaced(module, zeros):
        return replace(measure(), replaced=len(zeros))


def _measured(
    module: nn.Module,
    batches: Sequence[Batch],
    places: Sequence[Tensor],
    real: Sequence[Tensor],
    forward: Forward | None,
    key: str,
) -> TokenEffects:
    ids: Tensor = torch.cat([batch[key].flatten() for batch in batches]).unique()
    ids = ids[ids >= 0]
    usual = ids[~torch.isin(ids, ids.new_tensor(_special_ids(module)))]
    ids = usual if len(usual) > 1 else ids
    changes = torch.full((len(OFFSETS),), torch.nan)
    noise = 0.0
    scale = 0.0
    finite = False

    def logits_for(batch: Batch, tokens: Tensor, seed: int = 0) -> Tensor:
        torch.manual_seed(seed)  # what a module draws, such as a loop's initial state, is the same for a seed
        return logits_of(call_module(module, {**batch, key: tokens}, forward=forward))

    with observing(module), torch.no_grad():
        for batch, at, text in zip(batches, places, real, strict=True):
            tokens = batch[key]
            rounds = _rounds(at, max(2, _ROUNDS // len(batches)))
            if not rounds:
                continue
            wanted = [positions[:, None] + positions.new_tensor(OFFSETS) for _, positions, _ in rounds]
            rows_of = [rows[:, None] for rows, _, _ in rounds]
            windows = [(r, w.clamp(0, text.shape[1] - 1)) for r, w in zip(rows_of, wanted, strict=True)]
            seeds = (0, int(len(rounds[0][0]) == 1))
            passes = (logits_for(batch, tokens, seed) for seed in seeds)
            before, again = ([logits[window].float() for window in windows] for logits in passes)
            for i, (rows, positions, changed) in enumerate(rounds):
                scale = max(scale, _scale(before[i]))
                finite = finite or bool(before[i].isfinite().any())
                altered = tokens.clone()
                where = rows[changed], positions[changed]
                # the next
                altered[where] = ids[torch.searchsorted(ids, tokens[where], right=True) % len(ids)]
                found = _change(before[i], logits_for(batch, altered)[windows[i]])
                unaltered = torch.cat([found[~changed].flatten(), _change(before[i], again[i]).flatten()])
                noise = max(noise, float(unaltered.nan_to_num(0.0, 0.0).amax()))
                known = (wanted[i] == windows[i][1]) & text[windows[i]]
                found = found.where(known, torch.nan)[changed].nan_to_num(-1.0, torch.inf)
                changes = torch.fmax(changes, found.amax(0).cpu())
    scale = scale or 1.0  # without a scale, nothing changed
    shares = [change / scale if change >= 0 else math.nan for change in changes.tolist()]
    return TokenEffects(dict(zip(OFFSETS, shares, strict=True)), max(FLOOR, _NOISE * noise / scale), finite)


def _rounds(places: Tensor, number: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return rows, one place in each, and which of them to change, for each forward pass."""
    rows = places.any(1).nonzero()[:, 0]
    if not len(rows):
        return []
    rows = rows[torch.linspace(0, len(rows) - 1, min(_ROWS, len(rows))).round().long().to(rows.device)]
    at = places[rows]
    order = torch.arange(len(rows), device=rows.device)
    found = []
    for i in range(number):
        # spread by the golden ratio
        nth = ((0.5 + 0.618 * (i + number * order)) % 1 * at.sum(1)).long()
        positions = (at & (at.cumsum(1) == nth[:, None] + 1)).int().argmax(1)
        found.append((rows, positions, (order % 2 == i % 2) | (len(rows) == 1)))
    return found


def _scale(logits: Tensor) -> float:
    """Return the largest of the logits of classes that vary: constant ones, such as masked ones, have no scale."""
    least, most = logits.flatten(0, -2).aminmax(dim=0)
    ends = torch.stack([least, most])[:, least != most].nan_to_num(0.0, 0.0, 0.0)
    return float(ends.abs().amax()) if ends.numel() else 0.0


def _change(before: Tensor, after: Tensor) -> Tensor:
    """Return the largest change over classes; infinite if a number becomes finite or not, NaN if none was finite."""
    same = (after == before) | (after.isnan() & before.isnan())
    largest = (after.float() - before).abs().masked_fill(same, 0.0).nan_to_num(torch.inf, torch.inf).amax(-1)
    return largest.masked_fill(~before.isfinite().any(-1), torch.nan)


def _special_ids(module: nn.Module) -> list[int]:
    """Return the ids of special tokens in the configurations of transformers' models."""
    # a user's may be a dict, or anything else
    configs = [getattr(m, "config", None) for m in module.modules()]
    settings = [c if isinstance(c, Mapping) else getattr(c, "__dict__", {}) for c in configs]
    given = [v for of in settings for name, v in of.items() if str(name).endswith("_token_id")]
    flat = (v for value in given for v in (value if isinstance(value, (list, tuple)) else [value]))
    return sorted({v for v in flat if isinstance(v, int)})


def _zero_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Return random tensors for parameters that are zero throughout; none if ranks share the weights."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, p in () if is_sharded(module) else module.named_parameters():
        if p.is_floating_point() and p.numel() and not p.detach().any():
            deviation = p.shape[1:].numel() ** -0.5 if p.ndim > 1 else 0.1
            found[name] = (torch.randn(p.shape, generator=generator) * deviation).to(p)
    return found


@contextmanager
def _replaced(module: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Let some parameters have other values in this context."""
    own = {name: p for name, p in module.named_parameters() if name in values}
    before = {name: p.data for name, p in own.items()}
    try:
        for name, p in own.items():
            p.data = values[name]
        yield
    finally:
        for name, p in own.items():
            p.data = before[name]
