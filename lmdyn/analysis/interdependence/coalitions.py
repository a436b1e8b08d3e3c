"""The games that sentences are: their words as players, and what a model answers where some of them are absent."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.interdependence.shapley import check_output, described
from lmdyn.analysis.statistics.precision import exact_float

__all__ = ["Forward", "Game", "Outputs", "Reading", "games_of", "named_outputs", "reading_of"]

Forward = Callable[[Tensor], Tensor | Mapping[str, Tensor]]
"""(rows, time) ids or (rows, time, dim) vectors to (rows, time, d) outputs, or to several of them by name."""

_ROUNDING = 8  # units of float32's rounding below which an effect is none

Reading = Literal["causal", "bidirectional"]
"""What a model sees at a position: the words up to it, or all of the sentence."""


def named_outputs(output: object, rows: Tensor, widths: Mapping[str, int] | None = None) -> dict[str, Tensor]:
    """What forward answered, by name ("" of a single tensor), or a ValueError."""
    named: dict[str, Any] = dict(output) if isinstance(output, Mapping) else {"": output}
    for name, tensor in named.items():
        check_output(tensor, rows, None if widths is None else widths.get(name))
    return named


@torch.no_grad()
def reading_of(forward: Forward, inputs: Tensor) -> Reading:
    """Whether what a model answers at a position depends on later ones: measured, on the inputs of some sentences.

    The later half of each sentence is replaced by its first token. What answers differ in by rounding is told from
    two equal calls and the precision of float32.

    Args:
        forward: see :func:`~lmdyn.analysis.pairwise_shapley_interaction`.
        inputs: (batch, time) ids or (batch, time, dim) vectors.

    Raises:
        ValueError: sentences of one position, or outputs of another shape.

    Example:
        >>> x = torch.rand(2, 4, 3)
        >>> reading_of(lambda x: x.cumsum(1), x), reading_of(lambda x: x + x.mean(1, keepdim=True), x)
        ('causal', 'bidirectional')
    """
    half = inputs.shape[1] // 2
    if half == 0:
        raise ValueError(
            "expected sentences of two positions or more: what a word sees cannot be told from one"
        )
    changed = inputs.clone()
    changed[:, half:] = inputs[:, :1]
    one, same, other = (named_outputs(forward(x), x) for x in (inputs, inputs, changed))
    for name, v in one.items():
        before, again, after = (exact_float(o[name])[:, :half] for o in (one, same, other))
        rounding = _ROUNDING * torch.finfo(torch.float32).eps * float(exact_float(v).abs().max())
        tolerance = max(rounding, 2 * float((again - before).abs().max()))
        if float((after - before).abs().max()) > tolerance:
            return "bidirectional"
    return "causal"


@dataclass(frozen=True)
class Game:
    """The words of a sentence as players, in order, and its pairs.

    Attributes:
        sentence: its row.
        number: (players,) the number of each.
        token: (time,) the player that each token belongs to, -1 for none.
        read: (players,) the last token of each.
        left: (pairs,) player l of each pair.
        right: (pairs,) player r of each pair.
        causal: whether players after r are invisible there.
    """

    sentence: int
    number: Tensor
    token: Tensor
    read: Tensor
    left: Tensor
    right: Tensor
    causal: bool

    @property
    def players(self) -> int:
        """Number of players."""
        return len(self.number)

    def visible(self) -> Tensor:
        """(pairs,) number of players of the game of each pair."""
        return self.right + 1 if self.causal else torch.full_like(self.right, self.players)

    def where(self, chosen: Tensor) -> "Game":
        """With some of the pairs."""
        parts = {**vars(self), "left": self.left[chosen], "right": self.right[chosen]}
        return Game(**parts)

    def kept(self, present: Bool[Tensor, "*rows players"]) -> Bool[Tensor, "*rows time"]:
        """Which tokens are there."""
        always = present.new_ones(*present.shape[:-1], 1)
        return torch.cat([present, always], -1)[..., self.token]  # -1 is the last


def games_of(inputs: Tensor, words: Tensor | None, max_distance: int, reading: Reading) -> list[Game]:
    """The game of each sentence, or a ValueError."""
    ids = inputs.ndim == 2 and not inputs.is_floating_point() and inputs.dtype != torch.bool
    if not ids and not (inputs.ndim == 3 and inputs.is_floating_point()):
        raise ValueError(
            "inputs must be (batch, time) integer ids or (batch, time, dim) floating vectors, got "
            f"{described(inputs)}: give sentences of one length together"
        )
    shape = inputs.shape[:2]
    if words is None:
        words = torch.arange(shape[1]).expand(shape)
    if words.shape != shape or words.is_floating_point() or words.dtype == torch.bool:
        raise ValueError(
            f"words must be integers of shape {tuple(shape)}, got {described(words)}: the number of each token's word"
        )
    games = []
    for b, row in enumerate(words.cpu()):
        numbers = row[row >= 0]
        if bool((numbers[1:] < numbers[:-1]).any()):
            raise ValueError(
                f"words must rise along the sentence, those of sentence {b} are {row.tolist()}: a word's tokens stand "
                "together"
            )
        number, of = numbers.unique(return_inverse=True)
        token = torch.full_like(row, -1)
        token[row >= 0] = of
        last = torch.ones_like(of, dtype=torch.bool)
        last[:-1] = of[1:] != of[:-1]
        read = (row >= 0).nonzero()[:, 0][last]
        left, right = torch.triu_indices(len(number), len(number), 1)
        near = number[right] - number[left] <= max_distance
        games.append(Game(b, number, token, read, left[near], right[near], reading == "causal"))
    return games


class Outputs:
    """What forward answers at some positions of sentences with absent words."""

    def __init__(
        self,
        forward: Forward,
        inputs: Tensor,
        baseline: Tensor | None,
        max_rows: int,
        causal: bool,
    ) -> None:
        self.forward = forward
        self.inputs = inputs
        self.baseline = baseline
        self.max_rows = max_rows
        self.causal = causal
        self.widths: dict[str, int] = {}

    def at(
        self,
        sentence: Int[Tensor, "rows"],
        kept: Bool[Tensor, "rows time"],
        row: Int[Tensor, "reads"],
        position: Int[Tensor, "reads"],
    ) -> dict[str, Float[Tensor, "reads d"]]:
        """The outputs of each (row, position), float64.

        Args:
            sentence: which one each row is.
            kept: which of its tokens are there; the first of them, as many as there are columns.
            row: of each output that is wanted.
            position: of the same.
        """
        if self.causal:  # what is behind the last word that is read in a row plays no part
            end = np.zeros(len(kept), dtype=np.int64)
            np.maximum.at(end, row.numpy(), position.numpy() + 1)
            length, by_length = torch.from_numpy(end).sort(stable=True)
            sentence, kept, row = sentence[by_length], kept[by_length], by_length.argsort()[row]
        else:
            length = torch.full((len(kept),), kept.shape[1])
        order = row.argsort(stable=True)
        bounds = torch.searchsorted(row[order], torch.arange(0, len(kept) + self.max_rows, self.max_rows))
        parts: list[dict[str, Tensor]] = []
        for k, (start, end_of) in enumerate(pairwise(bounds.tolist())):
            these = slice(k * self.max_rows, (k + 1) * self.max_rows)
            reads, cut = order[start:end_of], int(length[these].max())
            parts.append(
                self._chunk(sentence[these], kept[these, :cut], row[reads] - these.start, position[reads])
            )
        back = order.argsort()
        found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return {name: v[back.to(v.device)] for name, v in found.items()}

    def _chunk(
        self, sentence: Tensor, kept: Tensor, row: Tensor, position: Tensor
    ) -> dict[str, Float[Tensor, "reads d"]]:
        tokens, here = (
            self.inputs[:, : kept.shape[1]][sentence.to(self.inputs.device)],
            kept.to(self.inputs.device),
        )
        if self.baseline is not None:
            rows = torch.where(here if tokens.ndim == 2 else here[..., None], tokens, self.baseline)
            answered = self.call(rows)
            return {n: self._finite(v[row.to(v.device), position.to(v.device)]) for n, v in answered.items()}
        length = kept.sum(1)
        moved = kept.long().cumsum(1)[row, position] - 1  # the last word up to there
        found: dict[str, Tensor] = {}
        for n in length[length > 0].unique().tolist():  # v of nothing is 0
            these = length == n
            rows = tokens[these.to(here.device)]
            rows = rows[here[these.to(here.device)]].view(-1, n, *tokens.shape[2:])
            reads = (these[row] & (moved >= 0)).nonzero()[:, 0]
            place = these.long().cumsum(0)[row[reads]] - 1
            for name, v in self.call(rows).items():
                values = self._finite(v[place.to(v.device), moved[reads].to(v.device)])
                whole = found.setdefault(name, values.new_zeros(len(row), values.shape[1]))
                whole[reads.to(v.device)] = values
        nothing = {name: torch.zeros(len(row), d, dtype=torch.float64) for name, d in self.widths.items()}
        return found or nothing

    def call(self, rows: Tensor) -> dict[str, Tensor]:
        """What forward answers, by name."""
        named = named_outputs(self.forward(rows), rows, self.widths or None)
        self.widths = {name: v.shape[2] for name, v in named.items()}
        return named

    @staticmethod
    def _finite(v: Tensor) -> Tensor:
        v = exact_float(v)
        if not bool(v.isfinite().all()):
            raise ValueError("forward answered NaN or infinite values: look at the model and the baseline")
        return v
