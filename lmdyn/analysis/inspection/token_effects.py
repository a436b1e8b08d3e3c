"""Measurement of which logits depend on which tokens: a token is changed, and the logits around it are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from lmdyn.analysis.inspection.activations import observing
from lmdyn.analysis.inspection.forward import Forward, call_module, is_sharded, logits_of

__all__ = ["TokenEffects", "token_effects", "zero_parameters"]

CHANGES = (-1, 0, 1)
"""Positions of the changed tokens, relative to a position."""

LOGITS = (-2, -1, 0, 1, 2)
"""Positions of the compared logits, relative to a position."""

FLOOR = 1e-6
"""Smallest change, as a share of the logits' scale, that is not a rounding error of float32."""

_NOISE = 4.0  # an effect must exceed this multiple of the difference between repeated forward passes
_PLACES = 12
_PLACES_IN_A_ROW = 3


@dataclass(frozen=True)
class TokenEffects:
    """Effect of changing single tokens on the logits around them.

    Attributes:
        effects: (places, 3, 5); for each place, and for a change of the token before it, at it and after it, the
            largest change of a logit two positions before it, …, two after it, as a share of the logits' scale. NaN if
            one of them is outside the text.
        threshold: difference that a repeated forward pass may have, as the same share.
        finite: whether some of these logits are finite; otherwise, nothing is known.
        predictions: for each batch, the most likely class at each position of the unchanged text.
        copying: for each batch, the probability at each position of the token at this position.
    """

    effects: Float[Tensor, "places 3 5"]
    threshold: float
    finite: bool
    predictions: tuple[Int[Tensor, "_ _"], ...]
    copying: tuple[Float[Tensor, "_ _"], ...]

    def depends(self, logit: int, token: int = 0) -> bool | None:
        """Return whether logits at ``place + logit`` depend on the token at ``place + token``; None if unmeasured."""
        found = self.effects[:, CHANGES.index(token), LOGITS.index(logit)]
        found = found[~found.isnan()]
        return bool((found > self.threshold).any()) if len(found) else None

    def size(self, logit: int, token: int = 0) -> float:
        """Return the largest change of the logits at ``place + logit`` by the token at ``place + token``.

        It is a share of the logits' scale; 0 if not measured.
        """
        found = self.effects[:, CHANGES.index(token), LOGITS.index(logit)]
        return float(found.nan_to_num(0.0, posinf=torch.inf).amax()) if len(found) else 0.0

    @property
    def any(self) -> bool:
        """Return whether any changed token had an effect."""
        return bool((self.effects.nan_to_num(0.0, posinf=torch.inf) > self.threshold).any())

    @property
    def mixes(self) -> bool:
        """Return whether logits depend on the token of another position."""
        return any(self.depends(o, k) for k in CHANGES for o in LOGITS if o != k)

    @property
    def reads_ahead(self) -> bool | None:
        """Return whether logits depend on a later token; None if not measured, or if nothing has an effect."""
        found = [self.depends(o, k) for k in CHANGES for o in LOGITS if o < k]
        if any(found):
            return True
        return False if False in found and self.any else None


def token_effects(
    module: nn.Module,
    batches: Sequence[Mapping[str, Any]],
    places: Sequence[Bool[Tensor, "_ _"]],
    real: Sequence[Bool[Tensor, "_ _"]],
    forward: Forward | None = None,
    *,
    key: str = "input_ids",
    shown: Sequence[Bool[Tensor, "_ _"]] | None = None,
    avoid: Sequence[int] = (),
    parameters: Mapping[str, Tensor] | None = None,
) -> TokenEffects:
    """Change single tokens and compare the logits around them with those of the unchanged text.

    The batch keeps its shape: in each forward pass, one token is changed in about half of its rows, to another id that
    occurs in the batches, and the other rows show the random variation of the logits. All passes draw the same random
    numbers, except a repeated one if no row is left unchanged. Only logits around the changed positions are kept.
    Weights, gradients, modes and generators are not changed.

    Args:
        module: the module.
        batches: batches with the names of Hugging Face, on the module's device.
        places: for each batch, (rows, time), the tokens around which to measure; up to 12 of them are used, spread
            over rows and time, the same ones in each process.
        real: for each batch, (rows, time), whether tokens are text: no others are changed.
        forward: as in :func:`~lmdyn.analysis.inspection.forward.call_module`.
        key: the entry of the batch whose tokens are changed.
        shown: for each batch, (rows, time), the logits that are compared; those of text by default.
        avoid: ids that tokens are not changed to, if there are others.
        parameters: tensors to use instead of some of the module's parameters, by name.

    Returns:
        The effects.

    Example:
        >>> module = nn.Embedding(3, 5)  # returns 5 "logits" per token, by that token alone
        >>> ids = torch.tensor([[0, 2, 1, 0]])
        >>> found = token_effects(module, [{"input_ids": ids}], [ids > 0], [ids >= 0])
        >>> found.depends(0), found.depends(-1), found.mixes
        (True, False, False)
    """
    caller = _Caller(module, forward)
    ids = _candidates(batches, key, real, avoid)
    rounds = _rounds(places)
    seen = _Range()
    effects: list[Tensor] = []
    numbers: list[Tensor] = []
    noise = [0.0]
    predictions: list[Tensor] = []
    copying: list[Tensor] = []
    with observing(module), torch.no_grad():
        for number, batch in enumerate(batches):
            own = [at for n, at in rounds if n == number]
            logits = caller.logits(batch, parameters)
            predictions.append(logits.argmax(-1))
            copying.append(_probability(logits, batch[key]))
            if not own:
                continue
            at = torch.cat(own)
            order = torch.cat([torch.full((len(a),), i) for i, a in enumerate(own)])
            rows = at[:, :1]
            window = (at[:, 1:] + torch.tensor(LOGITS)).clamp(0, logits.shape[1] - 1)
            before = seen.add(logits[rows, window])
            del logits
            spared = any(
                not torch.isin(at[:, 0], a[:, 0]).all() for a in own
            )  # rows that show the random variation
            repeated = caller.logits(batch, parameters, seed=0 if spared else 1)
            noise.append(_largest(_change(before, repeated[rows, window])))
            del repeated
            found = torch.zeros(len(at), len(CHANGES), len(LOGITS))
            for i, a in enumerate(own):
                untouched = ~torch.isin(at[:, 0], a[:, 0])
                for j, change in enumerate(CHANGES):
                    altered = _altered(batch, key, a, change, real[number], ids)
                    differences = _change(before, seen.add(caller.logits(altered, parameters)[rows, window]))
                    found[order == i, j] = differences[order == i].cpu()
                    noise.append(_largest(differences[untouched]))
            found[~_valid(at, real[number], (shown or real)[number])] = torch.nan
            effects.append(found)
            numbers.append(before.isfinite().any())
    effects = effects or [torch.zeros(0, len(CHANGES), len(LOGITS))]
    scale = seen.scale or 1.0  # without a scale, nothing changed
    threshold = max(FLOOR, _NOISE * max(noise) / scale)
    finite = any(bool(number) for number in numbers)
    return TokenEffects(torch.cat(effects) / scale, threshold, finite, tuple(predictions), tuple(copying))


def _probability(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the probability of each token at its own position, (batch, time); 0 for one that is not a class."""
    known = (tokens >= 0) & (tokens < logits.shape[-1])
    at = tokens.where(known, 0)[..., None]
    rows = [
        row.float().gather(-1, i).squeeze(-1) - row.float().logsumexp(-1)
        for row, i in zip(logits, at, strict=True)
    ]
    return torch.stack(rows).exp().where(known, 0.0)


def zero_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Return random tensors for a module's parameters that are zero throughout, such as a head's at step 0, by name.

    They open paths through the module that zeros block. The module and the random generators are not changed. If ranks
    share the weights, the result is empty.

    Example:
        >>> zeros = nn.Linear(3, 2)
        >>> _ = nn.init.zeros_(zeros.weight)
        >>> list(zero_parameters(zeros))
        ['weight']
    """
    if is_sharded(module):
        return {}
    found = {}
    generator = torch.Generator().manual_seed(0)
    for name, p in module.named_parameters():
        if p.is_floating_point() and p.numel() and not p.detach().any():
            deviation = p.shape[1:].numel() ** -0.5 if p.ndim > 1 else 0.1
            drawn = torch.randn(p.shape, generator=generator) * deviation
            found[name] = drawn.to(device=p.device, dtype=p.dtype)
    return found


class _Caller(nn.Module):
    """A module and how it is called, as one module, so that its parameters can be replaced for one call."""

    def __init__(self, module: nn.Module, forward: Forward | None) -> None:
        super().__init__()
        self.module = module
        self._forward = forward

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        return logits_of(call_module(self.module, batch, forward=self._forward))

    def logits(
        self, batch: Mapping[str, Any], parameters: Mapping[str, Tensor] | None, seed: int = 0
    ) -> Tensor:
        """Compute logits; what a module draws in a pass, such as a loop's initial state, is the same for a seed."""
        torch.manual_seed(seed)
        if not parameters:
            return logits_of(call_module(self.module, batch, forward=self._forward))
        replaced = {f"module.{name}": tensor for name, tensor in parameters.items()}
        return cast(Tensor, functional_call(self, replaced, (batch,)))


def _candidates(
    batches: Sequence[Mapping[str, Any]], key: str, real: Sequence[Tensor], avoid: Sequence[int]
) -> Tensor:
    """Return the ids that a token may be changed to, sorted."""
    ids: Tensor = torch.cat([batch[key][r] for batch, r in zip(batches, real, strict=True)]).unique()
    allowed = ids[~torch.isin(ids, torch.tensor(list(avoid), dtype=ids.dtype, device=ids.device))]
    return allowed if len(allowed) > 1 else ids


def _rounds(places: Sequence[Tensor]) -> list[tuple[int, Tensor]]:
    """Return places (n, 2), as rows and positions, to change in one forward pass, with the number of their batch.

    No row occurs twice in a pass, and neighbouring rows are in different passes.
    """
    found: list[tuple[int, Tensor]] = []
    left = _PLACES
    for number, mask in enumerate(places):
        mask = mask.cpu()
        rows = mask.any(1).nonzero().flatten()
        if not len(rows) or not left:
            continue
        rows = rows[torch.linspace(0, len(rows) - 1, min(left, len(rows))).round().long()]
        each = min(_PLACES_IN_A_ROW, left // len(rows))
        chosen: dict[int, list[tuple[int, int]]] = {}
        for i, row in enumerate(rows.tolist()):
            positions = mask[row].nonzero().flatten().tolist()
            for j in range(min(each, len(positions))):  # spread by the golden ratio, also over rows
                place = positions.pop(int((0.5 + 0.618 * (i + len(rows) * j)) % 1 * len(positions)))
                chosen.setdefault(2 * j + i % 2, []).append((row, place))
                left = max(0, left - 1)
        found += [(number, torch.tensor(chosen[r])) for r in sorted(chosen)]
    return found


def _altered(
    batch: Mapping[str, Any], key: str, at: Tensor, change: int, real: Tensor, ids: Tensor
) -> dict[str, Any]:
    """Return the batch with the tokens at ``change`` positions after ``at`` changed to the next of ``ids``."""
    tokens = batch[key].clone()
    rows, positions = at[:, 0].to(tokens.device), (at[:, 1] + change).to(tokens.device)
    inside = (positions >= 0) & (positions < tokens.shape[1])
    inside &= real[rows, positions.clamp(0, tokens.shape[1] - 1)]
    rows, positions = rows[inside], positions[inside]
    place = torch.searchsorted(ids, tokens[rows, positions])
    place = torch.where(ids[place.clamp(max=len(ids) - 1)] == tokens[rows, positions], place + 1, place)
    tokens[rows, positions] = ids[place % len(ids)]
    return {**batch, key: tokens}


def _valid(at: Tensor, real: Tensor, shown: Tensor) -> Tensor:
    """Return whether the changed token is text and the logits are compared, (places, 3, 5)."""

    def inside(mask: Tensor, offsets: tuple[int, ...]) -> Tensor:
        positions = at[:, 1:] + torch.tensor(offsets)
        known = (positions >= 0) & (positions < mask.shape[1])
        return known & mask.cpu()[at[:, :1], positions.clamp(0, mask.shape[1] - 1)]

    return inside(real, CHANGES)[:, :, None] & inside(shown, LOGITS)[:, None, :]


class _Range:
    """Smallest and largest logit of each class."""

    def __init__(self) -> None:
        self._least: Tensor | None = None
        self._most: Tensor | None = None

    def add(self, logits: Tensor) -> Tensor:
        """Add logits (…, classes), and return them in float32."""
        logits = logits.float()
        least, most = logits.flatten(0, -2).aminmax(dim=0)
        self._least = least if self._least is None else torch.fmin(self._least, least)
        self._most = most if self._most is None else torch.fmax(self._most, most)
        return logits

    @property
    def scale(self) -> float:
        """Return the largest of the logits of classes that vary: constant ones, such as masked ones, have no scale."""
        if self._least is None or self._most is None:
            return 0.0
        varying = self._least != self._most
        ends = torch.stack([self._least[varying], self._most[varying]]).nan_to_num(0.0, 0.0, 0.0)
        return float(ends.abs().amax()) if ends.numel() else 0.0


def _change(before: Tensor, after: Tensor) -> Tensor:
    """Return the largest change over classes; infinite if a number becomes finite or not, NaN if none was finite."""
    difference = (after.float() - before).abs()
    same = (after == before) | (after.isnan() & before.isnan())
    largest = difference.masked_fill(same, 0.0).nan_to_num(torch.inf, torch.inf).amax(-1)
    return largest.masked_fill(~before.isfinite().any(-1), torch.nan)


def _largest(differences: Tensor) -> float:
    return float(differences.nan_to_num(0.0, 0.0).amax()) if differences.numel() else 0.0
