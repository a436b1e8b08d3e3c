"""Handwriting: letters that a linear readout of the encoder's transient writes, depending on sentence similarity."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, cast

import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.dynamics.window_regressions import WindowMap, window_regressions
from lmdyn.analysis.dynamics.window_sums import WindowSums
from lmdyn.analysis.inspection.transformer import check_positions, encoder_of
from lmdyn.analysis.orbits.trajectories import exact_products
from lmdyn.analysis.probing.depth_heads import states_at
from lmdyn.analysis.statistics.distributed import all_reduce_sum, gather, rank_and_world_size
from lmdyn.callbacks.dynamics.handwriting_figures import handwriting_figures
from lmdyn.callbacks.dynamics.letter_paths import pen_velocity
from lmdyn.callbacks.dynamics.quantities import steps
from lmdyn.callbacks.observing.checked_fields import Above, From
from lmdyn.callbacks.observing.findings import Cost, Foreseen
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.protocols import FineTuningTasks
from lmdyn.callbacks.observing.run import warn
from lmdyn.callbacks.observing.sums import Row, tabulate
from lmdyn.runs.schema import Quantity

__all__ = ["PUBLISHED_WINDOW", "Handwriting"]

PUBLISHED_WINDOW = (7, 28)
"""(t₀, ΔT) of the lowest NMSE of ALBERT-large: Inoue et al. 2022, figure 3C."""

_COLUMNS = {"letter": None, "axis": None, "start": int, "length": int, "sentence": int, "k": int}

_PARTS = ("train", "development")
_NMSE: dict[str, Any] = {"low": 0.0, "better": "lower"}
FromOne = Annotated[int, From(1)]
Sentence = tuple[int, int, Mapping[str, Any]]
"""Its number in its set, its letter (0 or 1), and its tokens."""


class Handwriting(Observer):
    """How well linear readouts of the encoder's state write a letter, for every window of the encoder's time.

    The encoder's layer is applied repeatedly, also beyond the number of layers. In each window [t₀, t₀ + ΔT) one
    linear readout with bias, shared by all steps, predicts the velocity of a pen: along the first letter for pairs
    of sentences that are scored at most ``low``, along the second for those scored at least ``high``; the others
    are left out. It is fitted by least squares to all training sentences and steps; the NMSE of a sentence of the
    development set is Σ error² / Σ target², and the mean over sentences is recorded.

    *The state vector.* The publication reads "the state vector dynamics x_t". Its section I.B defines it as all N_w ×
    N_h numbers, and a row of them as a token vector; for the task of similarity it also uses "state vector x_t", for
    the usual classifier, which reads the first token. ``first_token`` is the presumed meaning, and the default: the
    task is that of similarity with another decoder, on the same sentences; these have different numbers of tokens, and
    it is not stated how a readout of all of them would be defined; and the map of 100 × 100 windows is hardly feasible
    with all tokens: 128 of 1,024 units are 131,072 dimensions, for about 2,500 sentences at 200 times 260 GB of states,
    and at the published window 70,000 rows, so that each training target is met exactly. ``all_tokens`` is the printed
    definition, for sentences padded to one length (of small models: covariances grow with the square of tokens ×
    units); ``mean_token`` is the mean of their tokens, including padding.

    As published there is no attention mask: all sentences are padded to one length, and padding is part of the state.
    x₀ is the embedding output after its projection to the hidden size. Dynamics run in float32 with exact products,
    sums and regressions in float64. One pass over the sentences serves all windows; a second one over the development
    sentences up to the end of the best window writes the letters. Several processes share the sentences.

    For encoders whose layers differ (BERT), time is depth: windows end with the last layer, others are left out, with a
    warning and as recorded in ``times``. Sentences whose states are not finite are left out, with a warning; if
    none of a letter is left, there are no values. Windows of one step have none either: the path is closed.

    Args:
        task: the probe's task, a regression; None for its only one.
        state: input of a readout at a time, see above: the vector of the ``first_token``, the ``mean_token``, or
            those of ``all_tokens``.
        letters: the first is written for dissimilar sentences, the second for similar ones.
        low: maximum score for the first letter.
        high: minimum score for the second letter.
        starts: windows start at 0 … starts − 1.
        lengths: windows have 1 … lengths steps.
        ridge: see :func:`~lmdyn.analysis.dynamics.window_regressions.window_regressions`.
        font: font of the letters; the publication's is Arial, which is not free.
        max_length: number of tokens to which sentences are padded; None for the length of the longest of the task.
        max_sentences: number of sentences of each letter, the first ones, in the training and in the development set;
            None for all.
        batch_tokens: number of tokens per batch, including padding.
        shortest: minimum number of steps of the best window: with fewer, a letter is a few strokes.
        n_written: number of stored paths of each letter: those of lowest NMSE at the best window.
        probe: required, a datamodule with ``tasks``.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Stored but not logged are ``nmse`` by ``start`` and ``length``, and at the best window ``path`` by ``letter``,
    ``sentence`` (its number in the development set), ``k`` (0 … ΔT) and ``axis``, with the ``target_path`` of each.

    Raises:
        ValueError: for a probe without such a task, without sentences of a letter, for sentences longer than
            ``max_length`` or than the model can read, and for letters that cannot be written.

    Reference: Inoue et al. 2022, section III C, appendix E and figure 3C.
    """

    task: str | None = None
    state: Literal["first_token", "mean_token", "all_tokens"] = "first_token"
    letters: tuple[str, str] = ("U", "S")
    low: float = 1.0
    high: float = 4.0
    starts: FromOne = 100
    lengths: FromOne = 100
    shortest: FromOne = 10
    ridge: Annotated[float, Above(0)] = 1e-12
    font: str = "DejaVu Sans"
    max_length: int | None = None
    max_sentences: FromOne | None = None
    batch_tokens: FromOne = 4096
    n_written: FromOne = 5

    uses_labels = False
    several_runs = True
    needs = (FineTuningTasks,)
    not_settings = Observer.not_settings | {"batch_tokens"}
    recorded = (
        Quantity(
            "best_nmse",
            "Lowest NMSE of the windows of `shortest` steps or more; 1 for a pen that does not move.",
            **_NMSE,
            panel="best",
        ),
        steps("best_start", "t₀, start of the window with the lowest NMSE."),
        steps("best_length", "ΔT, length of the window with the lowest NMSE.", low=1.0),
        Quantity(
            "best_condition",
            "Estimated condition number of the best window's regression; near 1e6, the ridge dominates.",
            low=0.0,
        ),
        Quantity(
            "published_window_nmse",
            "NMSE of the window t₀ = 7, ΔT = 28, if this window is observed.",
            **_NMSE,
            panel="best",
        ),
        Quantity("raised_ridge", "Number of windows that required a higher ridge.", "count", low=0.0),
        Quantity("times", "Number of times at which states were read.", "count", low=1.0),
        Quantity("n_train", "Number of training pairs of a letter.", "count", low=0.0, tags=("<letter>",)),
        Quantity(
            "n_development", "Number of development pairs of a letter.", "count", low=0.0, tags=("<letter>",)
        ),
        Quantity("nmse", "NMSE of the pen's path in a window.", **_NMSE, tags=()),
        Quantity("path", "Position of the pen at a step of the best window.", tags=()),
        Quantity("target_path", "Target position of the pen at a step of the best window.", tags=()),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_tokens is not None or self.forward is not None or self.split != "validation":
            raise ValueError(
                f"{self.name} calls the encoder itself and reads training and development sets. Remove `max_tokens`, "
                "`forward` and `split`; set `max_sentences` to read fewer sentences"
            )
        if self.letters[0] == self.letters[1] or not self.low < self.high:
            raise ValueError(
                f"{self.name}: expected two different letters and low < high, got {' and '.join(self.letters)}, "
                f"low={self.low} and high={self.high}"
            )

    def prepare(self) -> None:
        """Determine the task and its sentences of each letter: their number in the set, the letter, and the tokens."""
        tasks = cast(FineTuningTasks, self.data).tasks
        regressions = [name for name, task in tasks.items() if task.kind == "regression"]
        name = regressions[0] if self.task is None and len(regressions) == 1 else self.task
        if name not in regressions:
            raise ValueError(
                f"{self.name} requires a task of scored pairs of sentences: expected `probe:` as a datamodule with "
                f"`tasks`, such as GlueTasks (STS-B) or GrammarTasks (similarity), and `task` as one of "
                f"{', '.join(regressions) or 'its regressions'}, got {repr(self.task) if self.task else 'no `task`'}"
            )
        self.regression = tasks[name]
        for letter in self.letters:
            pen_velocity(letter, 1, self.font)
        development = [e for examples in self.regression.evaluation.values() for e in examples]
        train = list(self.regression.train)
        self.sentences = {"train": self._of_letters(train), "development": self._of_letters(development)}
        for part, found in self.sentences.items():
            numbers = [sum(c == letter for _, c, _ in found) for letter in (0, 1)]
            if min(numbers) == 0:
                raise ValueError(
                    f"{self.name}: the {part} set of {name} has {numbers[0]} pairs scored at most {self.low} and "
                    f"{numbers[1]} scored at least {self.high}: expected at least one pair of each kind. Change "
                    "`low` and `high`, or pass another `probe`"
                )
        longest = max(len(e["input_ids"]) for e in (*train, *development))
        self.padded_length = longest if self.max_length is None else self.max_length
        if longest > self.padded_length:
            raise ValueError(
                f"{self.name}: {name} has sentences of {longest} tokens, expected at most max_length = "
                f"{self.max_length}: raise `max_length`, or lower the probe's max_sequence_length"
            )

    def _of_letters(self, examples: Sequence[Mapping[str, Any]]) -> list[Sentence]:
        found: list[Sentence] = []
        left = [self.max_sentences or len(examples)] * 2
        for i, e in enumerate(examples):
            letter = 0 if e["label"] <= self.low else 1 if e["label"] >= self.high else None
            if letter is not None and left[letter]:
                left[letter] -= 1
                found.append((i, letter, e))
        return found

    def check_module(self, module: Module) -> None:
        """Raise an error for a module without an encoder, or one that cannot read the task's sentences."""
        try:
            encoder_of(module)
        except ValueError as error:
            raise ValueError(f"{self.name} requires an encoder of transformers: {error}") from error
        remedy = "lower the probe's max_sequence_length"
        check_positions(module, self.padded_length, "pairs of sentences", remedy, self.name)

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report the memory of covariances of the state at each time, for both sets of sentences."""
        f = self._map_of(module)
        times, width = self._times(f), self._width(f.width)
        less = "" if self.state != "all_tokens" else ", or use `state: first_token`"
        yield Cost(
            f"covariances of {width}² numbers at {times} times, of both letters for the development set",
            8 * 3 * times * width**2,
            f"lower `starts` and `lengths`{less}",
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments, and the content of the task."""
        found = {"max_length": self.padded_length, "probe_set": self.regression.fingerprint}
        return {**super().settings, **found}

    # ---------------------------------------------------------------- measurement

    @torch.no_grad()
    def measure(self, module: Module, step: int) -> pd.DataFrame:
        """Sum over this process's sentences, gather all processes' sums, and regress."""
        f = self._map_of(module)
        device = next(f.layers[0].parameters()).device
        times = self._times(f)
        if times < self.starts + self.lengths - 1:
            warn(
                self.name,
                f"at step {step}: each t is a layer of this model: lmdyn leaves out windows beyond t = {times - 1}",
            )
        starts = min(self.starts, times)
        longest = min(self.lengths, times)
        with exact_products():
            train, development = (self._sums(f, part, times, device, step) for part in _PARTS)
            numbers = torch.stack([train.counts[:, 0], development.counts[:, 0]])
            found = None
            if (numbers > 0).all():
                targets = [self._targets(k).to(device) for k in range(1, longest + 1)]
                shortest = min(self.shortest, longest)
                found = window_regressions(
                    train,
                    development,
                    targets,
                    starts,
                    ridge=self.ridge,
                    shortest=shortest,
                )
            windows = [(t, k) for t in range(starts) for k in range(1, longest + 1) if t + k <= times]
            rows = [*self._window_rows(found, windows), ({}, {"times": times})]
            for part, of_part in zip(_PARTS, numbers.tolist(), strict=True):
                for letter, number in zip(self.letters, of_part, strict=True):
                    rows.append(({"letter": letter}, {f"n_{part}": number}))
            if found is not None and found.best is not None:
                rows += self._path_rows(f, found.readout, *found.best)
        return tabulate(rows, _COLUMNS, self.name, step, why="")  # NaN: windows of one step

    def _map_of(self, module: Module) -> EncoderMap:
        encoder: Any = encoder_of(module)
        _, _, batch = self._batch(self.sentences["train"][:1], next(encoder.parameters()).device)
        return EncoderMap(encoder, batch)

    def _width(self, hidden: int) -> int:
        """Return the number of dimensions that are read at a time."""
        return hidden * self.padded_length if self.state == "all_tokens" else hidden

    def _times(self, f: EncoderMap) -> int:
        """Return the number of times that windows require, up to the number of layers if they differ."""
        asked = self.starts + self.lengths - 1
        return asked if f.shared else min(asked, len(f.maps) + 1)

    def _sums(self, f: EncoderMap, part: str, times: int, device: torch.device, step: int) -> WindowSums:
        """Return the sums of a part's sentences over all processes, without those that are not finite."""
        sums = WindowSums(times, self._width(f.width), 2, pooled=part == "train", device=device)
        dropped = 0
        for _, letters, x in self._trajectories(f, part, times, device):
            finite = x.isfinite().all(2).all(0)
            for t, rows in enumerate(x):
                sums.update(t, rows.where(finite[:, None], 0), letters.where(finite, -1))
            dropped += int((~finite).sum())
        sums.reduce()
        if everywhere := int(all_reduce_sum(torch.tensor(dropped))):
            warn(
                self.name,
                f"at step {step}: lmdyn leaves out {part} sentences whose states are not finite (number: {everywhere})",
            )
        return sums

    def _targets(self, length: int) -> Tensor:
        return torch.stack([pen_velocity(letter, length, self.font) for letter in self.letters])

    def _batch(
        self,
        sentences: Sequence[Sentence],
        device: torch.device,
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return numbers, letters, and the texts padded to one length."""
        texts = {}
        for name, empty in (("input_ids", self.regression.pad_id), ("token_type_ids", 0)):
            rows = [torch.as_tensor(e[name]).long() for *_, e in sentences]
            padded = [F.pad(row, (0, self.padded_length - len(row)), value=empty) for row in rows]
            texts[name] = torch.stack(padded).to(device)
        numbers, letters = (torch.tensor([one[i] for one in sentences], dtype=torch.int64) for i in (0, 1))
        return numbers, letters.to(device), texts

    def _trajectories(
        self,
        f: EncoderMap,
        part: str,
        times: int,
        device: torch.device,
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield, for batches of this process's sentences, numbers, letters, and (times, sentences, d) vectors."""
        rank, world_size = rank_and_world_size()
        mine = self.sentences[part][rank::world_size]
        size = max(1, self.batch_tokens // self.padded_length)
        for first in range(0, len(mine), size):
            numbers, letters, batch = self._batch(mine[first : first + size], device)
            kept = [self._read(x) for _, x in states_at(f, batch, range(times))]
            yield numbers, letters, torch.stack(kept)

    def _read(self, x: Float[Tensor, "batch tokens hidden"]) -> Float[Tensor, "batch d"]:
        if self.state == "all_tokens":
            return x.flatten(1)
        return x.mean(1) if self.state == "mean_token" else x[:, 0]

    # ---------------------------------------------------------------- rows

    def _window_rows(self, found: WindowMap | None, windows: Sequence[tuple[int, int]]) -> Iterator[Row]:
        """Yield the map of windows, NaN if there is none, and the numbers of the best and of the published one."""
        nmse = {(t, k): math.nan if found is None else float(found.nmse[t, k - 1]) for t, k in windows}
        for (t, k), value in nmse.items():
            yield {"start": t, "length": k}, {"nmse": value}
        yield {}, {"published_window_nmse": nmse.get(PUBLISHED_WINDOW)}
        numbers = dict.fromkeys(("nmse", "start", "length", "condition"), math.nan)
        if found is not None and found.best is not None:
            start, length = found.best
            condition = float(found.condition[start, length - 1])
            numbers = {"nmse": nmse[found.best], "start": start, "length": length, "condition": condition}
        yield {}, {f"best_{name}": value for name, value in numbers.items()}
        yield {}, {"raised_ridge": math.nan if found is None else float((found.ridge > self.ridge).sum())}

    def _path_rows(self, f: EncoderMap, weights: Tensor, start: int, length: int) -> Iterator[Row]:
        """Yield the target letters, and the paths of the sentences that are written best."""
        targets = self._targets(length).to(weights)
        mine: list[tuple[float, int, int, Tensor]] = []
        for numbers, letters, x in self._trajectories(f, "development", start + length, weights.device):
            velocity = (x[start:].to(weights) @ weights[:-1] + weights[-1]).transpose(0, 1)
            expected = targets[letters]
            nmse = (velocity - expected).square().sum((1, 2)) / expected.square().sum((1, 2))
            paths = velocity.cumsum(1).cpu()
            mine += zip(nmse.tolist(), numbers.tolist(), letters.tolist(), paths, strict=True)
        everyone = [one for part in gather(mine) for one in part if one[0] == one[0]]
        everyone.sort(key=lambda one: one[:2])
        for i, letter in enumerate(self.letters):
            place = {"start": start, "length": length, "letter": letter}
            yield from _path("target_path", targets[i].cumsum(0).cpu(), place)
            best = [one for one in everyone if one[2] == i][: self.n_written]
            for _, number, _, path in best:
                yield from _path("path", path, {**place, "sentence": number})

    # ---------------------------------------------------------------- output

    @classmethod
    def figures(cls, observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw the map of NMSE and the letters at the last step, for each run, and the best NMSE over steps."""
        return handwriting_figures(observations) | super().figures(observations, settings)


def _path(quantity: str, points: Tensor, place: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a path from (0, 0), which precedes the first point."""
    for k, point in enumerate([[0.0, 0.0], *points.tolist()]):
        for axis, value in zip("xy", point, strict=True):
            yield {**place, "k": k, "axis": axis}, {quantity: value}
