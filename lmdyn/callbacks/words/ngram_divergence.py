"""How near a language model is to the n-gram models of its training text, of each order, during training."""

import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.inspection.batches import aligned_labels, text_of
from lmdyn.analysis.inspection.forward import call_module, device_of, logits_of, token_losses
from lmdyn.analysis.inspection.label_convention import model_reading
from lmdyn.analysis.inspection.transformer import is_encoder_decoder
from lmdyn.analysis.statistics.correlation import pearson, spearman
from lmdyn.analysis.statistics.distributed import gather, rank_and_world_size
from lmdyn.analysis.words.ngram_counts import NgramCounts
from lmdyn.analysis.words.ngram_models import NgramModels, NgramScores, Smoothing
from lmdyn.analysis.words.word_masks import one_masked
from lmdyn.callbacks.observing.amounts import count_tokens
from lmdyn.callbacks.observing.checked_fields import From
from lmdyn.callbacks.observing.findings import Cost, Foreseen
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import ObservedBatch, ProbeSet, Watch, texts_of, to_device
from lmdyn.callbacks.observing.protocols import HasTrainingPart
from lmdyn.callbacks.observing.run import report
from lmdyn.callbacks.observing.streaming_observer import StreamingObserver
from lmdyn.callbacks.observing.sums import Row, Sums, gather_rows
from lmdyn.runs.schema import Quantity

__all__ = ["NgramDivergence"]

_TAGS = ("<smoothing>/order=<n>",)
_SHOWN = (("smoothing", ("kneser_ney",)),)
"""What is drawn: it is defined at all positions."""
_LOGITS = 1 << 24
"""Logits whose rows are compared at once."""


_bits = partial(Quantity, unit="bits", low=0.0, tags=_TAGS, lines="order")


def _correlation(name: str, kind: str) -> Quantity:
    return Quantity(
        name,
        f"{kind} correlation over positions between both models' log-probabilities of the next word.",
        low=-1.0,
        high=1.0,
        tags=_TAGS,
        panel="correlation",
        lines="order",
        where=_SHOWN,
    )


class NgramDivergence(StreamingObserver):
    """Divergence of a language model from the n-gram models of its training text, order by order.

    The n-grams of the training text are counted once, into the run's folder. At each position of the probe set, the
    model's prediction is compared with those of the n-gram models of orders 1 to ``order``, as
    :meth:`~lmdyn.analysis.NgramModels.scores` describes: ``raw``, as published, for orders 1 and 2; ``kneser_ney``
    from order 3 on, since most longer contexts of a text do not occur in another one; ``backoff``, as Michaelov et al.
    A model that passes through n-grams has minima of ``kl``, and peaks of ``pearson``, in the order of n:
    :func:`~lmdyn.analysis.ngram_extrema` finds them.

    Causal models are also given texts that are drawn from the (Kneser-Ney) model of each order: ``drawn_loss`` is the
    loss on these, and ``drawn_entropy`` that of the n-gram model itself, the least loss that is possible.

    A masked model predicts one masked position of each row, drawn by the text of the row; n-grams are those that end
    there, and the ``bidirectional`` bigram model is added.

    Args:
        order: highest order.
        smoothings: ``raw``, ``backoff`` and ``kneser_ney``, or some of these.
        train_tokens: number of training tokens to count, in the order of the training loader; None for all.
        drawn_tokens: number of tokens that are drawn from each order; 0 for none.
        seed: seed of drawn texts, and of masked positions.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: without training data, for an encoder-decoder, or a masked model without a mask token.

    Reference: Chang & Bergen 2022, section 3.2; Michaelov et al. 2025.
    """

    order: Annotated[int, From(2)] = 5
    smoothings: Sequence[Literal["raw", "backoff", "kneser_ney"]] = ("raw", "backoff", "kneser_ney")
    train_tokens: Annotated[int, From(1)] | None = None
    drawn_tokens: Annotated[int, From(0)] = 1024
    seed: int = 0

    needs = (HasTrainingPart,)
    uses_labels = True
    sharded = True
    columns = {"smoothing": "", "order": int}
    recorded = (
        _bits(
            "kl",
            "Mean Kullback-Leibler divergence D(n-gram ‖ model) of the model from an n-gram model.",
            panel="divergence",
            headline=True,
            short="D(n-gram ‖ model)",
            where=_SHOWN,
        ),
        _bits("cross_entropy", "Mean cross-entropy of the model under the predictions of an n-gram model."),
        _correlation("pearson", "Pearson's"),
        _correlation("spearman", "Spearman's"),
        _bits(
            "drawn_loss",
            "Mean loss of the model on text drawn from an n-gram model.",
            better="lower",
            panel="drawn_text",
            floor="drawn_entropy",
        ),
        _bits("drawn_entropy", "Mean loss of an n-gram model on text drawn from that model."),
        Quantity("positions", "Number of positions over which a mean is taken.", "count", low=0.0, tags=()),
    )

    # ---------------------------------------------------------------- before training

    def prepare(self) -> None:
        """Open the training text."""
        if not self.smoothings:
            raise ValueError(f"{self.name}: smoothings is empty: expected raw, backoff or kneser_ney")
        self._train = self.part("train", self.train_tokens)
        self._found["train_set"] = self._train.fingerprint
        self._models: NgramModels | None = None

    def check_module(self, module: Module) -> None:
        """Determine how the model reads, and count the training text."""
        super().check_module(module)
        if self._models is not None:
            return
        if is_encoder_decoder(module):
            raise ValueError(f"{self.name}: expected a causal or masked model, got an encoder-decoder")
        batch = to_device(next(self.probe_set.batches()), device_of(module))
        self.masked = model_reading(module, batch, self.forward) == "bidirectional"
        with torch.no_grad():
            size = logits_of(call_module(module, batch, forward=self.forward)).shape[-1]
        counts = count_ngrams(self, self._train, self.train_tokens, self.order, size, masked=self.masked)
        self._models = models = NgramModels(counts)
        self._drawn: dict[int, Int[Tensor, "rows time"]] = {}
        self._entropies: dict[int, float] = {}
        if self.masked:
            mask = getattr(self.run.tokenizer, "mask_token_id", None)
            if mask is None:
                raise ValueError(f"{self.name}: a masked model requires a `tokenizer` with a mask_token")
            self._probe_set = _OneMasked(self.probe_set, mask, self.run.tokenizer.all_special_ids, self.seed)
        elif self.drawn_tokens:
            time = max(2, batch["input_ids"].shape[1])
            rows = -(-self.drawn_tokens // time)
            for n in range(1, self.order + 1):
                texts = models.draw(n, rows, time, self.seed)
                self._drawn[n] = torch.from_numpy(texts)
                self._entropies[n] = models.entropy(n, texts)

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report the memory of the scores of all positions."""
        positions = count_tokens(self.probe_set)
        models = self.order * (1 + len(self.smoothings))
        yield Cost(
            f"scores of {positions:,} positions", 24 * positions * models, "lower `max_tokens`", host=True
        )

    # ---------------------------------------------------------------- an observation

    def watch(self, module: Module, step: int) -> Watch:
        """Read the drawn texts, before the pass over the probe set."""
        self._of_drawn = {}
        for n, rows in self._drawn.items():
            ids = rows.to(device_of(module))
            labels = aligned_labels(ids, "next")
            batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
            with torch.no_grad():
                logits = logits_of(call_module(module, batch, forward=self.forward))
            loss = float(token_losses(logits.float(), labels)[labels >= 0].mean()) / math.log(2)
            self._of_drawn[n] = {"drawn_loss": loss, "drawn_entropy": self._entropies[n]}
        return super().watch(module, step)

    def sums(self) -> Mapping[str, Callable[[], Any]]:
        """Return the scores of all positions."""
        return {"positions": _Positions}

    def update(self, seen: ObservedBatch, sums: Sums) -> None:
        """Compare the predictions of a batch with those of the n-gram models."""
        assert self._models is not None
        labels, text = seen.labels, text_of(seen.batch)
        if self.masked:
            text = torch.where(labels >= 0, labels, text)
        text = text.where(seen.tokens, -1)
        whole = sums["positions"].continued(text, seen.start, self.order)
        # a masked word's context ends before it, another one's with the word that predicts it
        first = self.order - 1 - int(self.masked)
        step = max(1, _LOGITS // seen.logits[0].numel())
        for begin in range(0, len(text), step):
            there = labels[begin : begin + step] >= 0
            row, time = there.nonzero(as_tuple=True)
            if not len(row):
                continue
            row = row + begin
            at = row * whole.shape[1] + time + first
            found = self._models.scores(
                whole.flatten().cpu(),
                seen.logits[row, time],
                labels[row, time].cpu(),
                at=at.cpu(),
                following=whole[row, time + self.order].cpu() if self.masked else None,
                smoothings=(*self.smoothings, "bidirectional"),
            )
            sums["positions"].add(found, -seen.losses[row, time] / math.log(2))

    def rows(self, sums: Sums) -> Iterator[Row]:
        """Yield means and correlations over positions, and the losses on drawn texts."""
        scores = sums["positions"].scores
        model = sums["positions"].model
        for (n, smoothing), (kl, cross, word) in scores.items():
            kept = ~np.isnan(word)
            place = {"smoothing": smoothing, "order": n}
            yield place, {"positions": kept.sum()}
            if not kept.any():
                none = f"no position of the probe set has a {smoothing} model of order {n}"
                report(self.name, f"{none}: the contexts do not occur in the training text")
                continue
            values = {"kl": kl[kept].mean(), "cross_entropy": cross[kept].mean()}
            if len(set(word[kept])) > 1 and len(set(model[kept])) > 1:
                values["pearson"] = pearson(word[kept], model[kept])
                values["spearman"] = spearman(word[kept], model[kept])
            yield place, values
        for n, losses in self._of_drawn.items():
            yield {"smoothing": "kneser_ney", "order": n}, losses


def count_ngrams(
    observer: Observer, train: ProbeSet, tokens: int | None, order: int, vocab_size: int, *, masked: bool
) -> NgramCounts:
    """Count the n-grams of a training text, or return the counts of the same text in the run's folder."""
    found = train.fingerprint
    key = (found, tokens, order, vocab_size, "masked" if masked else "causal")
    folder = observer.run.log_dir / "ngrams" / "-".join(map(str, key))
    if rank_and_world_size()[0] == 0 and not (found and folder.exists()):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            new = Path(temporary, folder.name)
            new.mkdir()
            counts = NgramCounts.of(texts_of(train, masked), vocab_size, order, new)
            total = int(counts.levels[0].counts.sum())
            report(observer.name, f"lmdyn counts {total:,} training tokens in {folder}")
            if not found:  # unknown whether the text is the same
                shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # another worker was first
                new.rename(folder)
    gather(None)  # wait for the files
    return NgramCounts.read(folder)


class _Positions:
    """The scores of all positions, and the last words of each row, which the next batch may continue."""

    def __init__(self) -> None:
        self._parts: list[dict[Any, Tensor]] = []
        self._last: Tensor | None = None

    def continued(
        self, text: Int[Tensor, "batch time"], start: Int[Tensor, "batch"], order: int
    ) -> Int[Tensor, "batch longer"]:
        """Return a text after the order − 1 words before it, and before the end of its row: −1 where there is none."""
        before = text.new_full((len(text), order - 1), -1)
        if self._last is not None and len(self._last) == len(text):
            before = torch.where(start[:, None] > 0, self._last, before)
        whole = torch.cat([before, text], 1)
        self._last = whole[:, 1 - order :]
        return torch.cat([whole, text.new_full((len(text), 1), -1)], 1)

    def add(self, scores: Mapping[tuple[int, Smoothing], NgramScores], model: Tensor) -> None:
        """Add the scores of positions, and the model's log-probabilities of the words there, to base 2."""
        part = {place: torch.from_numpy(np.stack(astuple(one), 1)) for place, one in scores.items()}
        self._parts.append({"model": model.cpu().double(), **part})

    def reduce(self) -> None:
        """Gather the positions of all ranks."""
        rows = gather_rows(self._parts, torch.device("cpu"))
        self.model = rows.pop("model").numpy() if rows else np.zeros(0)
        self.scores = {place: values.T.numpy() for place, values in rows.items()}


class _OneMasked(ProbeSet):
    """Rows of a probe set, each with one masked token, which is drawn by the text of the row."""

    def __init__(self, given: ProbeSet, mask: int, special: list[int], seed: int) -> None:
        super().__init__(
            given.loader,
            max_tokens=given.max_tokens,
            names=given.names,
            labels=given.labels,
            decodes=given.decodes,
        )
        self._how = mask, special, seed
        self.source = ("one masked", seed, *given.source)

    def counted(self, rank: int = 0, world_size: int = 1) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the batches of one rank, each with the number of tokens before it."""
        for before, batch in super().counted(rank, world_size):
            yield before, one_masked(batch, *self._how)
