"""Similarity of a model's representations to those of a reference, by step (Saphra & Lopez 2019)."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Annotated, Any

import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.attention.head_divergence import HeadDivergenceSums
from lmdyn.analysis.geometry.sampled_rows import SampledRows
from lmdyn.analysis.inspection.attributes import did_you_mean
from lmdyn.analysis.similarity.block_covariances import BlockCovariances
from lmdyn.analysis.similarity.block_similarity import block_similarity, value_or_reason
from lmdyn.analysis.similarity.divergence import DivergenceSums
from lmdyn.analysis.similarity.sweep import MEASURES, SAMPLED, measure_of
from lmdyn.callbacks.observing.amounts import count_tokens, parameter_bytes, site_widths
from lmdyn.callbacks.observing.checked_fields import Above, From
from lmdyn.callbacks.observing.findings import Cost, Foreseen, expected
from lmdyn.callbacks.observing.probe import ObservedBatch, Watch, token_vectors
from lmdyn.callbacks.observing.reference import Itself, Reference, named_references
from lmdyn.callbacks.observing.streaming_observer import LSTM_SITES, Sites, StreamingObserver, Watched
from lmdyn.callbacks.observing.sums import Row, Sums
from lmdyn.callbacks.observing.token_groups import BLOCKS, LEAST_BLOCKS, SentenceBlocks, token_hash
from lmdyn.callbacks.similarity.reference_reader import ReferenceReader, reader_of
from lmdyn.callbacks.similarity.similarity_figures import over_steps, similarity_maps
from lmdyn.runs.schema import Quantity

__all__ = ["Similarity"]

_MEASURES = {
    "svcca": "Mean canonical correlation of the directions that explain 99 % of each site's variance.",
    "svcca_<k>": "Mean canonical correlation of each site's k directions of largest variance.",
    "cca": "Mean canonical correlation of all directions.",
    "pwcca": "Mean canonical correlation, weighted by projections of this model's activations on each direction.",
    "linear_cka": "Linear centred kernel alignment.",
    "debiased_linear_cka": "Linear CKA by the unbiased HSIC₁, which may be below 0.",
    "procrustes": "Cosine between the reference's activations and the best rotation of this model's activations.",
    "kernel_cka": "Centred kernel alignment with RBF kernels, on a subsample of tokens.",
    "rsa": "Spearman's correlation between the two sites' dissimilarities of all token pairs of a subsample.",
}
_ATTENTION = {
    "attention_jensen_shannon": "Divergence of both models' attention (mean over heads), averaged over queries.",
    "attention_kullback_leibler": "Divergence from the reference's attention (mean over heads), averaged over queries.",
    "attention_head_jensen_shannon": "Divergence between heads of the same number: mean over heads, or of a head.",
    "attention_head_kullback_leibler": "Mean divergence over heads from the reference's head of the same number.",
    "attention_matched_jensen_shannon": "Divergence of heads paired for the least total divergence: mean over heads, "
    "or of a head of this model.",
    "attention_matched_kullback_leibler": "Mean divergence over heads from the reference's head in the same pair.",
    "attention_unmatched_jensen_shannon": "Mean divergence of all pairs of heads that are not matched: a baseline.",
    "attention_uniform_jensen_shannon": "Mean divergence of this model's heads from equal weights on all positions.",
}
_RANKS = {"rank": "this model's site", "reference_rank": "the reference's site"}
_PAIR = ("<site>/<reference>/<reference_site>",)


def _quantities() -> Iterator[Quantity]:
    at: dict[str, Any] = {"tags": _PAIR, "lines": "reference"}
    for name, what in _MEASURES.items():
        low = -1.0 if name in ("debiased_linear_cka", "rsa") else 0.0
        yield Quantity(name, what, low=low, high=1.0, panel=name.removesuffix("_<k>"), **at)
        if name not in SAMPLED:
            for end, which in (("low", "Lower"), ("high", "Upper")):  # 2θ − q
                meaning = f"{which} end of the bootstrap interval of {name}."
                yield Quantity(f"{name}_{end}", meaning, low=2 * low - 1, high=2 - low, tags=_PAIR)
            yield Quantity(
                f"{name}_corrected", f"{name} with the bias correction of the jackknife.", tags=_PAIR
            )
            meaning = f"Standard error of {name} over texts (jackknife)."
            yield Quantity(f"{name}_error", meaning, low=0.0, tags=_PAIR)
    for name, of in _RANKS.items():
        yield Quantity(name, f"Number of directions of {of} in svcca.", "count", low=1.0, panel="rank", **at)
    for name, what in _ATTENTION.items():
        of_heads = name.count("_") > 2
        shannon = name.endswith("shannon")
        unit, most, panel = (
            ("bits", 1.0, "attention_heads") if of_heads else ("nats", math.log(2), "attention")
        )
        at["tags"] = (*_PAIR, f"{_PAIR[0]}/head=<head>") if "of a head" in what else _PAIR
        yield Quantity(name, what, unit, low=0.0, high=most if shannon else None, panel=panel, **at)
        if of_heads:
            meaning = f"Standard error of {name} over texts (jackknife)."
            yield Quantity(f"{name}_error", meaning, unit, low=0.0, tags=_PAIR)


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
            ``Checkpoint`` at step 0 (another seed's).
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

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Ranges are those of the measures; divergences of single heads are over queries of two or more positions.

    Raises:
        ValueError: for an unknown measure, site or pair, a reference that this run cannot provide, or activations of
            different length in the two models.

    Reference: Saphra & Lopez 2019, "Understanding learning dynamics of language models with SVCCA", figures 3 to 5
        and 8 to 11; attention: Saphra 2021, section 4.1.1.
    """

    reference: Reference | dict[str, Reference] | None = None
    sites: Sites = None
    reference_sites: Mapping[str, str] | None = None
    pairs: Sequence[tuple[str, str]] | None = None
    measures: Sequence[str] = ("svcca",)
    attention_sites: Sites = None
    max_samples: Annotated[int, From(4)] = 1000
    bootstrap: Annotated[int, From(0)] = 0
    confidence: Annotated[float, Above(0, 1)] = 0.95
    seed: int = 0
    jackknife: Annotated[int, From(0, BLOCKS)] = 0
    attention_heads: bool = False

    uses_labels = False
    sharded = True
    watches = (Watched("sites", LSTM_SITES), Watched("attention_sites", {}, attention=True))
    columns = {"reference": "", "reference_site": ""}
    not_settings = StreamingObserver.not_settings | {"reference"}
    recorded = tuple(_quantities())

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := [m for m in self.measures if m not in SAMPLED and measure_of(m) is None]:
            known = (*MEASURES, *SAMPLED, "svcca_<k>")
            near = did_you_mean(unknown[0], known) or ":"
            raise ValueError(f"unknown measure {', '.join(unknown)}{near} expected one of {', '.join(known)}")
        if self.jackknife not in ((0, BLOCKS) if self.bootstrap else (0, *range(LEAST_BLOCKS, BLOCKS + 1))):
            some = f"{LEAST_BLOCKS} to {BLOCKS} blocks (exactly {BLOCKS} with `bootstrap`), or 0 to omit the jackknife"
            raise ValueError(f"jackknife is {self.jackknife}: expected {some}")
        self.compared = named_references(Itself() if self.reference is None else self.reference)
        if self.reference_sites and all(isinstance(r, Itself) for r in self.compared.values()):
            raise ValueError("reference Itself does not support `reference_sites`: use `sites` or `pairs`")
        self._streaming = [m for m in dict.fromkeys(self.measures) if m not in SAMPLED]
        self._sampled = [m for m in dict.fromkeys(self.measures) if m in SAMPLED]
        self._blocks = BLOCKS if self.bootstrap else max(self.jackknife, 1)
        self._readers: Sequence[ReferenceReader] = ()  # during an observation
        if self.attention_heads:
            self.columns = {**self.columns, "head": int}  # type: ignore[misc] # only tables with heads have it

    def check_module(self, module: Module) -> None:
        """Raise an error for sites and pairs that do not exist in the module or the references, before training."""
        super().check_module(module)
        for name, reference in self.compared.items():
            example = reference.example(module)
            sites = reader_of(self, name, reference, example, module).sites
            for own, their in self.pairs or ():
                _check_known(own.partition("@")[0], self.paths("sites"), "this model")
                _check_known(their.partition("@")[0], sites, f"reference {name!r}")

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report fewer tokens than dimensions, and the memory of references, covariances and samples."""
        widths = site_widths(module, self.probe_set, self.paths("sites"), self.forward)
        yield from self._foresee_tokens(sorted(widths.values())[-2:])
        others = [r for r in self.compared.values() if not isinstance(r, Itself)]
        models = sum(r.number(self.run) for r in others)
        itself = len(self.compared) - len(others)
        if others:
            held = sum(r.number(self.run) * parameter_bytes(r.example(module)) for r in others)
            yield Cost(f"{models} models to compare with", held, "choose fewer steps, `Earlier: {at: […]}`")
        pairs = models * len(self.pairs or widths)
        within = len(self.pairs or list(combinations(widths, 2))) * itself
        width = 2 * max(widths.values(), default=0)
        if self._streaming:
            together = within * width**2 if self.pairs else itself * sum(widths.values()) ** 2
            yield Cost(
                f"covariances of {pairs + within} pairs of sites in {self._blocks} blocks of sentences",
                8 * self._blocks * (pairs * width**2 + together),
                "compare fewer sites, name `pairs`, or use fewer blocks (`bootstrap: 0`, `jackknife`)",
            )
        if self._sampled:
            memory = 4 * (pairs + within) * self.max_samples * width + 6 * 8 * self.max_samples**2
            yield Cost(f"samples of {pairs + within} pairs of sites", memory, "lower `max_samples`")

    def _foresee_tokens(self, widest: Sequence[int]) -> Iterator[Foreseen]:
        correlations = [m for m in self.measures if m.endswith("cca")]
        needed = widest[0] + widest[-1] if widest and correlations else 0
        tokens = count_tokens(self.probe_set, needed + 1)
        if tokens <= needed:
            yield expected(
                f"more than {needed:,} tokens for sites of {widest[-1]} and {widest[0]} dimensions",
                f"{tokens:,} tokens, so {needed - tokens + 1:,} correlations are 1 for any data",
                "observe more text (`max_tokens`, `probe`), or use `linear_cka`",
                # svcca keeps fewer dimensions
                stops=not {"cca", "pwcca"}.isdisjoint(correlations) and tokens - 1 <= widest[0],
            )

    def watch(self, module: Module, step: int) -> Watch:
        """Let the references of this step read along."""
        self._readers = [
            reader_of(self, f"{name} {which}".strip(), reference, other, module)
            for name, reference in self.compared.items()
            for which, other in reference.modules(module, self.run, step).items()
        ]
        return super().watch(module, step)

    def sums(self) -> Mapping[str, Callable[[], Any]]:
        """Return covariances by block of sentences, samples, and divergences of attention, each of a pair of sites."""
        return {
            "sentences": partial(SentenceBlocks, self.run.tokenizer, self.seed),
            "covariances": partial(BlockCovariances, self._blocks),
            "sample": partial(SampledRows, self.max_samples),
            "attention": DivergenceSums,
            "heads": partial(HeadDivergenceSums, self._blocks),
        }

    def update(self, seen: ObservedBatch, sums: Sums) -> None:
        """Let the references read a batch, and add it to the sums of each pair of sites."""
        mask = seen.tokens
        own = _rows(self.at("sites", seen.activations), mask, "this model")
        keys = token_hash(seen, self.seed)[mask] if self._sampled else None
        block = None if self._blocks == 1 else sums["sentences"].of(seen) * self._blocks // BLOCKS
        blocks = None if block is None else block[mask]
        for reader in self._readers:
            of = f"reference {reader.name!r}"
            activations, attentions = reader.read(seen)
            theirs = own if reader.itself else _rows(activations, mask, of)
            pairs = self.pairs or reader.pairs(list(own), list(theirs))
            if reader.itself and not pairs and not self.paths("attention_sites"):
                raise ValueError(
                    f"{self.name}: the reference Itself requires two sites or more, got {', '.join(own)}: name more "
                    "`sites`"
                )
            together = reader.itself and self.pairs is None and self.reference_sites is None
            if together and self._streaming and len(own) > 1:  # one matrix takes less than one for each pair
                sums["covariances", reader.name, *own].update(own, blocks)
            for site, their in pairs:
                _check_known(site, own, "this model")
                _check_known(their, theirs, of)
                pair = {"x": own[site], "y": theirs[their]}
                if self._streaming and not together:
                    sums["covariances", reader.name, site, their].update(pair, blocks)
                if keys is not None:
                    sums["sample", reader.name, site, their].update(keys, pair)
            maps = self.at("attention_sites", seen.attentions)
            for site, their in combinations(maps, 2) if reader.itself else zip(maps, maps, strict=True):
                _check_known(their, attentions, of, "attention site")
                weights = maps[site], attentions[their]
                means = (w.double().mean(1) for w in weights)
                sums["attention", reader.name, site, their].update(*means, mask)
                if self.attention_heads:
                    sums["heads", reader.name, site, their].update(*weights, mask, block)

    def rows(self, sums: Sums) -> Iterator[Row]:
        """Yield the measures of each pair of sites with intervals or errors, then the divergences of attention."""
        self._readers = ()  # releases copies of the model
        samples = dict(sums.of("sample"))
        values: dict[tuple[str, ...], dict[str, float | str]] = {pair: {} for pair in samples}
        for (reference, *sites), covariances in sums.of("covariances"):
            for i, j in combinations(range(len(sites)), 2):
                pair = (reference, sites[i], sites[j])
                parts = covariances.between(i, j)
                values[pair] = block_similarity(
                    parts,
                    self._streaming,
                    bootstrap=self.bootstrap,
                    jackknife=self.jackknife > 0,
                    confidence=self.confidence,
                    seed=self.seed,
                    least=LEAST_BLOCKS,
                )
        for place, found in values.items():
            ranks: dict[str, float | str] = {q: found.pop(q) for q in _RANKS if q in found}
            for measure in self._sampled:
                rows = (samples[place].rows(side).cpu() for side in ("x", "y"))
                found[measure] = value_or_reason(partial(SAMPLED[measure], *rows))
            yield _place(place), found | ranks
        for place, divergence in sums.of("attention"):
            means = {f"attention_{kind}": value for kind, value in divergence.result().items()}
            yield _place(place), dict.fromkeys(means, divergence.error) if divergence.error else means
            if self.attention_heads:
                for name, head, value, error in sums["heads", *place].result().named():
                    found = {f"attention_{name}": value, f"attention_{name}_error": error}
                    yield {**_place(place), "head": head}, found

    @classmethod
    def figures(cls, observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw similarity over steps; heat maps of pairs of layers (``Itself``) and of pairs of steps (``Earlier``)."""
        curves = super().figures(over_steps(observations, settings["reference"]), settings)
        return curves | similarity_maps(observations, settings["reference"], cls.recorded)


def _rows(activations: Mapping[str, Tensor], mask: Tensor, of: str) -> dict[str, Tensor]:
    return {name: token_vectors(name, a, mask, of)[mask] for name, a in activations.items()}


def _place(pair: Sequence[str]) -> dict[str, Any]:
    return dict(zip(("reference", "site", "reference_site"), pair, strict=True))


def _check_known(site: str, among: Mapping[str, Any], of: str, what: str = "site") -> None:
    if site not in among:
        raise ValueError(f"{of} has no {what} {site!r}: choose among {', '.join(among)}")
