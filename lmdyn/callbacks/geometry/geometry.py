"""Geometry of a model's activations by step: ranks, intrinsic dimension, anisotropy, outliers, attention sinks."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from lmdyn.analysis.attention.first_token import FirstTokenSums, first_token_sums
from lmdyn.analysis.geometry.intrinsic_dimension import intrinsic_dimension
from lmdyn.analysis.geometry.rectifiers import UnitSigns, find_rectifiers
from lmdyn.analysis.geometry.sampled_rows import SampledRows
from lmdyn.analysis.geometry.spectrum import power_law, white_noise_rank
from lmdyn.analysis.geometry.vector_sums import VectorGeometry, VectorSums
from lmdyn.analysis.inspection.batches import tokens_of
from lmdyn.analysis.inspection.forward import Batch, device_of
from lmdyn.callbacks.observing.amounts import count_tokens, site_widths
from lmdyn.callbacks.observing.checked_fields import From
from lmdyn.callbacks.observing.findings import Cost, Foreseen, expected
from lmdyn.callbacks.observing.probe import ObservedBatch, to_device, token_vectors
from lmdyn.callbacks.observing.run import report
from lmdyn.callbacks.observing.streaming_observer import LSTM_SITES, Sites, StreamingObserver, Watched
from lmdyn.callbacks.observing.sums import Row, Sums
from lmdyn.callbacks.observing.token_groups import token_hash
from lmdyn.runs.schema import Quantity

__all__ = ["Geometry"]

_ENOUGH = 4  # vectors for each dimension, below which RankMe is far from its value for many
_PARTS = {"intrinsic_dimension": 1, "intrinsic_dimension_half": 2, "intrinsic_dimension_quarter": 4}
_at = partial(Quantity, tags=("<site>/<over>",))
_rank = partial(_at, low=1.0, panel="ranks")
_outlier = partial(_at, panel="outliers")
_dimension = partial(_at, low=0.0, panel="dimension")
_unit = partial(_at, unit="share", low=0.0, high=1.0, panel="units")

_OF_VECTORS = (
    _at("vectors", "Number of vectors from which the observer computes the ranks.", "count", low=1.0),
    _rank(
        "rankme",
        "RankMe: exponential entropy of the singular values of the uncentred vectors.",
        short="RankMe (singular values,\nuncentred)",
        floor="rankme_white_noise",
        headline=True,
    ),
    _rank(
        "rankme_covariance",
        "Exponential entropy of the eigenvalues of the centred covariance.",
        short="RankMe (eigenvalues of\nthe covariance)",
    ),
    _at("rankme_white_noise", "RankMe of as many Gaussian vectors of the same width.", low=1.0),
    _rank("participation_ratio", "(Σλ)²/Σλ² of the eigenvalues λ of the centred covariance."),
    _at(
        "alpha",
        "Exponent α of λ_i ~ i^−α for the eigenvalues λ_i of the covariance, by least squares.",
        low=0.0,
        panel="ranks",
        short="exponent α of λᵢ ~ i^−α",
    ),
    _at("alpha_error", "Standard error of alpha, from the residuals of the fitted line.", low=0.0),
    _at("alpha_r2", "Share of the variance of ln λ_i that the power law explains.", low=0.0, high=1.0),
    _outlier("anisotropy", "Mean cosine of all pairs of vectors.", low=-1.0, high=1.0),
    _outlier(
        "token_kurtosis",
        "Excess kurtosis over the components of a vector, mean over vectors.",
        low=-2.0,
        short="excess kurtosis over the\ncomponents of a vector",
    ),
    _outlier(
        "unit_kurtosis",
        "Excess kurtosis of a unit over vectors, mean over units.",
        low=-2.0,
        short="excess kurtosis of a unit\nover vectors",
    ),
    _at("largest_magnitude", "Largest magnitude of any unit in any vector.", low=0.0),
)
_OF_SAMPLE = (
    _at("distinct_vectors", "Number of distinct vectors in the sample.", "count", low=1.0),
    _dimension("intrinsic_dimension", "TwoNN intrinsic dimension of the distinct vectors of the sample."),
    _dimension("intrinsic_dimension_half", "TwoNN dimension of half of the distinct vectors."),
    _dimension("intrinsic_dimension_quarter", "TwoNN dimension of a quarter of the distinct vectors."),
    _at("median_magnitude", "Median magnitude of all units in all vectors of the sample.", low=0.0),
    _outlier(
        "largest_to_median",
        "Largest magnitude of all vectors, divided by the sample's median magnitude.",
        low=1.0,
        short="largest over median\nmagnitude",
    ),
)
_OF_UNITS = tuple(
    _unit(
        name,
        f"Share of units of an activation function that are above 0 for {which}.",
        short=f"units above 0 for {which}",
    )
    for name, which in (("dead_units", "no token"), ("always_on_units", "all tokens"))
)
_OF_ATTENTION = (
    Quantity(
        "first_token_attention",
        "Mean attention weight of a head's queries on the first token of the sequence.",
        low=0.0,
        high=1.0,
        tags=("<attention_site>/head=<head>",),
        panel="first_token",
        short="weight on the first token",
        floor="first_token_equal",
    ),
    Quantity(
        "first_token_equal",
        "Mean weight on the first token if a query weights all positions that it sees equally.",
        low=0.0,
        high=1.0,
        tags=("<attention_site>",),
    ),
)


class Geometry(StreamingObserver):
    """Geometry of activations: RankMe, power law of the eigenvalues, intrinsic dimension, anisotropy, outliers.

    Each site's activations at all tokens (except padding; ``over = all``) and at the last token of each sequence
    (``over = last``) are a set of vectors. Sums over all of them are accumulated in float64 in one pass, for any number
    of tokens; the intrinsic dimension and the median magnitude are those of a sample of ``max_samples`` vectors,
    which does not depend on batches and ranks. Streams of text that continue from batch to batch, as recurrent models
    read them, have no last tokens: the last position of a row is anywhere in the text.

    Units that are above 0 for no token, or for all, are counted at activation functions that are modules and rectify
    (ReLU, GELU, SiLU and the like; :func:`~lmdyn.analysis.geometry.rectifiers.is_rectifier`).

    A number that is not defined has no row: of constant vectors all except RankMe and anisotropy, of zero vectors all
    except the magnitudes. If activations or attention weights are NaN or infinite, all numbers of the site are NaN,
    with a warning.

    Args:
        sites: module path by display name; a pattern of paths (``"*.layers.*"``); or ``auto`` for found sites.
            By default those of ``LSTMLanguageModel``, and found ones in other modules.
        activation_functions: the same for modules whose dead and always-on units are counted; ``auto`` finds them;
            None for none.
        attention_sites: path of an attention module by display name, or ``auto``, for the attention to the first token;
            none by default, since they switch the model to eager attention during the observation.
        alpha_range: first and last index of the eigenvalues, from 1, to which the power law is fitted; None as the last
            for all.
        max_samples: number of vectors, drawn by ``seed``, for the intrinsic dimension and the median magnitude.
        seed: seed of the sample.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for sites that are not modules, an empty range of indices, fewer than 40 samples, or an empty
            probe set.

    Reference: Garrido et al. 2023 (RankMe); Agrawal et al. 2022 (α-ReQ); Facco et al. 2017 (TwoNN); Ethayarajh 2019
        (anisotropy); Elhage et al. 2023 (privileged bases); Sun et al. 2024 (massive activations); Xiao et al. 2023
        (attention to the first token).
    """

    sites: Sites = None
    activation_functions: Sites = "auto"
    attention_sites: Sites = None
    alpha_range: tuple[Annotated[int, From(1)], int | None] = (3, 100)
    max_samples: Annotated[int, From(10 * max(_PARTS.values()))] = 500  # a quarter is enough for an estimate
    seed: int = 0

    uses_labels = False
    sharded = True
    watches = (
        Watched("sites", LSTM_SITES),
        Watched("activation_functions", {}),
        Watched("attention_sites", {}, attention=True),
    )
    columns = {"over": "", "head": int}
    recorded = (*_OF_VECTORS, *_OF_SAMPLE, *_OF_UNITS, *_OF_ATTENTION)

    def __post_init__(self) -> None:
        super().__post_init__()
        power_law(torch.ones(1), *self.alpha_range)  # checks the range

    def find_sites(self, module: nn.Module, watched: Watched) -> None:
        """Find also the activation functions that rectify."""
        if watched.argument != "activation_functions" or self.activation_functions != "auto":
            super().find_sites(module, watched)
            return
        said = "no module is a rectifying activation function: lmdyn leaves out dead and always-on units"
        found: dict[str, str] = {}
        for batch in islice(self.probe_set.batches(), 1):
            found = find_rectifiers(module, to_device(batch, device_of(module)), self.forward)
        if found:
            said = f"activation functions found: {', '.join(f'{n} ({path})' for n, path in found.items())}"
        report(self.name, said)
        self._found["activation_functions"] = found

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report fewer vectors than a few for each dimension, and the memory of sums and samples."""
        widths = site_widths(module, self.probe_set, self.paths("sites"), self.forward)
        widest = max(widths.values(), default=0)
        needed = _ENOUGH * widest
        tokens = count_tokens(self.probe_set, needed)
        if tokens < needed:
            yield expected(
                f"at least {needed:,} tokens, {_ENOUGH} for each of {widest} dimensions",
                f"{tokens:,}, so the number of tokens limits the ranks",
                "observe more text (`max_tokens`, `probe`), or compare `rankme` with `rankme_white_noise`",
                stops=False,
            )
        sets = 2 * len(widths)  # all and last
        sums = 2 * 8 * sum(3 * width**2 + 2048 * width for width in widths.values())
        samples = 2 * 4 * 2 * self.max_samples * sum(widths.values()) + 4 * 8 * self.max_samples**2
        what = f"covariances and {self.max_samples} samples of {sets} sets of up to {widest} dimensions"
        yield Cost(what, sums + samples, "observe fewer `sites`, or lower `max_samples`")

    def sums(self) -> Mapping[str, Callable[[], Any]]:
        """Return sums of vectors, samples of them, signs of units, and weights on first tokens."""
        sample = partial(SampledRows, self.max_samples)
        return {"vectors": VectorSums, "sample": sample, "signs": UnitSigns, "first": FirstTokenSums}

    def read_weights(self, batch: Batch, path: str, weights: Tensor) -> Tensor:
        """Return the sums of weights on the first token of each row."""
        return first_token_sums(weights, tokens_of(batch))

    def update(self, seen: ObservedBatch, sums: Sums) -> None:
        """Add a batch: vectors of all tokens and of last ones, signs of units, attention to the first token."""
        mask = seen.tokens
        keys = token_hash(seen, self.seed)
        sites = self.at("sites", seen.activations)
        vectors = {name: token_vectors(name, x, mask) for name, x in sites.items()}
        everything = slice(None) if mask.all() else mask.flatten()
        rows = {name: x.flatten(0, 1)[everything] for name, x in vectors.items()}
        sets = {"all": (keys.flatten()[everything], rows)}
        if "continues" not in seen.batch:
            row = mask.any(1).nonzero()[:, 0]
            last = (mask * torch.arange(mask.shape[1], device=mask.device)).argmax(1)[row]
            sets["last"] = (keys[row, last], {name: x[row, last] for name, x in vectors.items()})
        for over, (own, of_sites) in sets.items():
            for name, x in of_sites.items():
                sums["vectors", name, over].update(x)
            sums["sample", over].update(own, of_sites)
        for name, x in self.at("activation_functions", seen.activations).items():
            sums["signs", name].update(token_vectors(name, x, mask).flatten(0, 1)[everything])
        for name, first in seen.attentions.items():
            sums["first"].add(name, first)

    def rows(self, sums: Sums) -> Iterator[Row]:
        """Yield the numbers of each set of vectors, of units and of heads."""
        samples = {over: sample for (over,), sample in sums.of("sample")}
        for (site, over), total in sums.of("vectors"):
            found = total.result()
            if found.n:
                place = {"site": site, "over": over}
                yield place, self._of_vectors(found, samples[over].rows(site).cpu(), over)
        for (site,), signs in sums.of("signs"):
            yield {"site": site, "over": "all"}, signs.result()
        for site, first in sums["first"].result().items():
            for head, weight in enumerate(first.weights.tolist()):
                yield {"site": site, "head": head}, {"first_token_attention": weight}
            yield {"site": site}, {"first_token_equal": first.equal}

    def _of_vectors(self, found: VectorGeometry, sample: Tensor, over: str) -> dict[str, float | None]:
        """Return the numbers of a set of vectors: None if they are not defined, all NaN if vectors are not finite."""
        if not found.finite:
            names = [quantity.name for quantity in (*_OF_VECTORS, *_OF_SAMPLE)]
            return {**dict.fromkeys(names, math.nan), "vectors": found.n}
        if over == "last" and found.n < _ENOUGH * found.width:
            report(
                self.name,
                f"the probe set has {found.n} rows, thus {found.n} last tokens, but ranks in {found.width} dimensions "
                f"require {_ENOUGH * found.width}. Observe more rows, or compare `rankme` with `rankme_white_noise`",
            )
        values: dict[str, float] = {"vectors": found.n}
        if (spectrum := found.spectrum) is not None:
            values |= {
                "rankme": float(spectrum.rankme()),
                "rankme_covariance": float(spectrum.rankme("covariance")),
                "rankme_white_noise": white_noise_rank(found.n, found.width),
                "participation_ratio": float(spectrum.participation_ratio),
            }
            if (line := power_law(spectrum.eigenvalues, *self.alpha_range)) is not None:
                values |= {"alpha": line.exponent, "alpha_error": line.error, "alpha_r2": line.r2}
        dimension = intrinsic_dimension(sample, list(_PARTS.values()))
        median = float(np.median(sample.abs().float().numpy()))
        values |= {
            "anisotropy": found.anisotropy,
            "token_kurtosis": found.token_kurtosis,
            "unit_kurtosis": found.unit_kurtosis,
            "largest_magnitude": found.largest,
            "distinct_vectors": dimension.distinct,
            **dict(zip(_PARTS, dimension.dimensions, strict=True)),
            "median_magnitude": median,
            "largest_to_median": found.largest / median if median > 0 else math.nan,
        }
        return {name: value if math.isfinite(value) else None for name, value in values.items()}
