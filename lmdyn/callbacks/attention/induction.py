"""Induction heads during training: scores on repeated random tokens, copying, in-context loss, ablation."""

import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.attention.copying import copying_scores
from lmdyn.analysis.attention.head_ablation import ablated_heads
from lmdyn.analysis.attention.induction_scores import SCORES, uniform_attention
from lmdyn.analysis.attention.repeated_tokens import repeated_tokens, repetition_losses
from lmdyn.analysis.inspection.forward import call_module, device_of, logits_of
from lmdyn.analysis.inspection.label_convention import model_reading
from lmdyn.analysis.inspection.transformer import attention_sites, check_positions, is_encoder_decoder
from lmdyn.callbacks.attention.induction_figures import induction_figures
from lmdyn.callbacks.attention.induction_module import InductionModule, called_on, read_induction
from lmdyn.callbacks.attention.induction_passes import (
    FreshRows,
    RepeatedRows,
    TextLosses,
    repeated_batch,
    row_lengths,
)
from lmdyn.callbacks.observing.checked_fields import From
from lmdyn.callbacks.observing.findings import Cost, Finding, Foreseen, expected
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import ProbeSet, Watch, probe_pass, to_device
from lmdyn.callbacks.observing.run import report
from lmdyn.callbacks.observing.streaming_observer import Sites
from lmdyn.callbacks.observing.sums import Row, tabulate
from lmdyn.runs.schema import Quantity

__all__ = ["Induction"]

_ROWS = 16  # of a batch of repeated tokens
_COLUMNS = {"head": int, "ablated": "", "draw": int, "data": "", "position": int}
_HEAD = ("<site>/head=<head>",)
_ABLATED = ("<ablated>", "<ablated>/draw=<draw>")

Head = tuple[str, int, int]
"""Attention site, number of its run in a forward pass, head."""

Window = tuple[Annotated[int, From(1)], Annotated[int, From(1)]]


def _score(name: str, meaning: str) -> tuple[Quantity, Quantity]:
    error = f"Standard error of {name} over sequences."
    return (
        Quantity(name, meaning, low=0.0, high=1.0, tags=_HEAD, panel="heads", floor="uniform_attention"),
        Quantity(f"{name}_error", error, low=0.0, high=0.5, tags=()),
    )


_nats = partial(Quantity, unit="nats")
_loss = partial(_nats, low=0.0, better="lower", panel="losses")
_rise = partial(_nats, tags=_ABLATED, panel="ablation", lines="ablated")


class Induction(Observer):
    """Attention heads that continue repeated tokens, and what the model gains from context.

    Rows ``r r`` of random tokens (after the token that begins a text, if the tokenizer has one) are drawn from the
    vocabulary without special tokens. For each head, ``prefix_matching`` is the mean attention of a token of the second
    r to the token after its earlier occurrence; ``previous_token`` and ``duplicate_token`` are that to the token before
    it and to its earlier occurrence; ``uniform_attention`` is what all three are for uniform attention. ``copying`` is
    the positive share of the eigenvalues of a head's circuit from tokens to logits. Losses are of the next token, in
    nats: on the first and second r, and on the probe set after few and after many tokens of context in a row; labels
    are not read, and no recurrent state is carried from row to row. Finally, the ``top`` heads by prefix matching are
    ablated, and, as a floor, as many random other heads.

    Models without attention weights have losses only; models that read later tokens (BERT) and encoders of
    encoder-decoders have the attention scores only; copying requires a linear path from token vectors to the blocks and
    from there to the logits. What is left out is reported before training.

    Args:
        length: number of tokens of r; a row has two r, and at most two more tokens.
        sequences: number of rows. The standard error of each score is recorded, and is below 0.5 / √(sequences − 1).
        seed: seed of the rows and of the random heads.
        vocab_size: draw from the ids below this number; None uses the tokenizer's size, or without one the number of
            the model's logits.
        attention_sites: path of an attention module by display name; ``auto`` finds those that return weights; None
            uses those of all layers. See :class:`~lmdyn.callbacks.AttentionPatterns`.
        early: first and last number of tokens of context of the early loss; None uses 5 % to 15 % of the median row.
        late: the same of the late loss; None uses the last 10 %. Olsson et al. use [50, 50] and [500, 500].
        top: number of heads to ablate, at most half of all; 0 for no ablation.
        draws: number of draws of as many random other heads, different ones; fewer if there are no more.
        ablation: replace the heads' outputs by ``zero``.
        max_tokens: approximate number of tokens of the probe set; None for all.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for numbers out of range, for too few tokens to draw from,
            or for a model with fewer positions than a row.

    Reference: Olsson et al. 2022 (prefix matching, in-context learning score, ablation); Elhage et al. 2021 (copying).
    """

    length: Annotated[int, From(2)] = 25
    sequences: Annotated[int, From(2)] = 100
    seed: int = 0
    vocab_size: Annotated[int, From(1)] | None = None
    attention_sites: Sites = None
    early: Window | None = None
    late: Window | None = None
    top: Annotated[int, From(0)] = 2
    draws: Annotated[int, From(0)] = 3
    ablation: Literal["zero"] = "zero"
    max_tokens: Annotated[int, From(1)] | None = 20_000

    uses_labels = False
    in_step = True
    sharded = True
    recorded = (
        *_score(
            "prefix_matching", "Mean weight of the token after the earlier occurrence of the query's token."
        ),
        *_score("previous_token", "Mean weight of the token before the query."),
        *_score("duplicate_token", "Mean weight of the earlier occurrence of the query's token."),
        Quantity(
            "uniform_attention", "Value of each attention score for uniform attention.", low=0.0, high=1.0
        ),
        Quantity(
            "copying",
            "Σ Re λ / Σ |λ| of the head's circuit from tokens to logits.",
            low=-1.0,
            high=1.0,
            tags=_HEAD,
            panel="heads",
            short="copying (eigenvalues)",
        ),
        _nats(
            "second_minus_first", "second_loss minus first_loss; induction makes it negative.", panel="losses"
        ),
        _nats(
            "second_minus_first_error",
            "Standard error of second_minus_first over sequences.",
            low=0.0,
            tags=(),
        ),
        _loss("first_loss", "Mean loss on the first of two equal sequences of random tokens."),
        _loss("second_loss", "Mean loss on the second of two equal sequences, the repetition."),
        _loss("early_loss", "Mean loss on the probe set after few tokens of context."),
        _loss("late_loss", "Mean loss on the probe set after many tokens of context."),
        _nats(
            "late_minus_early", "late_loss minus early_loss; below 0 if more context helps.", panel="losses"
        ),
        _nats(
            "position_loss",
            "Mean loss after `position` tokens of context, on random tokens or on the probe set.",
            low=0.0,
            tags=(),
            panel="context",
            short="loss by tokens of context",
            over="position",
        ),
        _rise("second_loss_rise", "Rise of second_loss when the tag's heads are ablated."),
        _rise("late_loss_rise", "Rise of late_loss when the tag's heads are ablated."),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, window in (("early", self.early), ("late", self.late)):
            if window is not None and window[0] > window[1]:
                raise ValueError(
                    f"{name} is {list(window)}: expected a first and a last number of tokens, in order, as [50, 60]"
                )
        self._read_of: weakref.ref[Module] | None = None  # whose weights `_read` reads

    # ---------------------------------------------------------------- before training

    def prepare(self) -> None:
        """Determine the tokens to draw from, and the contexts of early and late loss."""
        if self.vocab_size is not None or self.run.tokenizer is not None:
            self._choose_ids(self.vocab_size or len(self.run.tokenizer))
        self._before = self._first_of("bos_token_id", "cls_token_id")
        lengths = [n for batch in self.probe_set.batches() for n in row_lengths(batch, self.name)]
        self._longest = max(lengths, default=0)
        context = int(np.median(lengths)) - 1 if lengths else 0
        early = self.found("early", lambda: [max(1, math.ceil(0.05 * context)), max(1, int(0.15 * context))])
        late = self.found("late", lambda: [max(1, math.ceil(0.9 * context)), max(1, context)])
        self._contexts = [list(early), list(late)]
        # none if they overlap, or if no row is long enough
        self._windows = self._contexts if early[1] < late[0] < self._longest else []

    def _choose_ids(self, size: int) -> None:
        tokenizer = self.run.tokenizer
        special = set() if tokenizer is None else set(tokenizer.all_special_ids)
        self._ids = [i for i in range(size) if i not in special]

    def _first_of(self, *names: str) -> tuple[int, ...]:
        """Return the first special token that the tokenizer has, of these names."""
        found = (getattr(self.run.tokenizer, name, None) for name in names)
        return tuple(i for i in found if i is not None)[:1]

    def check_module(self, module: Module) -> None:
        """Determine attention, kind of model and path from tokens to logits; check the length of rows."""
        # the tokens are those that the model predicts
        if self.vocab_size is None and self.run.tokenizer is None:
            batch = to_device(next(self.probe_set.batches()), device_of(module))
            with torch.no_grad():
                logits = logits_of(call_module(module, batch, forward=self.forward))
            self._choose_ids(logits.shape[-1])
        try:
            self.choose_sites(module, attention_sites, attention=True)
        except ValueError:
            if self.attention_sites not in (None, "auto"):
                raise
            self._found["attention_sites"] = {}
        batch = self._two(module)
        called_on(module, batch, self.forward)
        decodes = is_encoder_decoder(module)
        self._causal = not decodes and model_reading(module, batch, self.forward) != "bidirectional"
        after = () if self._causal else self._first_of("sep_token_id", "eos_token_id")
        self._rows = self._tokens(module, self.sequences, after)
        self._read = read_induction(
            module,
            self._two(module, after),
            self.paths("attention_sites"),
            self.forward,
            causal=self._causal,
            classes=max(self._ids) + 1,
        )
        self._read_of = weakref.ref(module)
        if not self._read.no_losses:
            early, late = self._contexts
            said = f"first and last tokens of context: {early} for the early loss, {late} for the late loss"
            if not self._windows:
                rows = f"rows of up to {self._longest} tokens"
                said = f"no late loss: the late context {late} exceeds {rows}, or overlaps the early context {early}"
            report(self.name, said)

    def _tokens(self, module: Module, rows: int, after: Sequence[int] = ()) -> Tensor:
        time = len(self._before) + 2 * self.length + len(after)
        check_positions(module, time, "rows of repeated tokens", "lower `length`", self.name)
        return repeated_tokens(self._ids, self.length, rows, seed=self.seed, before=self._before, after=after)

    def _two(self, module: Module, after: Sequence[int] = ()) -> dict[str, Any]:
        return to_device(repeated_batch(module, self._tokens(module, 2, after)), device_of(module))

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report what is left out, and the memory of attention weights."""
        read = self._read
        if not read.heads:
            wanted, left = (
                "attention modules that return weights",
                "lmdyn records the losses, but no scores of heads",
            )
            yield expected(wanted, "none", left, of="module", stops=False)
        if read.no_losses:
            wanted = "a causal language model"
            left = "lmdyn leaves out losses, copying and ablation"
            yield expected(wanted, read.no_losses, left, of="module", stops=False)
        elif read.heads:
            reasons = {"copying": read.no_copying, "ablation": read.no_ablation if self.top else ""}
            for what, reason in reasons.items():
                if reason:
                    yield Finding("module", f"{what} is left out: {reason}", stops=False)
        heads, time = max(read.heads.values(), default=0), self._rows.shape[1]  # one layer at a time
        yield Cost(
            f"attention weights of {heads} heads on {_ROWS} rows of {time} tokens",
            4 * _ROWS * heads * time**2,
            "lower `length`",
        )

    # ---------------------------------------------------------------- observing

    def measure(self, module: Module, step: int) -> pd.DataFrame:
        """Make passes over the repeated tokens and over the probe set, without and with ablations."""
        if self._read_of is None or self._read_of() is not module:  # another one than at the last step
            self.check_module(module)
        return tabulate(self._table_rows(module), _COLUMNS, self.name, step)

    def _table_rows(self, module: Module) -> Iterator[Row]:
        read, start = self._read, len(self._before)
        if read.heads:
            uniform = uniform_attention(self.length, start, self._rows.shape[1], causal=self._causal)
            yield {}, {"uniform_attention": uniform}
        repeated = self._repeated(module, read.heads)
        yield from _score_rows(repeated.scores)
        yield from _copying_rows(read)
        if read.no_losses:
            return
        first, second = repetition_losses(repeated.losses, self.length, start)
        difference = second - first
        yield (
            {},
            {
                "first_loss": float(first.mean()),
                "second_loss": float(second.mean()),
                "second_minus_first": float(difference.mean()),
                "second_minus_first_error": float(difference.std()) / len(difference) ** 0.5,
            },
        )
        text = self._text(module)
        windows = text.early_and_late
        if windows:
            early, late = windows
            yield {}, {"early_loss": early, "late_loss": late, "late_minus_early": late - early}
        of_rows = repeated.losses.mean(0)[: start + 2 * self.length - 1]
        for data, losses in (
            ("random", dict(enumerate(of_rows.tolist(), start=1))),
            ("probe", text.by_context),
        ):
            yield from (
                ({"data": data, "position": i}, {"position_loss": loss}) for i, loss in losses.items()
            )
        for place, heads in self._chosen(repeated.scores):
            with ablated_heads(module, read.places, heads):
                changed = self._repeated(module, {})
            after = repetition_losses(changed.losses, self.length, start)[1]
            yield place, {"second_loss_rise": float(after.mean() - second.mean())}
            if windows:
                with ablated_heads(module, read.places, heads):
                    changed_text = self._text(module)
                yield place, {"late_loss_rise": changed_text.early_and_late[1] - windows[1]}

    def _repeated(self, module: Module, heads: Mapping[str, int]) -> RepeatedRows:
        """Read the repeated tokens, with the weights of these heads."""
        batches = [
            repeated_batch(module, ids, first)
            for first, ids in zip(range(0, self.sequences, _ROWS), self._rows.split(_ROWS), strict=True)
        ]
        shape = (self.sequences, self._rows.shape[1])
        with_losses = not self._read.no_losses
        found = RepeatedRows(shape, self.length, len(self._before), heads, with_losses=with_losses)
        sites = self.paths("attention_sites") if heads else {}
        watch = Watch(found, attention_sites=sites, read=found.read)
        probe_pass(module, ProbeSet(batches), [watch], forward=self.forward)
        found.reduce()
        return found

    def _text(self, module: Module) -> TextLosses:
        """Read the probe set."""
        given = self.probe_set
        probe = FreshRows(given.loader, max_tokens=given.max_tokens, names=given.names, labels=given.labels)
        found = TextLosses(self._longest, self._windows)
        probe_pass(module, probe, [Watch(found)], forward=self.forward)
        found.reduce()
        return found

    def _chosen(self, scores: Mapping[str, Tensor]) -> Iterator[tuple[dict[str, Any], list[Head]]]:
        """Yield the heads to ablate together: the best, and different draws of others, fewer if there are no more."""
        if self._read.no_ablation or not self.top:
            return
        scored = [
            (value, (site.partition("@")[0], int(site.partition("@")[2] or 0), head))
            for site, values in scores.items()
            for head, value in enumerate(values[..., SCORES.index("prefix_matching")].mean(0).tolist())
        ]
        if any(math.isnan(value) for value, _ in scored):
            return
        order = [head for _, head in sorted(scored, key=lambda found: -found[0])]
        number = min(self.top, max(1, len(order) // 2))
        yield {"ablated": "best"}, order[:number]
        others = order[number:]
        drawn: set[frozenset[int]] = set()
        generator = torch.Generator().manual_seed(self.seed)
        while len(drawn) < min(self.draws, math.comb(len(others), number)):
            indices = torch.randperm(len(others), generator=generator)[:number].tolist()
            if frozenset(indices) not in drawn:
                yield {"ablated": "random", "draw": len(drawn)}, [others[i] for i in indices]
                drawn.add(frozenset(indices))

    # ---------------------------------------------------------------- output

    @classmethod
    def figures(cls, observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw scores of all heads over steps and at the last one, losses, and the rise of losses by ablation."""
        return induction_figures(observations) | super().figures(observations, settings)


def _score_rows(scores: Mapping[str, Tensor]) -> Iterator[Row]:
    for site, values in scores.items():
        means = values.mean(0)
        errors = values.std(0) / len(values) ** 0.5
        for i, name in enumerate(SCORES):
            for head, (mean, error) in enumerate(
                zip(means[:, i].tolist(), errors[:, i].tolist(), strict=True)
            ):
                yield {"site": site, "head": head}, {name: mean, f"{name}_error": error}


def _copying_rows(read: InductionModule) -> Iterator[Row]:
    if read.token_path is None:
        return
    product = read.token_path()
    for site, layout in read.layouts.items():
        matrices = layout.read()
        scores = copying_scores(matrices.v, matrices.o, product, matrices.query_group)
        for head, score in enumerate(scores.tolist()):
            yield {"site": site, "head": head}, {"copying": None if math.isnan(score) else score}
