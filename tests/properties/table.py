"""The table of measures: what each docstring says of invariances, range and what cannot be measured.

One row a measure (:class:`tests.properties.measures.Measure`). A name that is public below ``lmdyn.analysis`` and is
neither here nor in ``not_measures.py`` fails ``test_measures.py``: add a row, or say there why it has none.
"""

import math
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch

import lmdyn.analysis.inspection.linear_cross_entropy as chunked
from lmdyn import analysis as A
from lmdyn.analysis.attention.attention_scores import AttentionPatternSums, attention_scores, pattern_sums
from lmdyn.analysis.dynamics.horizon import carried_on, late_exponents
from lmdyn.analysis.geometry.rectifiers import UnitSigns
from lmdyn.analysis.geometry.spectrum import exp_entropy
from lmdyn.analysis.inspection import weights_audit as W
from lmdyn.analysis.inspection.forward import token_losses
from lmdyn.analysis.inspection.linear_cross_entropy import linear_cross_entropy, target_log_probabilities
from lmdyn.analysis.orbits.growth_rate import arrival
from lmdyn.analysis.orbits.trajectories import state_norm
from lmdyn.analysis.probing import depth_heads as D
from lmdyn.analysis.probing.edge_probes import f1_counts, micro_f1, span_means
from lmdyn.analysis.probing.task_metrics import best_spans, classification_metrics, regression_metrics
from lmdyn.analysis.similarity.kernels import pair_distances, pairs_of_rows
from lmdyn.analysis.similarity.rsa import centred_ranks
from lmdyn.analysis.similarity.scatter import kept_directions
from lmdyn.analysis.statistics.bootstrap import basic_interval
from lmdyn.analysis.statistics.clustered import clustered_means
from lmdyn.analysis.statistics.correlation import somers_d, weighted_pearson
from lmdyn.analysis.statistics.intervals import correlation_interval, share_interval
from lmdyn.analysis.statistics.jackknife import pseudo_values
from lmdyn.analysis.statistics.mean_over_seeds import mean_over_seeds
from lmdyn.analysis.statistics.multiplicity import holm
from lmdyn.analysis.statistics.rank_blocks import RankCorrelations, blocks_of_clusters
from lmdyn.analysis.statistics.scales import error_on_scale, from_scale, to_scale
from lmdyn.analysis.statistics.variance_components import variance_components
from lmdyn.analysis.words import concentration as C
from lmdyn.analysis.words.learning_order import learning_order, rescaled
from tests.properties import inputs as I
from tests.properties.measures import (
    AS_USUAL,
    LEFT_OUT,
    NAN,
    NO_CASE,
    NOTHING,
    SAME_OR_NAN,
    SAME_OR_NOT_FINITE,
    SOME_NAN,
    Args,
    Measure,
    Refused,
    Sample,
    Value,
)

FLOAT16 = (torch.float16,)  # of measures of arrays: numpy has no bfloat16
NONE: tuple[torch.dtype, ...] = ()
F64 = torch.float64

not_finite = Refused("NaN or infinite")
is_constant = Refused("constant")
is_empty = Refused("empty")
few = Refused("at least")

# ------------------------------------------------------------------------------------------------ similarity

_alike: dict[str, Any] = {
    "make": I.pair, "nan": not_finite, "constant": is_constant, "empty": is_empty, "one": is_constant,
}  # fmt: skip


def streamed(measure):
    def call(x, y):
        sums = A.CrossCovariance()
        for rows in torch.arange(len(x)).split(7):
            sums.update(x[rows], y[rows])
        return getattr(sums, measure)()

    return call


def parts_of(x, y):
    found = []
    for rows in torch.arange(len(x)).split(10):
        found.append(A.CrossCovariance())
        found[-1].update(x[rows], y[rows])
    return found


SIMILARITY = [
    Measure("similarity.cca.cca", A.cca, low=0, high=1, symmetric=True,
            invariant={0: "affine shift scale sign", 1: "affine", "all": "rows"}, **_alike),
    Measure("similarity.cca.canonical_correlations", A.canonical_correlations, low=0, high=1, symmetric=True,
            invariant={0: "affine", 1: "affine", "all": "rows"}, **_alike),
    Measure("similarity.cca.svcca", A.svcca, low=0, high=1, symmetric=True,
            invariant={0: "shift rotation scale sign", 1: "shift rotation scale", "all": "rows"}, **_alike),
    Measure("similarity.cca.svcca_ranks", A.svcca_ranks, low=1, high=99,
            invariant={0: "shift rotation scale sign", 1: "shift rotation scale", "all": "rows"}, **_alike),
    Measure("similarity.cca.pwcca", A.pwcca, low=0, high=1,
            invariant={0: "shift scale units sign", 1: "affine", "all": "rows"}, **_alike),
    Measure("similarity.cka.linear_cka", A.linear_cka, low=0, high=1, symmetric=True,
            invariant={0: "shift rotation scale sign", 1: "shift rotation scale", "all": "rows"}, **_alike),
    Measure("similarity.cka.linear_cka", partial(A.linear_cka, debiased=True), low=-1, high=1, symmetric=True,
            invariant={0: "shift rotation scale sign", 1: "shift rotation scale", "all": "rows"}, variant="debiased",
            **_alike),
    Measure("similarity.cka.linear_cka", partial(A.linear_cka, dtype=torch.float32), low=0, high=1, symmetric=True,
            invariant={0: "shift rotation scale sign", 1: "shift rotation scale", "all": "rows"}, variant="float32",
            tolerance=1e-5, **_alike),
    Measure("similarity.procrustes.procrustes", A.procrustes, low=0, high=1, symmetric=True,
            invariant={0: "shift rotation scale sign", 1: "shift rotation scale", "all": "rows"}, **_alike),
    *(Measure("similarity.covariance.CrossCovariance", streamed(measure), low=-1, high=1,
              invariant={0: "shift rotation scale" if measure != "pwcca" else "shift scale",
                         1: "shift rotation scale", "all": "rows"}, variant=measure,
              lengths=NO_CASE, **{**_alike, "empty": Refused("no samples yet")})
      for measure in ("cca", "svcca", "pwcca", "linear_cka", "procrustes")),
    Measure("similarity.sweep.sweep similarity.sweep.measure_of",
            lambda x, y: A.sweep([x, x.flip(1)], y, ["svcca_1", "pwcca", "debiased_linear_cka"]), low=-1, high=1,
            invariant={1: "shift rotation scale", "all": "rows"}, **_alike),
    Measure("similarity.block_jackknife.jackknife_similarity",
            lambda x, y: A.jackknife_similarity(parts_of(x, y), ["svcca", "linear_cka"]),
            make=lambda s: I.pair(Sample(s.seed, 40, s.d1, s.d2)), nan=not_finite, constant=is_constant,
            one=Refused("at least 2 blocks"), empty=Refused("at least 2 blocks"), lengths=NO_CASE,
            invariant={0: "shift rotation scale", 1: "shift rotation scale"}),
    Measure("similarity.cka.kernel_cka similarity.kernels.rbf_kernel", A.kernel_cka, low=0, high=1, symmetric=True,
            invariant={0: "shift rotation scale", 1: "shift rotation scale", "all": "rows"}, variant="rbf",
            **{**_alike, "constant": Refused("coincide"), "empty": few, "one": few}),
    Measure("similarity.cka.kernel_cka similarity.kernels.cosine_kernel", partial(A.kernel_cka, kernel="cosine"),
            low=0, high=1, symmetric=True, invariant={0: "rotation lengths", 1: "rotation lengths", "all": "rows"},
            variant="cosine", zero=Refused("is zero"), **{**_alike, "make": I.wide_pair, "empty": few, "one": few}),
    Measure("similarity.cka.kernel_cka similarity.kernels.linear_kernel",
            partial(A.kernel_cka, kernel="linear", debiased=True), low=-1, high=1, symmetric=True,
            invariant={0: "shift rotation scale", "all": "rows"}, variant="linear, debiased",
            **{**_alike, "empty": few, "one": few}),
    Measure("similarity.rsa.rsa similarity.kernels.pair_distances", partial(A.rsa, dissimilarity="euclidean"), low=-1,
            high=1, symmetric=True, invariant={0: "shift rotation scale", 1: "shift rotation scale", "all": "rows"},
            variant="euclidean", tolerance=1e-3, **{**_alike, "constant": Refused("equally dissimilar"), "empty": few,
                                                    "one": few}),
    Measure("similarity.rsa.rsa", partial(A.rsa, dissimilarity="cosine"), low=-1, high=1, symmetric=True,
            invariant={0: "rotation lengths", "all": "rows"}, variant="cosine", tolerance=1e-3, zero=Refused("is zero"),
            **{**_alike, "make": I.wide_pair, "constant": Refused("equally dissimilar"), "empty": few, "one": few}),
    Measure("similarity.rsa.rsa", A.rsa, low=-1, high=1, symmetric=True, tolerance=1e-3,
            invariant={0: "lengths row_shift units", "all": "rows"}, variant="correlation",
            **{**_alike, "make": I.wide_pair, "empty": few, "one": few}),
    Measure("similarity.kernels.linear_kernel", A.linear_kernel, I.vectors, inf=SAME_OR_NOT_FINITE,
            invariant={0: "shift rotation units"}, constant=Value(0), one=Value(0), empty=NOTHING, tolerance=1e-5),
    Measure("similarity.kernels.cosine_kernel", A.cosine_kernel, I.vectors, low=-1, high=1, nan=not_finite,
            invariant={0: "rotation lengths"}, zero=Refused("is zero"), constant=Value(1), one=Value(1), empty=NOTHING),
    Measure("similarity.kernels.rbf_kernel", A.rbf_kernel, I.vectors, low=0, high=1, nan=not_finite,
            invariant={0: "shift rotation scale"}, constant=Refused("coincide"), one=Refused("2 samples"),
            empty=Refused("2 samples")),
    Measure("similarity.kernels.pair_distances", pair_distances, I.vectors, low=0, nan=SOME_NAN, inf=SAME_OR_NOT_FINITE,
            invariant={0: "shift rotation units sign"}, constant=Value(0), one=NOTHING, empty=NOTHING),
    Measure("similarity.kernels.pairs_of_rows", pairs_of_rows, lambda s: (I.normal(s, 5, 5),), nan=AS_USUAL,
            constant=AS_USUAL),
    Measure("similarity.rsa.centred_ranks", lambda v: centred_ranks(v).sort().values, lambda s: (I.normal(s, s.n),),
            nan=Refused("got NaN"), inf=AS_USUAL, invariant={0: "scale rising rows"}, constant=Value(0), one=Value(0),
            empty=NOTHING),
    Measure("similarity.scatter.kept_directions", kept_directions,
            lambda s: (I.normal(s, s.d1).abs().sort(descending=True).values,), low=0, high=4, nan=not_finite,
            inf=not_finite, invariant={0: "scale"}, constant=AS_USUAL, one=AS_USUAL, empty=is_empty, half=NONE),
    *(Measure(f"similarity.divergence.{call.__name__}", call, I.two_distributions, low=0, high=high, symmetric=both,
              nan=Refused("not distributions"), invariant={"all": "units"}, constant=Refused("not distributions"),
              one=AS_USUAL, empty=NOTHING, integers=NO_CASE, half=FLOAT16)
      for call, high, both in ((A.kullback_leibler, torch.inf, False), (A.jensen_shannon, np.log(2), True))),
]  # fmt: skip

# ------------------------------------------------------------------------------------------------ words

WORDS = [
    Measure("words.concentration.concentration", A.concentration, I.vectors, low=0, high=1, nan=SOME_NAN,
            invariant={0: "lengths scale sign units"}, empty=NOTHING, one=AS_USUAL),
    Measure("words.concentration.concentration", lambda v: A.concentration(0 * v), I.vectors, nan=NAN, constant=NAN,
            empty=NOTHING, one=NAN, variant="zero"),
    Measure("words.concentration.concentration_and_norm", C.concentration_and_norm, I.vectors, low=0, nan=SOME_NAN,
            inf=AS_USUAL, invariant={0: "sign units"}, empty=NOTHING, one=AS_USUAL),
    Measure("words.concentration.attention_entropy", A.attention_entropy, lambda s: (I.distributions(s),), low=0,
            high=np.log(4), nan=SOME_NAN, inf=SAME_OR_NOT_FINITE, invariant={0: "units"}, empty=NOTHING, one=AS_USUAL,
            integers=NO_CASE),
    Measure("words.concentration.normalized_attention_entropy", A.normalized_attention_entropy,
            lambda s: (I.attention(s),), low=0, high=1, nan=SOME_NAN, inf=SAME_OR_NOT_FINITE, invariant={0: "units"},
            empty=NOTHING, one=AS_USUAL, integers=NO_CASE),
    Measure("words.concentration.frequency_correlation", A.frequency_correlation, I.two_series, low=-1, high=1,
            nan={0: LEFT_OUT, 1: NAN}, inf=NAN, invariant={0: "shift scale", 1: "shift scale", "all": "rows"},
            symmetric=True, constant=NAN, one=NAN, empty=NAN),
    Measure("words.concentration.frequency_correlation_error", C.frequency_correlation_error, I.two_series, low=0,
            nan={0: LEFT_OUT, 1: NAN}, inf=NAN, invariant={0: "shift scale", 1: "shift scale", "all": "rows"},
            symmetric=True, constant=NAN, one=NAN, empty=NAN, lengths=NO_CASE),
    Measure("words.concentration.unigram_entropy", lambda x: C.unigram_entropy((8 * x).abs().long()),
            lambda s: (I.normal(s, s.n),),
            nan=NO_CASE, low=0, invariant={0: "rows sign"}, constant=AS_USUAL, empty=NAN, half=NONE, integers=NO_CASE),
    Measure("words.frequency_matching.match_frequency",
            lambda x, y: A.match_frequency(x.double().abs() + 1, y.double().abs() + 1, size=3, tolerance=9.0).means,
            I.two_series, low=1, nan=Refused("finite"), invariant={0: "sign rows", 1: "rows"}, constant=AS_USUAL,
            one=Refused("no ranges"), empty=Refused("no ranges"), lengths=NO_CASE, integers=AS_USUAL),
    Measure("words.learning_order.rescaled", rescaled, lambda s: (I.normal(s, s.n, s.d1).abs(),), low=0, nan=SOME_NAN,
            inf=SAME_OR_NOT_FINITE, invariant={0: "scale"}, empty=NOTHING, one=Value(1)),
    Measure("words.learning_order.learning_order",
            lambda a: learning_order(torch.arange(len(a)), a.abs() + torch.arange(len(a))[:, None] / 9),
            lambda s: (I.normal(s, s.n, s.d1 + 1),), low=0, nan=AS_USUAL, inf=Refused("finite"), invariant={0: "sign"},
            one=Value(0), empty=NAN),
]  # fmt: skip

# ------------------------------------------------------------------------------------------------ statistics


def arrays(measure, **more):
    """A measure of numpy's arrays, of tensors."""
    return lambda *tensors: measure(*(t.numpy() for t in tensors), **more)


def grouped(x, groups, skip_nan=True):
    means = A.GroupedMeans(3, skip_nan=skip_nan)
    for rows in torch.arange(len(x)).split(5):
        means.update(groups[rows], {"x": x[rows]})
    return means.mean("x") if len(x) else means.names


def in_groups(s: Sample) -> Args:
    return I.normal(s, s.n), torch.arange(s.n) % 3


def in_clusters(x):
    at = np.arange(len(x))
    return clustered_means(x.numpy().astype(np.float64), at % 2, at // 3)


def by_rank(x, y):
    return RankCorrelations([x.numpy(), y.numpy()], blocks_of_clusters(np.arange(len(x)), 4)).of(0, 1)


def held(x, y, z):
    return RankCorrelations([x.numpy(), y.numpy(), z.numpy()], np.arange(len(x)) // 3).of(0, 1, [2])


def three_series(s: Sample) -> Args:
    return *I.two_series(s), I.normal(s, s.n, seed=2)


def seeds(v, errors):
    found = mean_over_seeds(v.tolist(), errors.abs().tolist())
    return found.interval(), found.text_interval(), found.error, found.p_above(0.0)


_corr: dict[str, Any] = {
    "make": I.two_series, "low": -1, "high": 1, "symmetric": True, "constant": NAN, "one": NAN, "empty": NAN,
    "half": FLOAT16,
}  # fmt: skip

STATISTICS = [
    Measure("statistics.correlation.pearson", arrays(A.pearson),
            invariant={0: "shift scale", 1: "shift scale", "all": "rows"}, **_corr),
    Measure("statistics.correlation.spearman", arrays(A.spearman),
            invariant={0: "shift scale rising", 1: "rising", "all": "rows"}, **_corr),
    Measure("statistics.correlation.spearman", lambda x, y, z: A.spearman(x.numpy(), y.numpy(), [z.numpy()]),
            invariant={0: "rising", 1: "rising", 2: "rising sign", "all": "rows"}, variant="partial",
            **{**_corr, "make": three_series}),
    Measure("statistics.correlation.weighted_pearson",
            lambda x, y: weighted_pearson(x.numpy().astype(float), y.numpy().astype(float), np.ones((1, len(x)))),
            invariant={0: "shift scale", "all": "rows"}, **_corr),
    Measure("statistics.correlation.somers_d", arrays(somers_d), I.two_series, low=-1, high=1, inf=AS_USUAL,
            invariant={0: "shift rising", 1: "shift rising", "all": "rows"}, constant=NAN, one=NAN, empty=NAN,
            half=FLOAT16),
    Measure("statistics.rank_blocks.RankCorrelations statistics.rank_blocks.blocks_of_clusters", by_rank,
            I.two_series, low=-1, high=torch.inf, invariant={0: "rising", 1: "rising shift"}, constant=NAN,
            one=NAN, empty=NAN, half=FLOAT16),
    Measure("statistics.rank_blocks.RankCorrelations", held, three_series, low=-1, high=torch.inf,
            invariant={0: "rising", 1: "rising", 2: "rising sign"}, one=NAN, empty=NAN, constant=NAN, half=FLOAT16,
            variant="partial"),
    Measure("statistics.jackknife.jackknife",
            lambda v: A.jackknife(v.double().mean(), v.double().numpy())[:2], lambda s: (I.normal(s, s.n),),
            invariant={0: "rows"}, constant=AS_USUAL, one=Refused("two blocks"), empty=Refused("two blocks")),
    Measure("statistics.jackknife.pseudo_values", lambda v: pseudo_values(0.5, v.double().numpy()),
            lambda s: (I.normal(s, s.n),), nan=SOME_NAN, inf=AS_USUAL, one=Refused("n >= 2"),
            empty=Refused("n >= 2"), constant=AS_USUAL),
    Measure("statistics.clustered.clustered_means", in_clusters, lambda s: (I.normal(s, s.n + 6),), nan=SOME_NAN,
            inf=SAME_OR_NOT_FINITE, constant=AS_USUAL, one=AS_USUAL, empty=NOTHING, half=FLOAT16),
    Measure("statistics.bootstrap.basic_interval",
            lambda v: basic_interval(0.0, v.numpy(), 0.9), lambda s: (I.normal(s, s.n),), invariant={0: "rows"},
            inf=AS_USUAL, constant=AS_USUAL, one=AS_USUAL, empty=NAN, half=FLOAT16),
    Measure("statistics.intervals.correlation_interval", lambda r: correlation_interval(float(r[0].tanh()), 9),
            lambda s: (I.normal(s, 1),), low=-1, high=1, nan=Refused("expected a correlation"), inf=AS_USUAL,
            half=NONE, integers=NO_CASE),
    Measure("statistics.intervals.share_interval", lambda p: share_interval(float(p[0]), 9),
            lambda s: (I.normal(s, 1).sigmoid(),), low=0, high=1, nan=Refused("expected a share"), half=NONE,
            integers=NO_CASE),
    Measure("statistics.variance_components.variance_components", arrays(variance_components),
            lambda s: (I.normal(s, s.n, s.d1 + 1),), nan=Refused("finite"), invariant={0: "rows units"},
            constant=AS_USUAL, one=Refused("at least two"), empty=Refused("at least two"), half=FLOAT16),
    Measure("statistics.grouped.GroupedMeans", grouped, in_groups, lengths=NO_CASE, nan=LEFT_OUT, inf=AS_USUAL,
            constant=AS_USUAL, one=AS_USUAL, empty=NOTHING),
    Measure("statistics.grouped.GroupedMeans", partial(grouped, skip_nan=False), in_groups, lengths=NO_CASE,
            nan=SOME_NAN, inf=AS_USUAL, one=AS_USUAL, empty=NOTHING, variant="with NaN"),
    Measure("statistics.mean_over_seeds.mean_over_seeds statistics.mean_over_seeds.MeanOverSeeds", seeds,
            lambda s: (I.normal(s, 5), I.normal(s, 5, seed=1)), inf={0: NAN, 1: AS_USUAL},
            constant=AS_USUAL, one=Refused("two values"), empty=Refused("two values")),
    Measure("statistics.multiplicity.holm", lambda p: holm(p.tolist()), lambda s: (I.normal(s, s.n).sigmoid(),), low=0,
            high=1, nan=Refused("p-values"), one=AS_USUAL, empty=NOTHING, half=NONE, integers=NO_CASE),
    *(Measure("statistics.scales.to_scale statistics.scales.from_scale statistics.scales.error_on_scale",
              lambda v, scale=scale: (from_scale(to_scale(float(v[0]), scale), scale) - float(v[0]),
                                      error_on_scale(float(v[0]), 0.0, scale)),
              lambda s: (I.normal(s, 1).sigmoid(),), low=-1e-9, high=1e-9, nan=SOME_NAN, inf=SAME_OR_NOT_FINITE,
              integers=NO_CASE, half=NONE, variant=scale) for scale in ("plain", "fisher", "logit", "log")),
]  # fmt: skip

# ------------------------------------------------------------------------------------------------ attention


def scored(p):
    there = I.tokens()[: len(p)]
    first = torch.zeros_like(there)
    first[:, 0] = True
    return attention_scores(p, there, first, torch.arange(5).expand(len(p), 5) // 3)


def summed_scores(p):
    sums = AttentionPatternSums()
    for at in range(len(p)):
        sums.add(pattern_sums("layer", p[at : at + 1], I.tokens()[at : at + 1], size=3))
    return sums.result()


def divergent(p, q):
    return A.head_divergences(p, q, I.tokens()[: len(p)])


def summed_divergence(p, q):
    sums = A.HeadDivergenceSums(blocks=2)
    for at in range(len(p)):
        sums.update(p[at : at + 1], q[at : at + 1], I.tokens()[at : at + 1], torch.full((1, 5), at % 2))
    found = sums.result()
    return found.matrix(), found.mean(heads="same")


def two_attentions(s: Sample) -> Args:
    return I.attention(s), I.attention(s, seed=1)


ATTENTION = [
    Measure("attention.attention_scores.attention_scores attention.attention_scores.on_tokens", scored,
            lambda s: (I.attention(s),), low=-1, high=np.log(5),
            nan=SAME_OR_NAN, empty=NOTHING, one=AS_USUAL, integers=NO_CASE),
    Measure("attention.attention_scores.AttentionPatternSums attention.attention_scores.pattern_sums", summed_scores,
            lambda s: (I.attention(s),), low=-1, high=99, nan=SAME_OR_NAN, empty=NOTHING, one=AS_USUAL,
            integers=NO_CASE),
    Measure("attention.head_divergence.head_divergences", divergent, two_attentions, low=0, nan=SAME_OR_NAN,
            empty=NOTHING, one=AS_USUAL, integers=NO_CASE),
    Measure("attention.head_divergence.HeadDivergenceSums attention.head_divergence.HeadDivergence",
            summed_divergence, two_attentions, low=0, nan=SAME_OR_NAN, lengths=NO_CASE, empty=Refused("no attention"),
            one=AS_USUAL, integers=NO_CASE),
    Measure("attention.induction_scores.induction_scores", lambda p: A.induction_scores(p, 2),
            lambda s: (I.attention(s),), low=0, high=1, nan=SAME_OR_NAN, inf=SAME_OR_NOT_FINITE, empty=NOTHING,
            one=AS_USUAL, integers=NO_CASE),
    Measure("attention.repeated_tokens.repetition_losses", lambda x: A.repetition_losses(x, 2),
            lambda s: (I.normal(s, s.n, 5),), nan=SAME_OR_NAN, inf=SAME_OR_NOT_FINITE, empty=NOTHING, one=AS_USUAL,
            constant=AS_USUAL, rounded=True),
    Measure("attention.copying.positive_eigenvalues", A.positive_eigenvalues, lambda s: (I.normal(s, s.n, 3, 3),),
            low=-1, high=1, invariant={0: "scale"}, nan=SOME_NAN, constant=AS_USUAL, zero=NAN, empty=NOTHING,
            one=AS_USUAL),
    Measure("attention.copying.vocabulary_product", A.vocabulary_product, I.pair, invariant={"all": "rows"},
            nan=SOME_NAN, inf=SAME_OR_NOT_FINITE, constant=AS_USUAL, empty=Refused("one row per token"), one=AS_USUAL,
            lengths=Refused("one row per token"), rounded=True),
    Measure("attention.copying.copying_scores", A.copying_scores,
            lambda s: (I.normal(s, 5, 2, 3), I.normal(s, 5, 3, 2, seed=1), I.normal(s, 3, 3, seed=2)), low=-1, high=1,
            invariant={0: "scale", 1: "scale", 2: "scale"}, nan={0: SOME_NAN, 1: SOME_NAN, 2: NAN}, constant=AS_USUAL,
            zero=NAN, empty=NOTHING, one=AS_USUAL, lengths=Refused("values of each of"),
            rows=lambda args, n: (args[0][:n], args[1][:n], args[2])),
]  # fmt: skip

# ------------------------------------------------------------------------------------------------ dynamics


def streamed_dimension(x):
    sums = A.EffectiveDimension()
    for rows in torch.arange(len(x)).split(7):
        sums.update(x[rows])
    return sums.result()


def token_states(s: Sample) -> Args:
    return (I.normal(s, s.n, 4, 3),)


def states(s: Sample) -> Args:
    return (I.normal(s, s.n, 3),)


def when_synchronized(x):
    found = A.synchronize(I.contraction, x, 30, threshold=1e-2)
    return torch.where(found.offset < 0, torch.nan, found.offset.double())


def looped(x):
    """Sums of a looped model whose embeddings are given."""
    model = I.Loop().double()
    model.embed.weight.data = x.double()
    batch = {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 6]])}
    sums = A.LoopSums(horizon=4, positions=3)
    sums.update(A.EncoderMap(model, batch, dtype=F64), batch, torch.ones(2, 3, dtype=torch.bool))
    return {k: v for k, v in sums.means().items() if "_" not in k}


DYNAMICS = [
    Measure("dynamics.convergence.relative_change", A.relative_change,
            lambda s: (I.normal(s, s.n, 3), I.normal(s, s.n, 3, seed=1)), low=0, nan=SOME_NAN,
            inf={0: SOME_NAN, 1: AS_USUAL}, invariant={"all": "scale rotation"}, constant=AS_USUAL, one=AS_USUAL,
            empty=NOTHING),
    Measure("dynamics.synchronization.deviation", A.deviation, token_states, low=0, nan=SOME_NAN,
            invariant={0: "shift rotation samples sign"}, one=AS_USUAL, empty=NOTHING, constant=Value(0)),
    Measure("dynamics.synchronization.deviation", partial(A.deviation, variant="released"), token_states, low=0,
            nan=SOME_NAN, invariant={0: "shift samples sign units"}, one=AS_USUAL, empty=NOTHING, constant=Value(0),
            variant="released"),
    Measure("dynamics.synchronization.synchronization_offset",
            lambda d: A.synchronization_offset(d.abs(), 0.0, threshold=0.5), lambda s: (I.normal(s, 9, 3),), low=-1,
            high=8, nan=AS_USUAL, invariant={0: "sign"}, constant=AS_USUAL, one=AS_USUAL, empty=Refused("are empty")),
    Measure("dynamics.synchronization.synchronize dynamics.synchronization.Synchronization",
            when_synchronized, token_states, nan=SOME_NAN, one=AS_USUAL,
            empty=NOTHING, invariant={0: "samples"}, constant=AS_USUAL, half=NONE, integers=NO_CASE),
    Measure("dynamics.synchronization.deviation_floor", partial(A.deviation_floor, I.contraction),
            lambda s: (I.normal(s, s.n, 4, 3),), low=0, high=1e-10, nan=AS_USUAL, one=AS_USUAL, empty=Value(0),
            constant=AS_USUAL, half=NONE, integers=NO_CASE),
    Measure("dynamics.horizon.late_exponents", late_exponents, I.exponents, nan=AS_USUAL, inf=AS_USUAL, empty=NAN,
            one=AS_USUAL, constant=AS_USUAL, invariant={}),
    Measure("dynamics.horizon.carried_on",
            lambda v: carried_on(v, torch.zeros(v.shape[1], dtype=v.dtype), torch.full(v.shape[1:], 3)),
            I.exponents, nan=SAME_OR_NAN, inf=AS_USUAL, one=AS_USUAL, empty=NOTHING),
    Measure("dynamics.convergence.LoopSums", looped, lambda s: (I.normal(s, 9, 4),), low=-99,
            nan=SAME_OR_NAN, inf=AS_USUAL, constant=AS_USUAL, half=NONE, integers=NO_CASE),
    Measure("dynamics.synchronized_map.transverse_exponents",
            lambda x: A.transverse_exponents(I.contraction, x, tau=2, steps=4), states, low=np.log(0.3) - 1e-6,
            high=np.log(0.8) + 1e-6, nan=SOME_NAN, one=AS_USUAL, empty=NOTHING, half=NONE, integers=NO_CASE),
    Measure("dynamics.long_run.long_run dynamics.long_run.LongRun",
            lambda x: A.long_run(I.contraction, x, tau=2, steps=8).exponents, token_states, nan=SOME_NAN, one=AS_USUAL,
            empty=NOTHING, half=NONE, integers=NO_CASE, tolerance=1e-5),
]  # fmt: skip

# ------------------------------------------------------------------------------------------------ geometry


def exponent(eigenvalues):
    found = A.power_law(eigenvalues.abs().sort(descending=True).values, 1)
    return math.nan if found is None else found.exponent


def summed_kurtosis(x):
    sums = A.VectorSums()
    for rows in torch.arange(len(x)).split(7):
        sums.update(x[rows])
    return sums.result().token_kurtosis


def in_groups(x):
    sums = A.GroupSums(3)
    for rows in torch.arange(len(x)).split(7):
        sums.update(x[rows], rows % 3)
    return sums.result()


def between_groups(x):
    found = A.group_variance(in_groups(x))
    return found.between, found.planar


def in_a_tree(x):
    found = A.nested_variance(in_groups(x), torch.tensor([0, 0, 1]))
    return found.coarse, found.fine


def signs(x):
    sums = UnitSigns()
    sums.update(x)
    sums.reduce()
    return sums.result()


def attended_first(p):
    sums = A.FirstTokenSums()
    sums.update({"layer": p}, torch.ones(len(p), p.shape[-1], dtype=torch.bool))
    return sums.result()["layer"].weights


def on_first(p):
    return A.first_token_attention(p, torch.ones(len(p), p.shape[-1], dtype=torch.bool))[0]


GEOMETRY = [
    *(Measure(f"geometry.effective_dimension.{name}", call, lambda s: I.vectors(s), low=1, high=6,
              invariant={0: "shift rotation scale rows sign"}, constant=NAN, one=Refused("2 samples"),
              empty=Refused("2 samples"))
      for name, call in (("effective_dimension", A.effective_dimension), ("EffectiveDimension", streamed_dimension))),
    Measure("geometry.spectrum.rankme geometry.spectrum.Spectrum", A.rankme, lambda s: I.vectors(s), low=1, high=6,
            invariant={0: "rotation scale rows sign"}, constant=Value(1), zero=NAN, one=Refused("2 vectors"),
            empty=Refused("2 vectors")),
    Measure("geometry.spectrum.rankme", partial(A.rankme, variant="covariance"), lambda s: I.vectors(s), low=1,
            high=6, invariant={0: "shift rotation scale rows sign"}, constant=NAN, one=Refused("2 vectors"),
            empty=Refused("2 vectors"), variant="covariance"),
    Measure("geometry.spectrum.exp_entropy", lambda v: exp_entropy(v.abs()), lambda s: (I.normal(s, 9),), low=1,
            high=9, invariant={0: "scale sign"}, constant=Value(9), zero=NAN, one=Value(1), empty=NAN),
    Measure("geometry.spectrum.power_law geometry.spectrum.PowerLaw", exponent, lambda s: (I.normal(s, 9),), low=0,
            invariant={0: "scale sign"}, constant=Value(0), zero=NAN, one=NAN, empty=NAN),
    Measure("geometry.intrinsic_dimension.intrinsic_dimension geometry.intrinsic_dimension.IntrinsicDimension",
            lambda x: A.intrinsic_dimension(x, [1]).dimensions, lambda s: I.vectors(s), low=0,
            invariant={0: "shift rotation scale rows sign"}, constant=NAN, one=NAN, empty=NAN, tolerance=1e-5),
    Measure("geometry.vector_sums.anisotropy", A.anisotropy, lambda s: I.vectors(s), low=-1, high=1,
            invariant={0: "rotation scale rows sign"}, constant=Value(1), zero=NAN, one=NAN, empty=NAN),
    Measure("geometry.vector_sums.token_kurtosis", A.token_kurtosis, lambda s: I.vectors(s), low=-2, nan=SOME_NAN,
            invariant={0: "scale sign"}, constant=NAN, one=AS_USUAL, empty=NOTHING),
    Measure("geometry.vector_sums.VectorSums geometry.vector_sums.VectorGeometry", summed_kurtosis,
            lambda s: I.vectors(s), low=-2, invariant={0: "scale sign rows"}, constant=NAN, one=AS_USUAL, empty=NAN),
    Measure("geometry.group_variance.GroupSums geometry.group_variance.GroupVectors", lambda x: in_groups(x).scatter,
            lambda s: I.vectors(s), low=0, nan=SOME_NAN, invariant={0: "shift rotation units sign"}, constant=Value(0),
            one=AS_USUAL, empty=NOTHING),
    Measure("geometry.group_variance.group_variance geometry.group_variance.GroupVariance", between_groups,
            lambda s: I.vectors(s), low=0, high=1, invariant={0: "shift rotation scale sign"}, constant=NAN,
            one=Refused("2 groups"), empty=Refused("2 groups")),
    Measure("geometry.group_variance.nested_variance geometry.group_variance.NestedVariance", in_a_tree,
            lambda s: I.vectors(s), low=0, high=1, invariant={0: "shift rotation scale sign"}, constant=NAN,
            one=Refused("2 coarse groups"), empty=Refused("2 coarse groups")),
    Measure("geometry.pictures.principal_course geometry.pictures.PrincipalCourse",
            lambda x: A.principal_course(x).shares, lambda s: (I.normal(s, 3, s.n, 4),), low=0, high=1,
            nan=not_finite, invariant={0: "scale sign"}, constant=NAN, one=AS_USUAL, empty=Refused("each from 1")),
    Measure("geometry.pictures.cosine_distances", A.cosine_distances, lambda s: I.vectors(s), low=0, high=2,
            nan=not_finite, invariant={0: "shift rotation scale sign"}, constant=AS_USUAL, one=Value(0),
            empty=Refused("each from 1")),
    Measure("geometry.pictures.mds_picture geometry.pictures.MdsPicture", lambda d: A.mds_picture(d).stress,
            lambda s: (torch.cdist(*2 * I.vectors(s)),), low=0, high=1, nan=not_finite, invariant={0: "scale"},
            constant=Refused("matrix of distances"), zero=Value(0), one=Refused("matrix of distances"),
            empty=Refused("matrix of distances")),
    Measure("geometry.pictures.aligned_courses", A.aligned_courses, lambda s: (I.normal(s, 3, s.n, 2),),
            nan=not_finite, constant=Value(0), one=AS_USUAL, empty=NOTHING),
    Measure("geometry.rectifiers.UnitSigns", signs, lambda s: I.vectors(s), low=0,
            high=1, invariant={0: "scale rows"}, constant=AS_USUAL, one=AS_USUAL, empty=NOTHING),
    Measure("attention.first_token.first_token_attention", on_first, lambda s: (I.attention(s),), low=0, high=1,
            nan=SOME_NAN, empty=NOTHING, one=AS_USUAL, integers=NO_CASE),
    Measure("attention.first_token.FirstTokenSums attention.first_token.first_token_sums"
            " attention.first_token.FirstToken", attended_first, lambda s: (I.attention(s),), low=0, high=1,
            nan=SOME_NAN, empty=NAN, one=AS_USUAL, integers=NO_CASE),
]  # fmt: skip

# ------------------------------------------------------------------------------------------------ orbits


def survived(lengths):
    found = A.survival(lengths.abs(), torch.arange(len(lengths)) % 3 == 0)
    return found.survival, found.restricted_mean / max(1.0, float(lengths.abs().max()))


def recurred(x):
    found = A.Recurrence(tolerance=1e-6)
    for _ in range(60):
        found.update(x)
        x = I.contraction(x) if x.is_floating_point() else x // 2
    return found.recurred_at, found.period


def spectrum(x):
    found = A.lyapunov_spectrum(I.contraction, x, k=3, steps=10, skip=5)
    return found.exponents, found.kaplan_yorke


def some_series(s: Sample) -> Args:
    return I.series(s)


def scalar_series(s: Sample) -> Args:
    return (I.series(s)[0][..., 0],)


ORBITS = [
    Measure("orbits.correlation_dimension.correlation_dimension", A.correlation_dimension, some_series, low=0,
            nan=SOME_NAN, invariant={0: "rotation scale"}, constant=NAN, one=Refused("50 points"),
            empty=Refused("50 points"), tolerance=1e-5),
    Measure("orbits.growth_rate.growth_rate orbits.growth_rate.GrowthRate", lambda e: A.growth_rate(e, tau=5),
            I.exponents, nan=AS_USUAL, inf=AS_USUAL, constant=AS_USUAL, one=AS_USUAL, empty=AS_USUAL),
    Measure("orbits.growth_rate.arrival", arrival, I.exponents, low=0, high=40, nan=AS_USUAL, inf=AS_USUAL,
            invariant={0: "sign scale"}, constant=AS_USUAL, one=Value(0),
            empty=Refused("at least one window"), half=NONE),
    Measure("orbits.kaplan_yorke.kaplan_yorke_dimension", A.kaplan_yorke_dimension,
            lambda s: (I.normal(s, s.n, 3) - 0.3,), low=0, high=3, nan=SAME_OR_NAN, minus_inf=AS_USUAL,
            invariant={0: "units scale"}, one=AS_USUAL, empty=NOTHING),
    Measure("orbits.spectral_lines.spectral_lines orbits.spectral_lines.SpectralLines", A.spectral_lines, some_series,
            low=0, high=1, nan=SOME_NAN, invariant={0: "shift rotation scale sign"}, constant=NAN,
            one=Refused("256 or more times"), empty=Refused("256 or more times")),
    Measure("orbits.zero_one_test.zero_one_test orbits.zero_one_test.ZeroOne",
            partial(A.zero_one_test, n_frequencies=5), scalar_series, low=-1, high=300, nan=SOME_NAN,
            invariant={0: "shift scale sign"}, one=Refused("longer series"), empty=Refused("longer series"),
            constant=AS_USUAL, tolerance=1e-5),
    Measure("orbits.zero_one_test.decorrelation_lag", A.decorrelation_lag, lambda s: (I.normal(s, 40),), low=1, high=40,
            nan=Refused("finite"), invariant={0: "shift scale sign"}, constant=Value(40), one=Value(1),
            empty=is_empty),
    Measure("orbits.survival.survival orbits.survival.Survival", survived, lambda s: (I.normal(s, s.n),), low=0, high=1,
            nan=Refused("finite"), invariant={0: "sign"}, constant=AS_USUAL, one=AS_USUAL, empty=Refused("one orbit")),
    Measure("orbits.transients.transient_length orbits.transients.Transients",
            lambda e: A.transient_length(e, tau=2, width=3), I.exponents, nan=AS_USUAL, inf=AS_USUAL,
            constant=AS_USUAL, one=Refused("running mean"), empty=Refused("running mean")),
    Measure("orbits.recurrence.Recurrence", recurred, states, low=-1, high=60, nan=AS_USUAL, one=AS_USUAL,
            empty=NOTHING, half=NONE, integers=NO_CASE),
    Measure("orbits.recurrence.attractors orbits.recurrence.Attractors",
            lambda x: A.attractors(I.contraction, 1 + (x - 1) / 1e9, 3, 1e-5).label, states, low=-1, high=99,
            nan=AS_USUAL, one=AS_USUAL, empty=NOTHING, half=NONE, integers=NO_CASE),
    Measure("orbits.lyapunov.local_lyapunov_exponents orbits.lyapunov.LocalExponents",
            lambda x: A.local_lyapunov_exponents(I.contraction, x, tau=2, steps=4).exponents, states,
            low=np.log(0.3) - 1e-6, high=np.log(0.8) + 1e-6, nan=SOME_NAN, one=AS_USUAL, empty=NOTHING,
            half=NONE, integers=NO_CASE),
    Measure("orbits.lyapunov_spectrum.lyapunov_spectrum orbits.lyapunov_spectrum.LyapunovSpectrum", spectrum, states,
            low=np.log(0.3) - 1e-6, high=3, nan=SOME_NAN, one=AS_USUAL, empty=NOTHING, half=NONE, integers=NO_CASE),
    Measure("orbits.closed_rate.closed_orbit_rate",
            lambda x: A.closed_orbit_rate(I.contraction, 1 + 0 * x, torch.ones(len(x), dtype=torch.int64)).exponent,
            lambda s: (I.normal(s, 3, 3),), low=np.log(0.3), high=0, nan=SOME_NAN, one=AS_USUAL, empty=NOTHING,
            half=NONE, integers=NO_CASE),
    Measure("orbits.orbit_kind.orbit_kind orbits.orbit_kind.OrbitKinds",
            lambda x: [k.exponent for k in [A.orbit_kind(I.contraction, x, 200)]], lambda s: (I.normal(s, 2, 3),),
            high=0, nan=SOME_NAN, one=AS_USUAL, empty=NOTHING, half=NONE, integers=NO_CASE),
    Measure("orbits.trajectories.iterate orbits.trajectories.Trajectory",
            lambda x: A.iterate(I.contraction, x, 5, {"norm": state_norm}).observables, states, nan=SAME_OR_NAN,
            inf=AS_USUAL, one=AS_USUAL, empty=NOTHING, half=NONE, integers=NO_CASE),
    Measure("orbits.trajectories.state_norm", state_norm, states, low=0, nan=SOME_NAN, inf=AS_USUAL,
            invariant={0: "rotation sign"}, one=AS_USUAL, empty=NOTHING),
]  # fmt: skip

# ------------------------------------------------------------------------------------------------ preference


def agreement(x, y):
    return A.compare_preferences(x.numpy(), y.numpy(), np.arange(len(x))[::-1], resamplings=20)


def within(x, y):
    return A.shuffled_within(x.numpy(), y.numpy(), np.arange(len(x)) % 3)


def members(values):
    x = values.double()
    clusters = A.Membership(len(x), 2, torch.arange(len(x)), torch.arange(len(x)) % 2, torch.ones(len(x)))
    return A.cluster_means(clusters, values)[0], A.typical_words(clusters, 0, by="frequency")


def embeddings(s: Sample) -> Args:
    return (I.normal(s, 40, s.d1 + 2) ** 3,)


_towers: dict[str, Any] = {
    "make": I.log_probabilities, "nan": Refused("log-probabilities"), "minus_inf": AS_USUAL,
    "inf": Refused("log-probabilities"), "rows": I.positions_of_towers, "one": AS_USUAL, "integers": NO_CASE,
}  # fmt: skip
_unusable: dict[str, Any] = {
    "nan": Refused("finite"), "one": Refused("more words than components"),
    "empty": Refused("more words than components"),
}  # fmt: skip

PREFERENCE = [
    *(Measure("preference.preference.token_preference preference.tower_predictions.TowerPredictions "
              "preference.tower_predictions.Predictions", lambda p, v=v: A.token_preference(I.predictions(p), v,
                                                                                           primary=0),
              empty=NAN, variant=v, **_towers) for v in ("mean_probability", "mean_log_probability")),
    Measure("preference.preference.preference_standard_error",
            lambda p: A.preference_standard_error(I.predictions(p), primary=0), low=0, empty=NAN, **_towers),
    Measure("preference.preference.primary_tower preference.preference.leading_towers preference.preference.Pair",
            lambda p: A.leading_towers(I.predictions(p)), low=0, high=1, empty=Refused("no position"), **_towers),
    Measure("preference.preference.split_half_reliability preference.preference.SplitHalf",
            lambda p: A.split_half_reliability(I.predictions(p), torch.arange(3), primary=0).correlation, low=-1,
            high=1, empty=NAN, **_towers),
    Measure("preference.preference_agreement.compare_preferences preference.preference_agreement.Agreement", agreement,
            lambda s: I.two_series(Sample(s.seed, s.n, 1, 1)), nan=AS_USUAL, low=-1, high=99,
            invariant={0: "shift scale", 1: "shift scale"}, constant=AS_USUAL, one=AS_USUAL, empty=AS_USUAL,
            half=FLOAT16),
    Measure("preference.preference_agreement.shuffled_within", within, I.two_series, low=-1, high=1,
            invariant={0: "shift scale", 1: "shift scale"}, symmetric=True, constant=NAN, one=NAN, empty=NAN,
            half=FLOAT16),
    Measure("preference.independent_components.principal_components",
            lambda x: A.principal_components(x, 2).abs(), embeddings, invariant={0: "shift rotation scale sign"},
            constant=Refused("got rank [01]"), tolerance=1e-5, **_unusable),
    Measure("preference.independent_components.amari_ica preference.independent_components.IndependentComponents",
            partial(A.amari_ica, learning_rate=0.1, max_iterations=40), lambda s: (I.normal(s, 40, 2),),
            nan=Refused("finite"), constant=AS_USUAL, one=AS_USUAL, empty=Refused("more words"), tolerance=1e-6),
    Measure("preference.clustering.word_clusters preference.clustering.ClusteredWords "
            "preference.clustering.Clustering",
            lambda x: A.word_clusters(x, A.Clustering(components=2, learning_rate=0.1,
            max_iterations=100)).values.abs(),
            embeddings, constant=Refused("got rank [01]"), invariant={0: "shift scale"}, tolerance=1e-4, **_unusable),
    Measure("preference.clustering.cluster_means preference.clustering.typical_words "
            "preference.clustering.Membership", members, lambda s: (I.normal(s, s.n),), nan=AS_USUAL, inf=AS_USUAL,
            constant=AS_USUAL, one=AS_USUAL, empty=AS_USUAL),
    Measure("preference.preference.most_frequent_tag words.concentration.word_tags",
            lambda c: (A.most_frequent_tag((4 * c).abs().long()),
                       A.word_tags((4 * c).abs().long(), (4 * c).abs().long().sum(1), min_count=1)),
            lambda s: (I.normal(s, s.n, 3),), low=-1, high=2, nan=NO_CASE, constant=AS_USUAL, one=AS_USUAL,
            empty=NOTHING, half=NONE, integers=AS_USUAL, invariant={0: "sign"}),
]  # fmt: skip

# ------------------------------------------------------------------------------------------------ probing


def probed(train, test):
    (x, y), (u, v) = (({"h": t.float()}, {"tag": torch.arange(len(t)) % 3}) for t in (train, test))
    found = A.diagnostic_probe(
        x, y, u, v, {"tag": 3}, classifier=A.DiagnosticClassifier(epochs=1, batch_size=8)
    )
    return found.accuracy, found.loss


def described(x):
    how = {"fractions": (0.2, 0.5, 1.0), "classifier": A.DiagnosticClassifier(epochs=1)}
    return A.description_length(
        {"h": x.float()}, {"tag": torch.arange(len(x)) % 3}, {"tag": 3}, **how
    ).codelength


def two_features(s: Sample) -> Args:
    return I.normal(s, 24, 3), I.normal(s, 12, 3, seed=1)


def counted(logits):
    right, answers, gold = f1_counts(logits, torch.arange(logits.shape[1]) % 3, False)
    return micro_f1(right, answers - right, gold - right)


def counted_any(logits):
    right, answers, gold = f1_counts(logits, torch.eye(3)[torch.arange(logits.shape[1]) % 3], True)
    return micro_f1(right, answers - right, gold - right)


def spans_of(x):
    return span_means(x, torch.tensor([[0, 2], [1, 5], [3, 4]]) if len(x) > 4 else torch.zeros(0, 2).long())


def best(start, end):
    return best_spans(start, end, torch.tensor([[False, True, True, True, True]]).expand(len(start), 5)).score


def readouts(x, scores):
    found = D.train_linear_readouts(x[None], scores, D.ReadoutTraining(ridge=1e-3))
    return found.weight, found.bias


PROBING = [
    Measure("probing.probes.diagnostic_probe probing.probes.ProbeResult", call=probed, make=two_features,
            lengths=NO_CASE, low=0, nan=Refused("NaN or infinite"), half=NONE, constant=AS_USUAL,
            empty=Refused("expected labels"), integers=AS_USUAL),
    Measure("probing.probes.description_length probing.probes.DescriptionLength", call=described,
            make=lambda s: (I.normal(s, 30, 3),), low=0, nan=Refused("NaN or infinite"), half=NONE, constant=AS_USUAL),
    Measure("probing.edge_probes.f1_counts probing.edge_probes.micro_f1 "
            "probing.edge_probes.one_hot", counted, lambda s: (I.normal(s, 2, s.n, 3),), low=0, high=1,
            nan=AS_USUAL, inf=AS_USUAL, invariant={0: "lengths"}, rows=lambda args, k: (args[0][:, :k],), one=AS_USUAL,
            empty=NAN, half=NONE),
    Measure("probing.edge_probes.f1_counts", counted_any,
            lambda s: (I.normal(s, 2, s.n, 3),), low=0, high=1, nan=AS_USUAL, inf=AS_USUAL, invariant={0: "lengths"},
            rows=lambda args, k: (args[0][:, :k],), one=AS_USUAL, empty=NAN, half=NONE, variant="multi-label"),
    Measure("probing.edge_probes.span_means", spans_of, lambda s: (I.normal(s, 6, 3),), nan=SAME_OR_NAN, empty=NOTHING,
            one=NOTHING, inf=AS_USUAL),
    Measure("probing.task_metrics.regression_metrics", regression_metrics, I.two_series, low=-1, high=1, symmetric=True,
            invariant={0: "shift scale", "all": "rows"}, constant=Value(0), one=Value(0),
            empty=Refused("at least one")),
    Measure("probing.task_metrics.classification_metrics",
            lambda x, y: classification_metrics((x > 0).long(), (y > 0).long(), 2), I.two_series, low=-1, high=1,
            nan=NO_CASE, invariant={"all": "rows scale"}, constant=AS_USUAL, one=AS_USUAL,
            empty=Refused("at least one")),
    Measure("probing.task_metrics.best_spans probing.task_metrics.Spans", best,
            lambda s: (I.normal(s, s.n, 5), I.normal(s, s.n, 5, seed=1)), nan=SAME_OR_NAN, inf=AS_USUAL,
            empty=NOTHING, one=AS_USUAL),
    Measure("probing.depth_heads.prediction_scores",
            lambda z: D.prediction_scores(z, torch.arange(len(z)) % 4), lambda s: (I.normal(s, s.n, 4),), low=0,
            nan=AS_USUAL, inf=AS_USUAL, invariant={0: "row_shift"}, empty=NOTHING, one=AS_USUAL, half=NONE),
    Measure("probing.depth_heads.readout_correlation", D.readout_correlation, I.two_series, low=-1, high=1,
            invariant={0: "scale shift", 1: "scale shift"}, constant=Value(0), one=Value(0),
            empty=Refused("at least one"), tolerance=1e-6),
    Measure("probing.depth_heads.train_linear_readouts probing.depth_heads.LinearReadouts", readouts,
            lambda s: (I.normal(s, s.n, 3), I.normal(s, s.n)), nan=SAME_OR_NAN, inf=SAME_OR_NOT_FINITE,
            constant=AS_USUAL, half=NONE, integers=NO_CASE),
    Measure("probing.probes.control_labels",
            lambda d: A.control_labels(torch.arange(20), d.abs()), lambda s: (I.normal(s, 4),), low=0, high=3,
            nan=Refused("shares of at least 0"), invariant={0: "sign scale"}, constant=AS_USUAL,
            zero=Refused("not all 0"),
            one=Value(0), empty=Refused("shares of at least 0")),
]  # fmt: skip

# ------------------------------------------------------------------------------------------------ inspection


def projected(s: Sample) -> Args:
    return I.normal(s, s.n, 3), I.normal(s, 7, 3, seed=1), I.normal(s, 7, seed=2)


def of_labels(measure):
    def call(h, w, b):
        with mock.patch.dict(chunked._CHUNK, cpu=20):
            return measure(h, w, b, torch.arange(len(h)) % 7)

    return call


def first_rows(args: Args, k: int) -> Args:
    return args[0][:k], *args[1:]


INSPECTION = [
    Measure("inspection.linear_cross_entropy.linear_cross_entropy", of_labels(linear_cross_entropy), projected, low=0,
            rows=first_rows, empty=Value(0), one=AS_USUAL, rounded=True, inf=AS_USUAL),
    Measure("inspection.linear_cross_entropy.target_log_probabilities", of_labels(target_log_probabilities), projected,
            high=0, nan=SOME_NAN, inf=AS_USUAL, rows=first_rows, empty=NOTHING, one=AS_USUAL, rounded=True),
    Measure("inspection.forward.token_losses", lambda z: token_losses(z, torch.arange(5).expand(len(z), 5) % 4),
            lambda s: (I.normal(s, s.n, 5, 4),), low=0, nan=SOME_NAN, minus_inf=AS_USUAL, invariant={0: "row_shift"},
            empty=NOTHING, one=AS_USUAL, integers=Refused("floating-point")),
    Measure("inspection.weights_audit.squared_distances", partial(W.squared_distances, width=2), I.vectors, low=0,
            nan=SAME_OR_NAN, inf=AS_USUAL, invariant={0: "shift rotation sign"}, empty=NOTHING, one=AS_USUAL),
    Measure("inspection.weights_audit.out_of_order", W.out_of_order, I.vectors, low=0, high=1, nan=AS_USUAL,
            invariant={0: "shift rotation scale"}, constant=Value(0), one=Value(0), empty=NOTHING, half=NONE),
    Measure("inspection.weights_audit.tensor_sketches", lambda x: W.tensor_sketches({"w": x}).get("w", x.sum()),
            I.vectors, nan=SOME_NAN, inf=AS_USUAL, empty=NOTHING, one=AS_USUAL),
    Measure("inspection.weights_audit.weights_sketch", lambda x: W.weights_sketch({"w": x}, size=17), I.vectors,
            nan=SOME_NAN, inf=AS_USUAL, empty=NOTHING, one=AS_USUAL),
]  # fmt: skip

# ------------------------------------------------------------------------------------------------ interdependence

LSTM, HIDDEN = I.lstm(), 4
DECODER = torch.nn.Linear(HIDDEN, 5, dtype=F64)


def words(s: Sample) -> Args:
    return (I.normal(s, 2, 4, 3),)


def side(x, place):
    mask = torch.zeros(x.shape[:2], dtype=torch.bool)
    mask[:, place] = True
    return mask


def game(x):
    """(rows, time, 3): at each place what a tanh of the sum makes of those before."""
    return torch.tanh(x.cumsum(1))


def one_of(*places):
    return torch.tensor([place in places for place in range(4)])


INTERDEPENDENCE = [
    Measure("interdependence.decomposition.contextual_decomposition interdependence.decomposition.Decomposition",
            lambda x: A.contextual_decomposition(LSTM, x, side(x, 1)).relevant, words, nan=SAME_OR_NAN,
            inf=SAME_OR_NOT_FINITE,
            empty=Refused("expected at least one word vector"), one=AS_USUAL, half=NONE, integers=Refused("float")),
    Measure("interdependence.pairwise.decompositional_interdependence",
            lambda x: A.decompositional_interdependence(LSTM, x, side(x, 0), side(x, 2)), words, low=0, nan=SAME_OR_NAN,
            empty=Refused("expected at least one word vector"), one=AS_USUAL, half=NONE, integers=Refused("float")),
    Measure("interdependence.pairwise.pairwise_interdependence "
            "interdependence.pairwise.PairwiseInterdependence",
            lambda x: A.pairwise_interdependence(LSTM, x, 2).hidden, words, low=0, nan=SAME_OR_NAN, inf=AS_USUAL,
            empty=Refused("expected at least one word vector"), one=AS_USUAL, half=NONE, integers=Refused("float")),
    Measure("interdependence.lstm_layers.state_gradients",
            lambda x: A.state_gradients(LSTM, DECODER, x, torch.zeros(x.shape[:2], dtype=torch.int64)), words,
            nan=SAME_OR_NAN, inf=AS_USUAL, empty=Refused("expected at least one word vector"), one=AS_USUAL, half=NONE,
            integers=Refused("float")),
    Measure("interdependence.pairwise_shapley.pairwise_shapley_interaction "
            "interdependence.pairwise_shapley.PairwiseShapley",
            lambda x: A.pairwise_shapley_interaction(game, x, 1, baseline=torch.zeros(3, dtype=F64)),
            words, nan=not_finite, inf=AS_USUAL, half=NONE, integers=NO_CASE),
]  # fmt: skip

WEIGHTS = [
    Measure("weights.sparsity_of_entries.gini", A.gini, I.vectors, low=0, high=1, nan=SOME_NAN,
            invariant={0: "lengths scale sign units"}, empty=NOTHING, one=AS_USUAL),
    Measure("weights.sparsity_of_entries.hoyer", A.hoyer, I.vectors, low=0, high=1, nan=SOME_NAN,
            invariant={0: "lengths scale sign units"}, empty=NOTHING, one=AS_USUAL),
    Measure("weights.spectra.matrix_spectrum", lambda w: A.matrix_spectrum(w).effective_rank, I.vectors, low=1,
            invariant={0: "rotation scale sign rows"}, constant=Value(1), zero=Value(0), one=Value(1),
            empty=Refused("at least one row")),
    Measure("weights.spectra.singular_values", A.singular_values, I.vectors, low=0, invariant={0: "rotation sign rows"},
            constant=AS_USUAL, zero=Value(0), one=AS_USUAL, empty=Refused("at least one row")),
    Measure("weights.spectra.product_spectrum", lambda x, y: A.product_spectrum(x.mT, y).stable_rank, I.pair, low=1,
            invariant={0: "rotation scale sign", 1: "rotation scale sign", "all": "rows"},
            empty=Refused("at least one"), one=Value(1), constant=Value(1), zero=Value(0), lengths=AS_USUAL),
    Measure("weights.distances.weight_distance", lambda x, y: A.weight_distance(x, y).angle,
            lambda s: (I.normal(s, s.n, 3), I.normal(s, s.n, 3, seed=1)), low=0, high=180,
            invariant={0: "scale", 1: "scale", "all": "rows units"}, symmetric=True, constant=AS_USUAL, zero=NAN,
            one=AS_USUAL, empty=NAN, lengths=Refused("expected reference")),
    Measure("weights.alignment.table_alignment", lambda x, y: A.table_alignment(x, y).linear_cka, I.pair, low=0,
            high=1, invariant={0: "shift rotation scale", 1: "shift rotation scale", "all": "rows"}, symmetric=True,
            constant=NAN, one=NAN, empty=NAN, lengths=Refused("expected outputs")),
]  # fmt: skip

TABLE: tuple[Measure, ...] = (*SIMILARITY, *WORDS, *STATISTICS, *ATTENTION, *DYNAMICS, *GEOMETRY, *ORBITS, *PREFERENCE,
                              *PROBING, *INSPECTION, *INTERDEPENDENCE, *WEIGHTS)  # fmt: skip
