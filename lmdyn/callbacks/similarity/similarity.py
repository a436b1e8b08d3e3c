"""Similarity of a model's representations to those of a reference, by step (Saphra & Lopez 2019)."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations
from types import MappingProxyType
from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.inspection.forward import is_sharded
from lmdyn.analysis.similarity.cka import kernel_cka
from lmdyn.analysis.similarity.covariance import CrossCovariance
from lmdyn.analysis.similarity.rsa import rsa
from lmdyn.analysis.similarity.sweep import MEASURES, measure_of
from lmdyn.analysis.statistics.distributed import gather, rank_and_world_size, union_over_ranks
from lmdyn.callbacks.conditions.amounts import site_widths
from lmdyn.callbacks.conditions.finding import Foreseen
from lmdyn.callbacks.observing.probe import ObservedBatch, token_vectors
from lmdyn.callbacks.observing.reading import choose_sites
from lmdyn.callbacks.observing.reference import (
    Itself,
    Reference,
    has_module,
    named_references,
)
from lmdyn.callbacks.observing.streaming_observer import LSTM_SITES, StreamingObserver, given_sites
from lmdyn.callbacks.observing.token_groups import (
    BLOCKS,
    SentenceBlocks,
    bootstrap_settings,
    token_hash,
)
from lmdyn.callbacks.similarity.attention_sums import AttentionSums, Key, attention_table
from lmdyn.callbacks.similarity.block_values import BlockValues
from lmdyn.callbacks.similarity.foreseen_sums import foreseen_sums
from lmdyn.callbacks.similarity.reference_reader import ReferenceReader, placed_like
from lmdyn.callbacks.similarity.similarity_figures import similarity_figures
from lmdyn.callbacks.similarity.similarity_quantities import SIMILARITY

__all__ = ["Similarity"]

log = logging.getLogger(__name__)

_PAIRWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"kernel_cka": kernel_cka, "rsa": rsa}
"""Measures of the n × n structure of the samples, computed on a subsample."""


class Similarity(StreamingObserver):
    """Similarity of a model's sites to those of a reference: SVCCA, PWCCA, CKA, … over training.

    Both models read the probe set token by token. The covariances of the activations of two sites at all tokens (all
    except padding) are accumulated in one pass, for any number of tokens, and the measures are computed from them.
    Values are those of the functions in :mod:`lmdyn.analysis`.

    A site is paired with the site of the same name in the reference or, if there is none, with the reference's last
    site: a two-layer language model and a one-layer tagger give embedding–embedding, h1–h1 and h2–h1. ``Itself`` pairs
    all sites with each other.

    If an activation is constant, NaN or infinite at a step, or has too few samples, the value is NaN and a
    warning names it and the reason.

    Args:
        reference: reference, or several by name: ``Checkpoint`` (a tagger, another seed), ``OwnFinal``
            and ``Earlier`` (the run's own checkpoints), ``Previous``, and by default ``Itself``, site with site.
            Baselines are also references: a tagger of shuffled labels, ``OwnInitial`` (the run's untrained model),
            ``Checkpoint`` at step 0 (another seed's). A name ``shuffled_<name>`` or ``untrained_<name>`` is drawn as
            the dotted or dash-dotted baseline of ``<name>``.
        sites: module path by display name; a pattern of paths (``"*.layers.*"``); or ``auto`` for found sites.
            By default those of ``LSTMLanguageModel``, and found ones in other modules.
        reference_sites: the same for the reference; by default those of ``sites`` that it has.
        pairs: [own site, reference's site] to compare; see above. Runs of a shared layer are ``name@0``, ``name@1`` …
        measures: ``cca`` (all directions), ``svcca`` (those of 99 % of variance), ``svcca_<k>`` (k directions of each
            side, as ``svcca_30``: comparable between steps and references with different kept directions), ``pwcca,
            linear_cka, debiased_linear_cka, procrustes``; ``kernel_cka`` (rbf) and ``rsa`` (correlation), which are
            n × n, on ``max_samples`` tokens.
        attention_sites: path of an attention module, in both models, by display name, or ``auto``; none by default:
            divergences of the distributions, averaged over heads since those of two models have no common order.
        attention_heads: whether to compute also divergences of single heads, and of matched heads: see
            :func:`~lmdyn.analysis.head_divergences`, which omits queries with one position.
        max_samples: number of tokens, drawn by ``seed``, for the n × n measures.
        bootstrap: number of resamplings of sentences (in at most 64 blocks) for basic bootstrap intervals
            [2θ − q_high, 2θ − q_low], for all except the n × n measures; 0 for none.
        confidence: confidence level of the intervals.
        seed: seed of samples, blocks and bootstrap.
        jackknife: number of blocks of sentences, 5 to 64, that are left out in turn for bias-corrected values and
            standard errors of all except the n × n measures; 0 for none. For CCA-like measures, which a bootstrap
            raises.
        **kwargs: see :class:`~lmdyn.callbacks.Observer`.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Ranges are those of the measures; divergences of single heads are over queries of two or more positions.

    Raises:
        ValueError: for an unknown measure, site or pair, a reference that this run cannot provide, or activations of
            different length in the two models.

    Reference: Saphra & Lopez 2019, "Understanding learning dynamics of language models with SVCCA", figures 3 to 5
        and 8 to 11; attention: Saphra 2021, section 4.1.1.
    """

    uses_labels = False
    sharded = True

    recorded = SIMILARITY

    not_settings = StreamingObserver.not_settings | {"reference"}
    legacy_settings: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"jackknife": 0, "attention_heads": False}
    )
    default_sites = LSTM_SITES

    def __init__(
        self,
        *,
        reference: Reference | dict[str, Reference] = Itself(),  # noqa: B008 (holds nothing)
        sites: Mapping[str, str] | str | None = None,
        reference_sites: Mapping[str, str] | None = None,
        pairs: Sequence[Sequence[str]] | None = None,
        measures: Sequence[str] = ("svcca",),
        attention_sites: Mapping[str, str] | str | None = None,
        max_samples: int = 1000,
        bootstrap: int = 0,
        confidence: float = 0.95,
        seed: int = 0,
        jackknife: int = 0,
        attention_heads: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if unknown := [m for m in measures if m not in _PAIRWISE and measure_of(m) is None]:
            known = ", ".join((*MEASURES, *_PAIRWISE))
            raise ValueError(f"unknown measure {', '.join(unknown)}: expected one of {known}, svcca_<k>")
        if any(len(pair) != 2 for pair in pairs or ()):
            raise ValueError(f"expected pairs as [own site, reference's site], got {list(pairs or ())}")
        if max_samples < 4:
            raise ValueError(f"expected max_samples >= 4, got {max_samples}")
        self.references = named_references(reference)
        self.sites = given_sites(sites, LSTM_SITES)
        self.reference_sites = None if reference_sites is None else dict(reference_sites)
        self.pairs = None if pairs is None else [(own, theirs) for own, theirs in pairs]
        self.measures = tuple(dict.fromkeys(measures))
        self.attention_sites = given_sites(attention_sites, {})
        self.max_samples = max_samples
        self.bootstrap, self.confidence = bootstrap_settings(bootstrap, confidence)
        self.seed = seed
        if jackknife not in (0, *range(5, BLOCKS + 1)) or (bootstrap and jackknife not in (0, BLOCKS)):
            raise ValueError(
                f"jackknife is {jackknife}: expected 5 to {BLOCKS} blocks, {BLOCKS} with a bootstrap, or 0 for none"
            )
        self.jackknife = jackknife
        self.attention_heads = attention_heads

    def prepare(self) -> None:
        """Load references that are files, and raise an error for those that this run cannot provide."""
        for reference in self.references.values():
            reference.check(self.run)

    def check_module(self, module: nn.Module) -> None:
        """Raise an error for sites and pairs that do not exist in the module or the references, before training."""
        super().check_module(module)
        for name, reference in self.references.items():
            if reference.copies and is_sharded(module):
                raise ValueError(
                    f"{self.name}: reference {name!r} is a copy of the module, whose weights are sharded: remove it "
                    "from this training and replay it afterwards, or compare with a Checkpoint"
                )
        for site, _ in self.pairs or ():
            _known(site.partition("@")[0], self.sites, "this model")
        for name, reference in self.references.items():
            sites = self._reader_of(name, reference, reference.example(module), module).sites
            for _, their in self.pairs or ():
                _known(their.partition("@")[0], sites, f"reference {name!r}")

    def _reader_of(
        self, name: str, reference: Reference, other: nn.Module, module: nn.Module
    ) -> ReferenceReader:
        """Prepare a module of a reference to read the same batches as the observed one."""
        named = self.sites if self.reference_sites is None else self.reference_sites
        sites = {n: p for n, p in named.items() if self.reference_sites or has_module(other, p)}
        given = isinstance(self.hparams["sites"], Mapping) or self.reference_sites is not None
        if not sites and not given:  # a model of another kind
            whose = f"{self.name}: reference {name!r}"
            sites = choose_sites("auto", None, other, lambda: self.probe_set, reference.forward, whose=whose)
        if not sites and self.sites:
            raise ValueError(
                f"{self.name}: reference {name!r} ({type(other).__name__}) has none of the sites "
                f"{list(self.sites.values())}: name its own with `reference_sites`; it has "
                f"{', '.join(p for p, _ in other.named_modules() if p)}"
            )
        attention = {n: p for n, p in self.attention_sites.items() if has_module(other, p)}
        forward = reference.forward or (self.forward if type(other) is type(module) else None)
        if isinstance(reference, Itself):
            return ReferenceReader(name, None, sites, attention)
        return ReferenceReader(name, placed_like(other, module), sites, attention, forward)

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report fewer tokens than dimensions; memory of sums, samples and references; see :func:`foreseen_sums`."""
        widths = site_widths(module, self.probe_set, self.sites, self.forward)
        yield from foreseen_sums(self, widths, module)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments, the content of the probe set and of the references."""
        references = {name: r.settings(self.run) for name, r in self.references.items()}
        return {**super().settings, "reference": references}

    def accumulator(self, module: nn.Module, step: int) -> "_Sums":
        """Return an accumulator of covariances with each reference."""
        return _Sums(self, module, step)

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw similarity over steps, pairs of steps as a heat map, and layers against layers."""
        return similarity_figures(observations, list(settings["sites"]), settings["reference"])


def default_pairs(
    own: Sequence[str], theirs: Sequence[str], *, itself: bool = False
) -> list[tuple[str, str]]:
    """Return the pairs of sites that are compared by default.

    Example:
        >>> default_pairs(["embedding", "h1", "h2"], ["embedding", "h1"])
        [('embedding', 'embedding'), ('h1', 'h1'), ('h2', 'h1')]
        >>> default_pairs(["h1", "h2"], ["h1", "h2"], itself=True)
        [('h1', 'h2')]
    """
    if itself:
        return list(combinations(own, 2))
    return [(site, site if site in theirs else theirs[-1]) for site in own]


class _Sums:
    """Accumulator of covariances, samples and divergences of all pairs with all references."""

    def __init__(self, observer: Similarity, module: nn.Module, step: int) -> None:
        self._observer = observer
        self._step = step
        self._readers = [
            observer._reader_of(" ".join(part for part in (name, which) if part), reference, other, module)
            for name, reference in observer.references.items()
            for which, other in reference.modules(module, observer.run, step).items()
        ]
        self._pairs: dict[Key, None] = {}
        self._covariances: dict[tuple[Key, int], CrossCovariance] = {}
        self._samples: dict[Key, tuple[Tensor, Tensor, Tensor]] = {}
        self._warned: set[tuple[str, Key]] = set()
        self._any = False
        self._blocks = SentenceBlocks(observer.run.tokenizer, observer.seed)
        self._streaming = [m for m in observer.measures if m not in _PAIRWISE]
        self._block_count = BLOCKS if observer.bootstrap else max(observer.jackknife, 1)
        self._values_of = BlockValues(
            tuple(self._streaming), observer.bootstrap, observer.jackknife > 0, observer.confidence, observer.seed,
            observer.name, step,
        )  # fmt: skip
        self._pairwise = [m for m in observer.measures if m in _PAIRWISE]
        self._attention = AttentionSums(observer.attention_heads, self._block_count, self._warn)

    def update(self, seen: ObservedBatch) -> None:
        observer, mask = self._observer, seen.tokens
        self._any = True
        own = {n: a for n, a in seen.activations.items() if n.split("@")[0] in observer.sites}
        rows = {name: token_vectors(name, a, mask, "this model")[mask] for name, a in own.items()}
        keys = token_hash(seen, observer.seed)[mask] if self._pairwise else None
        block = None if self._block_count == 1 else self._blocks.of(seen) * self._block_count // BLOCKS
        blocks = None if block is None else block[mask]
        for reader in self._readers:
            activations, attentions = reader.read(seen)
            theirs = {n: a for n, a in activations.items() if n.split("@")[0] in reader.sites}
            pairs = observer.pairs or default_pairs(list(rows), list(theirs), itself=reader.itself)
            of = f"reference {reader.name!r}"
            other = {n: token_vectors(n, a, mask, of)[mask] for n, a in theirs.items()}
            for site, their in pairs:
                _known(site, rows, "this model")
                _known(their, other, of)
                key = (reader.name, site, their)
                self._pairs[key] = None
                x, y = rows[site], other[their]
                if self._streaming:
                    self._add(key, x, y, blocks)
                if keys is not None:
                    self._sample(key, keys, x, y)
            if reader.itself and not pairs and not observer.attention_sites:
                raise ValueError(
                    f"{observer.name}: expected different sites for Itself, got only {list(rows)}"
                )
            self._attend(reader, seen.attentions, attentions, mask, block)

    def _add(self, key: Key, x: Tensor, y: Tensor, blocks: Tensor | None) -> None:
        if blocks is None:
            self._covariances.setdefault((key, 0), CrossCovariance()).update(x, y)
            return
        for block in blocks.unique().tolist():
            rows = blocks == block
            self._covariances.setdefault((key, block), CrossCovariance()).update(x[rows], y[rows])

    def _sample(self, key: Key, keys: Tensor, x: Tensor, y: Tensor) -> None:
        """Keep the tokens of the smallest hashes: the same ones for any number of ranks and any batches."""
        there = self._samples.get(key)
        if there is not None:
            keys, x, y = (torch.cat(parts) for parts in zip(there, (keys, x, y), strict=True))
        best = keys.argsort()[: self._observer.max_samples]
        self._samples[key] = keys[best], x[best], y[best]

    def _attend(
        self,
        reader: ReferenceReader,
        own: Mapping[str, Tensor],
        theirs: Mapping[str, Tensor],
        mask: Tensor,
        blocks: Tensor | None,
    ) -> None:
        sites = [name for name in own if name.split("@")[0] in self._observer.attention_sites]
        for name, their in combinations(sites, 2) if reader.itself else zip(sites, sites, strict=True):
            _known(their, theirs, f"reference {reader.name!r}", "attention site")
            self._attention.update((reader.name, name, their), own[name], theirs[their], mask, blocks)

    def table(self) -> pd.DataFrame:
        observer = self._observer
        if not any(gather(self._any)):
            raise ValueError(
                f"{observer.name}: the probe set is empty: expected at least one batch to compare on"
            )
        rows: list[tuple[str, str, str, str, float]] = []
        for key in union_over_ranks(self._pairs):
            reference, site, their = key
            values = self._values(key) if self._streaming else {}
            if self._pairwise:
                values |= self._pairwise_values(key)
            first = [q for m in observer.measures for q in values if q == m or q.startswith(f"{m}_")]
            ordered = dict.fromkeys([*first, *values])
            rows += [(quantity, site, reference, their, values[quantity]) for quantity in ordered]
        columns = ["quantity", "site", "reference", "reference_site", "value"]
        table = pd.DataFrame(rows, columns=columns).astype({"value": "float64"})
        if not (attended := self._attention.rows()):
            return table
        attention = attention_table(attended, columns)
        return attention if table.empty else pd.concat([table, attention], ignore_index=True)

    def _values(self, key: Key) -> dict[str, float]:
        """Return values from covariances, with intervals or errors if requested."""
        parts = [self._covariances.get((key, block), CrossCovariance()) for block in range(self._block_count)]
        for part in parts:
            part.reduce()
        self._check_samples(key, parts)
        return self._values_of.of(parts, lambda quantity, compute: self._value(quantity, key, compute))

    def _check_samples(self, key: Key, parts: Sequence[CrossCovariance]) -> None:
        """Warn about few tokens, for which correlations are 1 for any data."""
        n, each = sum(part.n for part in parts), max(part.widths for part in parts)
        widths = sum(each)
        correlations = [m for m in self._streaming if "cca" in m]
        if correlations and 0 < n - 1 < widths and rank_and_world_size()[0] == 0:
            log.warning(
                "%s at step %d: %d tokens for %d + %d dimensions of %s and %s of reference %s: up to %d correlations "
                "are 1 for any data, so %s are not informative: observe more tokens",
                self._observer.name, self._step, n, *each, key[1], key[2], key[0],
                widths - n + 1, ", ".join(correlations),
            )  # fmt: skip

    def _pairwise_values(self, key: Key) -> dict[str, float]:
        mine = self._samples.get(key)
        everyone = [part for part in gather(None if mine is None else [t.cpu() for t in mine]) if part]
        keys, x, y = (torch.cat(parts) for parts in zip(*everyone, strict=True))
        best = keys.argsort()[: self._observer.max_samples]
        return {m: self._value(m, key, partial(_PAIRWISE[m], x[best], y[best])) for m in self._pairwise}

    def _value(self, measure: str, key: Key, compute: Callable[[], Tensor | float]) -> float:
        try:
            return float(compute())
        except ValueError as error:
            self._warn(measure, key, error)
            return float("nan")

    def _warn(self, what: str, key: Key, error: object) -> None:
        """Log once why there is no value."""
        if (what, key) not in self._warned and rank_and_world_size()[0] == 0:
            self._warned.add((what, key))
            log.warning(
                "%s at step %d: %s of %s (x) and %s of reference %s (y) has no value: %s",
                self._observer.name, self._step, what, key[1], key[2], key[0], error,
            )  # fmt: skip


def _known(site: str, among: Mapping[str, Any], of: str, what: str = "site") -> None:
    if site not in among:
        raise ValueError(f"{of} has no {what} {site!r}: it has {', '.join(among)}")
