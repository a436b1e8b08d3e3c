"""Sentences as games: their words are the players, and outputs are computed with some of them absent."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.interdependence.shapley import check_output
from lmdyn.analysis.statistics.precision import exact_float

__all__ = ["Forward", "Game", "Outputs", "Reading", "games_of", "named_outputs", "reading_of"]

Forward = Callable[[Tensor], Tensor | Mapping[str, Tensor]]
"""(rows, time) ids or (rows, time, dim) vectors to (rows, time, d) outputs, or to several of them by name."""

_ROUNDING = 8  # an effect below this many units of float32 rounding counts as none

Reading = Literal["causal", "bidirectional"]
"""The words that are visible at a position: those up to it (``causal``), or the whole sentence."""


def named_outputs(output: object, rows: Tensor, widths: Mapping[str, int] | None = None) -> dict[str, Tensor]:
    """Return the outputs of forward by name ("" for a single tensor), or raise a ValueError."""
    named: dict[str, Any] = dict(output) if isinstance(output, Mapping) else {"": output}
    for name, tensor in named.items():
        check_output(tensor, rows, None if widths is None else widths.get(name))
    return named


@torch.no_grad()
def reading_of(forward: Forward, inputs: Tensor) -> Reading:
    """Measure whether a model's output at a position depends on later positions, on the inputs of some sentences.

    The second half of each sentence is replaced by its first token. Differences due to rounding are recognised by two
    equal calls and the precision of float32.

    Args:
        forward: see :func:`~lmdyn.analysis.pairwise_shapley_interaction`.
        inputs: (batch, time) ids or (batch, time, dim) vectors.

    Raises:
        ValueError: if sentences have only one position, or if outputs change their shape.

    Example:
        >>> x = torch.rand(2, 4, 3)
        >>> reading_of(lambda x: x.cumsum(1), x), reading_of(lambda x: x + x.mean(1, keepdim=True), x)
        ('causal', 'bidirectional')
    """
    half = inputs.shape[1] // 2
    if half == 0:
        raise ValueError(
            "expected sentences of at least two positions, to measure which words are visible at a position"
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
    """Words of a sentence as players, in order, and the pairs of players.

    Attributes:
        sentence: row of the sentence.
        number: (players,) number of each player's word.
        token: (time,) player that each token belongs to, -1 for none.
        read: (players,) last token of each player.
        left: (pairs,) first player l of each pair.
        right: (pairs,) second player r of each pair.
        causal: whether players after r are invisible at r.
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
        """Number of players in the game of each pair, (pairs,)."""
        return self.right + 1 if self.causal else torch.full_like(self.right, self.players)

    def where(self, chosen: Tensor) -> "Game":
        """Return the game with a subset of the pairs."""
        parts = {**vars(self), "left": self.left[chosen], "right": self.right[chosen]}
        return Game(**parts)

    def kept(self, present: Bool[Tensor, "*rows players"]) -> Bool[Tensor, "*rows time"]:
        """Return which tokens are present."""
        always = present.new_ones(*present.shape[:-1], 1)
        return torch.cat([present, always], -1)[..., self.token]  # index -1 is the last column


def games_of(words: Int[Tensor, "batch time"], max_distance: int, reading: Reading) -> list[Game]:
    """Return the game of each sentence, or raise a ValueError."""
    games = []
    for b, row in enumerate(words.cpu()):
        numbers = row[row >= 0]
        if bool((numbers[1:] < numbers[:-1]).any()):
            raise ValueError(
                f"words must increase along the sentence, those of sentence {b} are {row.tolist()}: a word's tokens "
                "must be together"
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
    """Outputs of forward at some positions of sentences with absent words."""

    def __init__(
        self, forward: Forward, inputs: Tensor, baseline: Tensor, max_rows: int, causal: bool
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
        """Compute the output at each (row, position), in float64.

        Args:
            sentence: sentence of each row.
            kept: whether each token is present, for the first tokens of the sentence, one per column.
            row: row of each requested output.
            position: position of each requested output.
        """
        if self.causal:  # words after the last one that is read in a row have no effect
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
        rows = torch.where(here if tokens.ndim == 2 else here[..., None], tokens, self.baseline)
        found = {}
        for name, v in self.call(rows).items():
            found[name] = exact_float(v[row.to(v.device), position.to(v.device)])
            if not bool(found[name].isfinite().all()):
                raise ValueError("forward returned NaN or infinite values: check the model and the baseline")
        return found

    def call(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the outputs of forward, by name."""
        named = named_outputs(self.forward(rows), rows, self.widths or None)
        self.widths = {name: v.shape[2] for name, v in named.items()}
        return named
