"""Induction heads during training: scores on repeated random tokens, copying, in-context loss, ablation."""

import logging
import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import ceil
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.attention.copying import copying_scores
from lmdyn.analysis.attention.head_ablation import ablated_heads, head_inputs
from lmdyn.analysis.attention.induction_scores import SCORES, uniform_attention
from lmdyn.analysis.attention.repeated_tokens import repeated_tokens
from lmdyn.analysis.inspection.forward import device_of
from lmdyn.analysis.inspection.label_convention import model_reading
from lmdyn.analysis.inspection.transformer import attention_sites, check_positions, is_encoder_decoder
from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.callbacks.attention.induction_data import FreshRows, first_of, repeated_batch, row_lengths
from lmdyn.callbacks.attention.induction_figures import induction_figures
from lmdyn.callbacks.attention.induction_module import InductionModule, called_on, read_induction
from lmdyn.callbacks.attention.induction_quantities import QUANTITIES
from lmdyn.callbacks.attention.induction_rows import (
    losses_by_context,
    position_rows,
    row,
    second_losses,
    table_of,
    window_rows,
)
from lmdyn.callbacks.attention.induction_sums import Keeping, Repeated, RepeatedRows, TextLosses
from lmdyn.callbacks.conditions.finding import Cost, Foreseen, expected
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import ProbeSet, Watch, probe_pass, to_device
from lmdyn.callbacks.observing.run import announce
from lmdyn.callbacks.observing.schema import Quantity
from lmdyn.callbacks.observing.streaming_observer import given_sites

__all__ = ["Induction"]

log = logging.getLogger(__name__)

_ROWS = 16  # of a batch of repeated tokens

Head = tuple[str, int, int]
"""Attention site, number of its run in a forward pass, head."""


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
        vocab_size: draw from the ids below this number; None uses the tokenizer's size.
        attention_sites: path of an attention module by display name; ``auto`` finds those that return weights; None
            uses those of all layers. See :class:`~lmdyn.callbacks.AttentionPatterns`.
        early: first and last number of tokens of context of the early loss; None uses 5 % to 15 % of the median row.
        late: the same of the late loss; None uses the last 10 %. Olsson et al. use [50, 50] and [500, 500].
        top: number of heads to ablate, at most half of all; 0 for no ablation.
        draws: number of draws of as many random other heads, different ones; fewer if there are no more.
        ablation: replace the heads' outputs by ``zero``, or by their ``mean`` over the same data.
        max_tokens: approximate number of tokens of the probe set; None for all.
        **kwargs: see :class:`~lmdyn.callbacks.Observer`.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for numbers out of range, without a tokenizer and ``vocab_size``, for too few tokens to draw from,
            or for a model with fewer positions than a row.

    Reference: Olsson et al. 2022 (prefix matching, in-context learning score, ablation); Elhage et al. 2021 (copying).
    """

    uses_labels = False
    in_step = True
    sharded = True
    recorded: tuple[Quantity, ...] = QUANTITIES  # type: ignore[misc]

    def __init__(
        self,
        *,
        length: int = 25,
        sequences: int = 100,
        seed: int = 0,
        vocab_size: int | None = None,
        attention_sites: Mapping[str, str] | str | None = None,
        early: Sequence[int] | None = None,
        late: Sequence[int] | None = None,
        top: int = 2,
        draws: int = 3,
        ablation: Literal["zero", "mean"] = "zero",
        max_tokens: int | None = 20_000,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_tokens=max_tokens, **kwargs)
        for name, value, least in (
            ("length", length, 2),
            ("sequences", sequences, 2),
            ("top", top, 0),
            ("draws", draws, 0),
        ):
            if value < least:
                raise ValueError(f"{name} is {value}: expected a number from {least}")
        if vocab_size is not None and vocab_size < length:
            raise ValueError(f"vocab_size is {vocab_size}: expected at least `length`, {length}")
        if ablation not in ("zero", "mean"):
            raise ValueError(f"ablation is {ablation!r}: expected 'zero' or 'mean'")
        for name, window in (("early", early), ("late", late)):
            if window is not None and (len(window) != 2 or not 1 <= window[0] <= window[1]):
                raise ValueError(
                    f"{name} is {list(window)}: expected the first and the last number of tokens of context, from 1, "
                    "such as [50, 50]"
                )
        self.length, self.sequences, self.seed, self.vocab_size = length, sequences, seed, vocab_size
        self.attention_sites = given_sites(attention_sites, {})
        self.early, self.late = early, late
        self.top, self.draws, self.ablation = top, draws, ablation
        self._longest = 0
        self._causal = True
        self._ids: list[int] = []
        self._before: tuple[int, ...] = ()
        self._rows: Tensor | None = None
        self._read: InductionModule | None = None
        self._read_of: weakref.ref[nn.Module] | None = None  # whose weights `_read` reads

    # ---------------------------------------------------------------- before training

    def prepare(self) -> None:
        """Determine the tokens to draw from, and the contexts of early and late loss."""
        tokenizer = self.run.tokenizer
        if tokenizer is None and self.vocab_size is None:
            raise ValueError(
                f"{self.name} draws random tokens: expected a tokenizer of the run, or `vocab_size`, got neither; set "
                "`vocab_size` to the number of token ids of the model"
            )
        special = set() if tokenizer is None else set(tokenizer.all_special_ids)
        size = len(tokenizer) if self.vocab_size is None else self.vocab_size
        self._ids = [i for i in range(size) if i not in special]
        if len(self._ids) < self.length:
            raise ValueError(
                f"{self.name}: expected at least `length`, {self.length}, tokens that are not special, got "
                f"{len(self._ids)}: lower `length`"
            )
        self._before = first_of(tokenizer, "bos_token_id", "cls_token_id")
        lengths = [n for batch in self.probe_set.batches() for n in row_lengths(batch, self.name)]
        self._longest = max(lengths, default=0)
        context = int(np.median(lengths)) - 1 if lengths else 0
        self.early = self.found("early", lambda: [max(1, ceil(0.05 * context)), max(1, int(0.15 * context))])
        self.late = self.found("late", lambda: [max(1, ceil(0.9 * context)), max(1, context)])

    def check_module(self, module: nn.Module) -> None:
        """Determine attention, kind of model and path from tokens to logits; check the length of rows."""
        self._find_attention(module)
        tokens = len(self._before) + 2 * self.length
        check_positions(module, tokens, "rows of repeated tokens", "lower `length`", self.name)
        after: tuple[int, ...] = ()
        batch = to_device(repeated_batch(module, self._tokens(2), [0, 1]), device_of(module))
        called_on(module, batch, self.forward)
        decodes = is_encoder_decoder(module)
        self._causal = not decodes and model_reading(module, batch, self.forward) != "bidirectional"
        if not self._causal:
            after = first_of(self.run.tokenizer, "sep_token_id", "eos_token_id")
            check_positions(
                module, tokens + len(after), "rows of repeated tokens", "lower `length`", self.name
            )
        self._rows = self._tokens(self.sequences, after)
        batch = to_device(repeated_batch(module, self._rows[:2], [0, 1]), device_of(module))
        self._read = read_induction(
            module, batch, self.attention_sites, self.forward, causal=self._causal, classes=max(self._ids) + 1
        )
        self._read_of = weakref.ref(module)

        if not self._read.no_losses:
            announce(self.name, self._contexts())

    def _contexts(self) -> str:
        """Say which contexts are early and late."""
        early, late = list(self.early or ()), list(self.late or ())
        if self._windows is None:
            return f"no late loss: contexts {early} (early) and {late} (late) of rows of up to {self._longest} tokens"
        return f"early loss after {early}, late loss after {late} tokens of context"

    @property
    def _windows(self) -> tuple[Sequence[int], Sequence[int]] | None:
        """Contexts of early and late loss; None if they overlap, or if no row is long enough."""
        if self.early is None or self.late is None or not self.early[1] < self.late[0] < self._longest:
            return None
        return self.early, self.late

    def _find_attention(self, module: nn.Module) -> None:
        default: dict[str, str] | None = None
        if self.hparams["attention_sites"] is None:
            try:
                default = attention_sites(module)
            except ValueError:
                default = None  # they are found, if there are any
        try:
            self.attention_sites = self.choose_sites(module, default, attention=True)
        except ValueError:
            if self.hparams["attention_sites"] not in (None, "auto"):
                raise
            self.attention_sites = self._found["attention_sites"] = {}

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report what is left out, and the memory of attention weights."""
        read = self._met_module()
        if not read.heads:
            yield expected(
                "attention modules that return weights", "none", "losses are recorded, and no rows of heads",
                of="module", stops=False,
            )  # fmt: skip
        if read.no_losses:
            yield expected(
                "a causal language model", read.no_losses if self._causal else "one that reads later tokens",
                "losses, copying and ablation are left out", of="module", stops=False,
            )  # fmt: skip
        elif read.heads:
            for reason, what in ((read.no_copying, "copying"), (read.no_ablation, "ablation")):
                if reason and (what != "ablation" or self.top):
                    yield expected(
                        f"a module whose heads can be read, for {what}",
                        reason,
                        f"{what} is left out",
                        of="module",
                        stops=False,
                    )
        time = len(self._before) + 2 * self.length
        yield Cost(
            f"attention weights of {read.total} heads on {_ROWS} rows of {time} tokens",
            4 * _ROWS * read.total * time**2,
            "lower `length`",
        )

    # ---------------------------------------------------------------- observing

    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Make passes over the repeated tokens and over the probe set, without and with ablations."""
        if self._read_of is None or self._read_of() is not module:  # another one than at the last step
            self.check_module(module)
        read = self._met_module()
        rows: list[dict[str, Any]] = [row("uniform_attention", self._uniform())] if read.heads else []
        repeated, random_values = self._repeated(module, values=self._wants_values(read))
        rows += self._score_rows(repeated)
        rows += self._copying_rows(read)
        if not read.no_losses:
            second = second_losses(repeated, self.length, len(self._before))
            contexts, windows, text_values = self._text(module, values=self._wants_values(read))
            rows += [row(name, value) for name, value in second.items()]
            rows += window_rows(windows)
            rows += position_rows("random", losses_by_context(repeated, len(self._before) + 2 * self.length))
            rows += position_rows("probe", contexts)
            late = None if windows is None else windows[1]
            for ablated, draw, heads in self._chosen(read, repeated):
                where = {"ablated": ablated, "draw": draw}
                with ablated_heads(module, read.places, heads, random_values):
                    changed, _ = self._repeated(module, scores=False)
                rise = (
                    second_losses(changed, self.length, len(self._before))["second_loss"]
                    - second["second_loss"]
                )
                rows.append(row("second_loss_rise", rise, **where))
                if late is not None:
                    with ablated_heads(module, read.places, heads, text_values):
                        _, changed_windows, _ = self._text(module)
                    assert changed_windows is not None
                    rows.append(row("late_loss_rise", changed_windows[1] - late, **where))
        self._warn(rows, step)
        return table_of(rows)

    def _repeated(
        self, module: nn.Module, *, scores: bool = True, values: bool = False
    ) -> tuple[Repeated, dict[tuple[str, int], Tensor] | None]:
        """Read the repeated tokens; return scores and losses, and, if wanted, the heads' mean outputs."""
        read = self._met_module()
        assert self._rows is not None
        parts = zip(self._rows.split(_ROWS), torch.arange(self.sequences).split(_ROWS), strict=True)
        probe = ProbeSet([repeated_batch(module, ids, numbers.tolist()) for ids, numbers in parts])
        consumer = RepeatedRows(self.sequences, self.length, len(self._before), losses=not read.no_losses)
        watch = Watch(consumer, attention_sites=self.attention_sites if scores else {})
        found = self._pass(module, probe, watch, values)
        return consumer.result(), found

    def _text(
        self, module: nn.Module, *, values: bool = False
    ) -> tuple[dict[int, float], tuple[float, float] | None, dict[tuple[str, int], Tensor] | None]:
        """Read the probe set; return losses by context, early and late loss, and the heads' mean outputs."""
        given = self.probe_set
        probe = FreshRows(given.loader, max_tokens=given.max_tokens, names=given.names, labels=given.labels)
        consumer = TextLosses(self._longest, self._windows)
        found = self._pass(module, probe, Watch(consumer), values)
        return *consumer.result(), found

    def _pass(
        self, module: nn.Module, probe: ProbeSet, watch: Watch, values: bool
    ) -> dict[tuple[str, int], Tensor] | None:
        read = self._met_module()
        with head_inputs(module, read.places) if values else nullcontext() as inputs:
            watch = watch if inputs is None else replace(watch, consumer=Keeping(inputs, watch.consumer))
            probe_pass(module, probe, [watch], forward=self.forward)
        return None if inputs is None else inputs.means(read.widths)

    def _chosen(self, read: InductionModule, repeated: Repeated) -> Iterable[tuple[str, Any, list[Head]]]:
        """Yield the heads to ablate together: the best, and draws of others."""
        if read.no_ablation or not self.top:
            return
        means = {
            site: values[..., SCORES.index("prefix_matching")].mean(0)
            for site, values in repeated.scores.items()
        }
        scored = [
            (float(value), (site.partition("@")[0], int(site.partition("@")[2] or 0), head))
            for site, values in means.items()
            for head, value in enumerate(values)
        ]
        if any(value != value for value, _ in scored):
            return
        order = [head for _, head in sorted(scored, key=lambda found: -found[0])]
        number = min(self.top, max(1, len(order) // 2))
        yield "best", pd.NA, order[:number]
        for draw, heads in enumerate(_draws(order[number:], number, self.draws, self.seed)):
            yield "random", draw, heads

    # ---------------------------------------------------------------- rows of the table

    def _score_rows(self, repeated: Repeated) -> Iterable[dict[str, Any]]:
        for site, values in repeated.scores.items():
            means, errors = values.mean(0), values.std(0) / values.shape[0] ** 0.5
            for i, name in enumerate(SCORES):
                for head in range(values.shape[1]):
                    yield row(name, means[head, i], site=site, head=head)
                    yield row(f"{name}_error", errors[head, i], site=site, head=head)

    def _copying_rows(self, read: InductionModule) -> Iterable[dict[str, Any]]:
        if read.token_path is None:
            return
        product = read.token_path.product()
        for site, layout in read.layouts.items():
            matrices = layout.read()
            scores = copying_scores(matrices.v, matrices.o, product, matrices.query_group)
            for head, score in enumerate(scores.tolist()):
                if score == score:
                    yield row("copying", score, site=site, head=head)

    def _uniform(self) -> float:
        assert self._rows is not None
        return uniform_attention(self.length, len(self._before), self._rows.shape[1], causal=self._causal)

    def _warn(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        broken = sorted({str(found["quantity"]) for found in rows if found["value"] != found["value"]})
        if broken and rank_and_world_size()[0] == 0:
            log.warning(
                "%s: %s are NaN at step %d: the model has diverged", self.name, ", ".join(broken), step
            )

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return all rows except standard errors and losses by position."""
        names = observations["quantity"].astype(str)
        return ~(names.str.endswith("_error") | names.eq("position_loss"))

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw scores of all heads over steps and at the last one, losses, and the rise of losses by ablation."""
        return induction_figures(observations)

    # ---------------------------------------------------------------- parts

    def _met_module(self) -> InductionModule:
        if self._read is None:
            raise RuntimeError(f"{self.name} has not read a module: call observe(), which does")
        return self._read

    def _wants_values(self, read: InductionModule) -> bool:
        return self.ablation == "mean" and self.top > 0 and not read.no_ablation

    def _tokens(self, rows: int, after: Sequence[int] = ()) -> Tensor:
        return repeated_tokens(self._ids, self.length, rows, seed=self.seed, before=self._before, after=after)


def _draws(heads: Sequence[Head], number: int, draws: int, seed: int) -> list[list[Head]]:
    """Draw different sets of heads; fewer than ``draws`` if there are no more."""
    found: dict[frozenset[int], list[Head]] = {}
    generator = torch.Generator().manual_seed(seed)
    wanted = min(draws, math.comb(len(heads), number))
    while len(found) < wanted:
        drawn = torch.randperm(len(heads), generator=generator)[:number].tolist()
        found.setdefault(frozenset(drawn), [heads[i] for i in drawn])
    return list(found.values())
