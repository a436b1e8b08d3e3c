"""Geometry of a model's activations by step: ranks, intrinsic dimension, anisotropy, outliers, attention sinks."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.attention.first_token import FirstTokenSums
from lmdyn.analysis.geometry.intrinsic_dimension import intrinsic_dimension
from lmdyn.analysis.geometry.rectifiers import UnitSigns, find_rectifiers
from lmdyn.analysis.geometry.sampled_rows import SampledRows
from lmdyn.analysis.geometry.spectrum import power_law, white_noise_rank
from lmdyn.analysis.geometry.vector_sums import VectorGeometry, VectorSums
from lmdyn.analysis.inspection.activations import resolve_sites
from lmdyn.analysis.inspection.forward import device_of
from lmdyn.analysis.inspection.sites import match_sites
from lmdyn.analysis.statistics.distributed import rank_and_world_size, union_over_ranks
from lmdyn.callbacks.conditions.amounts import count_tokens, site_widths
from lmdyn.callbacks.conditions.finding import Cost, Foreseen, expected
from lmdyn.callbacks.geometry.geometry_figures import geometry_figures
from lmdyn.callbacks.geometry.geometry_quantities import GEOMETRY, OF_SAMPLE, OF_VECTORS, PARTS
from lmdyn.callbacks.observing.probe import ObservedBatch, to_device, token_vectors
from lmdyn.callbacks.observing.run import announce
from lmdyn.callbacks.observing.streaming_observer import LSTM_SITES, StreamingObserver, given_sites
from lmdyn.callbacks.observing.token_groups import token_hash

__all__ = ["Geometry"]

log = logging.getLogger(__name__)

_ENOUGH = 4  # vectors for each dimension, below which RankMe is far from its value for many


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
        **kwargs: see :class:`~lmdyn.callbacks.Observer`.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for sites that are not modules, an empty range of indices, fewer than 40 samples, or an empty
            probe set.

    Reference: Garrido et al. 2023 (RankMe); Agrawal et al. 2022 (α-ReQ); Facco et al. 2017 (TwoNN); Ethayarajh 2019
        (anisotropy); Elhage et al. 2023 (privileged bases); Sun et al. 2024 (massive activations); Xiao et al. 2023
        (attention to the first token).
    """

    uses_labels = False
    sharded = True

    recorded = GEOMETRY
    default_sites = LSTM_SITES

    def __init__(
        self,
        *,
        sites: Mapping[str, str] | str | None = None,
        activation_functions: Mapping[str, str] | str | None = "auto",
        attention_sites: Mapping[str, str] | str | None = None,
        alpha_range: Sequence[int | None] = (3, 100),
        max_samples: int = 500,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if len(alpha_range) != 2 or alpha_range[0] is None:
            raise ValueError(f"alpha_range is {list(alpha_range)}: expected a first and a last index")
        power_law(torch.ones(1), alpha_range[0], alpha_range[1])  # checks them
        if max_samples < 10 * max(PARTS.values()):
            raise ValueError(
                f"max_samples is {max_samples}: expected at least {10 * max(PARTS.values())}, of which a quarter is "
                "enough for an estimate of the intrinsic dimension"
            )
        self.sites = given_sites(sites, LSTM_SITES)
        self.activation_functions = given_sites(activation_functions, {})
        self.attention_sites = given_sites(attention_sites, {})
        self.alpha_range = alpha_range[0], alpha_range[1]
        self.max_samples, self.seed = max_samples, seed
        self.vector_sites: Mapping[str, str] = self.sites

    def check_module(self, module: nn.Module) -> None:
        """Find the sites and the activation functions; raise an error for paths that are not modules."""
        super().check_module(module)
        self.vector_sites = dict(self.sites)
        self._found["activation_functions"] = functions = self._activation_functions(module)
        if both := functions.keys() & self.vector_sites.keys():
            raise ValueError(
                f"{self.name}: expected different names of sites and activation functions, got {sorted(both)} for both"
            )
        self.activation_functions = functions
        self.sites = {**self.vector_sites, **functions}

    def _activation_functions(self, module: nn.Module) -> dict[str, str]:
        choice = self.hparams["activation_functions"]
        if choice is None:
            return {}
        if isinstance(choice, Mapping):
            resolve_sites(module, choice)
            return dict(choice)
        if choice != "auto":
            return match_sites(module, choice)
        batch = next(iter(self.probe_set.batches()), None)
        found = {} if batch is None else find_rectifiers(
            module, to_device(batch, device_of(module)), self.forward
        )  # fmt: skip
        names = ", ".join(f"{name} ({path})" for name, path in found.items())
        announce(
            self.name,
            f"activation functions found: {names}" if found else "no activation functions that are modules and rectify "
            "were found: dead and always-on units are left out",
        )  # fmt: skip
        return found

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report fewer vectors than a few for each dimension, and the memory of sums and samples."""
        widths = site_widths(module, self.probe_set, self.vector_sites, self.forward)
        widest = max(widths.values(), default=0)
        needed = _ENOUGH * widest
        tokens = count_tokens(self.probe_set, needed)
        if tokens < needed:
            yield expected(
                f"at least {needed:,} tokens, {_ENOUGH} for each of {widest} dimensions",
                f"{tokens:,}, so that ranks are bounded by the text rather than by the model",
                "observe more text (`max_tokens`, `probe`), or compare with rankme_white_noise",
                stops=False,
            )
        groups = 2 * len(widths)  # all and last
        sums = sum(3 * width**2 + 2048 * width for width in widths.values())
        yield Cost(
            f"covariances of {groups} sets of up to {widest} dimensions",
            2 * 8 * sums,
            "observe fewer `sites`",
        )
        samples = 2 * 4 * 2 * self.max_samples * sum(widths.values()) + 4 * 8 * self.max_samples**2
        yield Cost(
            f"samples of {groups} sets, and distances of {self.max_samples}²", samples, "lower `max_samples`"
        )

    def accumulator(self, module: nn.Module, step: int) -> "_Sums":
        """Return an accumulator of sums and samples of each site."""
        return _Sums(self, step)

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw ranks, intrinsic dimensions, outliers, units and attention to the first token over steps."""
        return geometry_figures(observations, list(settings["sites"] or []))


class _Sums:
    """Sums and samples of the vectors of each site, over all tokens and over last ones."""

    def __init__(self, observer: Geometry, step: int) -> None:
        self._observer, self._step = observer, step
        self._vectors: dict[tuple[str, str], VectorSums] = {}
        self._samples = {over: SampledRows(observer.max_samples) for over in ("all", "last")}
        self._signs: dict[str, UnitSigns] = {}
        self._first = FirstTokenSums()
        self._broken: list[str] = []

    def update(self, seen: ObservedBatch) -> None:
        observer, mask = self._observer, seen.tokens
        whole = bool(mask.all())
        keys = token_hash(seen, observer.seed)
        own = {n: a for n, a in seen.activations.items() if n.split("@")[0] in observer.sites}
        vectors = {name: token_vectors(name, a, mask) for name, a in own.items()}
        rows = {name: x.flatten(0, 1) if whole else x[mask] for name, x in vectors.items()}
        for name in rows:
            if name.split("@")[0] in observer.activation_functions:
                self._signs.setdefault(name, UnitSigns()).update(rows[name])
        sites = [name for name in rows if name.split("@")[0] in observer.vector_sites]
        self._add("all", keys.flatten() if whole else keys[mask], {name: rows[name] for name in sites})
        if "continues" not in seen.batch:
            row, last = torch.arange(len(mask), device=mask.device), _last(mask)
            if not whole:
                there = mask.any(1)
                row, last = row[there], last[there]
            self._add("last", keys[row, last], {name: vectors[name][row, last] for name in sites})
        # other observers of the same pass may use other sites
        attention = {n: a for n, a in seen.attentions.items() if n.split("@")[0] in observer.attention_sites}
        self._first.update(attention, mask)

    def _add(self, over: str, keys: Tensor, rows: Mapping[str, Tensor]) -> None:
        for name, x in rows.items():
            self._vectors.setdefault((over, name), VectorSums()).update(x)
        self._samples[over].update(keys, rows)

    def table(self) -> pd.DataFrame:
        rows: list[dict[str, Any]] = []
        self._reduce()
        if not self._vectors and not self._signs and not self._first.result():
            raise ValueError(
                f"{self._observer.name}: the probe set is empty: expected at least one batch to observe"
            )
        for (over, site), sums in self._vectors.items():
            rows += self._of_site(over, site, sums.result())
        for site, signs in self._signs.items():
            if (units := signs.result()) is not None:
                self._check(site, not math.isnan(units.dead))
                place = {"site": site, "over": "all"}
                rows.append({"quantity": "dead_units", **place, "value": units.dead})
                rows.append({"quantity": "always_on_units", **place, "value": units.always_on})
        for site, found in self._first.result().items():
            self._check(site, not bool(found.weights.isnan().any()))
            for head, weight in enumerate(found.weights.tolist()):
                rows.append(
                    {"quantity": "first_token_attention", "site": site, "head": head, "value": weight}
                )
            rows.append({"quantity": "first_token_equal", "site": site, "value": found.equal})
        self._warn()
        table = pd.DataFrame(rows).reindex(columns=["quantity", "site", "over", "head", "value"])
        return table.fillna({"over": ""}).astype({"head": "Int64", "value": "float64"})

    def _reduce(self) -> None:
        """Sum over ranks, of which some may have no data."""
        for key in union_over_ranks(self._vectors):
            self._vectors.setdefault(key, VectorSums()).reduce()
        for sample in self._samples.values():
            sample.reduce()
        for site in union_over_ranks(self._signs):
            self._signs.setdefault(site, UnitSigns()).reduce()
        self._first.reduce()

    def _of_site(self, over: str, site: str, found: VectorGeometry) -> list[dict[str, Any]]:
        """Return the rows of a set of vectors: without those that are not defined, or all as NaN."""
        if not found.n:
            return []
        self._check(site, found.finite)
        if over == "last" and found.n < _ENOUGH * found.width:
            announce(
                self._observer.name,
                f"{found.n} last tokens for {found.width} dimensions: their ranks are bounded by the text",
            )
        if found.finite:
            values = {**self._of_vectors(found), **self._of_sample(over, site, found.largest)}
            values = {name: value for name, value in values.items() if math.isfinite(value)}
        else:
            names = [q.name for q in (*OF_VECTORS, *OF_SAMPLE)]
            values = {**dict.fromkeys(names, math.nan), "vectors": found.n}
        return [{"quantity": q, "site": site, "over": over, "value": value} for q, value in values.items()]

    def _of_vectors(self, found: VectorGeometry) -> dict[str, float]:
        values: dict[str, float] = {"vectors": found.n}
        if (spectrum := found.spectrum) is not None:
            values["rankme"] = float(spectrum.rankme())
            values["rankme_covariance"] = float(spectrum.rankme("covariance"))
            values["rankme_white_noise"] = white_noise_rank(found.n, found.width)
            values["participation_ratio"] = float(spectrum.participation_ratio)
            if (line := power_law(spectrum.eigenvalues, *self._observer.alpha_range)) is not None:
                values |= {"alpha": line.exponent, "alpha_error": line.error, "alpha_r2": line.r2}
        values["anisotropy"] = found.anisotropy
        values["token_kurtosis"], values["unit_kurtosis"] = found.token_kurtosis, found.unit_kurtosis
        values["largest_magnitude"] = found.largest
        return values

    def _of_sample(self, over: str, site: str, largest: float) -> dict[str, float]:
        rows = self._samples[over].rows(site).cpu()
        dimension = intrinsic_dimension(rows, list(PARTS.values()))
        values = {
            "distinct_vectors": float(dimension.distinct),
            **dict(zip(PARTS, dimension.dimensions, strict=True)),
        }
        magnitudes = rows.abs().float().flatten().numpy()
        values["median_magnitude"] = median = float(np.median(magnitudes))
        if median > 0:
            values["largest_to_median"] = largest / median
        return values

    def _check(self, site: str, finite: bool) -> None:
        if not finite and site not in self._broken:
            self._broken.append(site)

    def _warn(self) -> None:
        if self._broken and rank_and_world_size()[0] == 0:
            log.warning(
                "%s: activations are not finite at step %d in %s: the model has diverged",
                self._observer.name, self._step, self._broken,
            )  # fmt: skip


def _last(mask: Tensor) -> Tensor:
    """Return the position of the last token of each row."""
    return (mask * torch.arange(mask.shape[1], device=mask.device)).argmax(1)
