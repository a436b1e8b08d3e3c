"""Is lmdyn as fast as the few lines that one would write from the formula?

Question: CPU time of plain code over that of lmdyn's function for the same number, on the same input. Goal: at least
1.0 each. And by how much the two numbers differ.

Run: ``python benchmarks/plain_code.py`` (minutes; ``--smoke`` for seconds; ``--only RSA`` for some of them)

Compared: numpy and torch as in a notebook, written here from the formulas; scikit-dimension for TwoNN, transformers'
own ``output_attentions`` for scores of heads. Each pair runs in turn on one thread, after one run of each that warms
up. Input is activations with a spectrum that decays and a mean that is not 0, 768 wide, and random weights of the
shapes of GPT-2 (small). Plain code checks nothing: lmdyn's time includes its checks of the input.
"""

import argparse
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import numpy as np
import skdim
import torch
from common import machine, now, quiet, spread, table
from scipy.stats import rankdata
from torch import Tensor

from lmdyn import analysis as A
from lmdyn.analysis.attention.attention_scores import AttentionPatternSums, pattern_sums
from lmdyn.analysis.inspection.activations import observing
from lmdyn.analysis.inspection.forward import call_module

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Comparison:
    """Plain code and lmdyn's, with the arguments of both; each returns numbers, of which the agreement is told."""

    name: str
    given: str
    arguments: tuple[Any, ...]
    plain: Callable[..., Any]
    ours: Callable[..., Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="beginnings of names")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    quiet()
    torch.set_num_threads(1)
    print(machine())
    rows = []
    for compared in comparisons(args.smoke):
        if not args.only or compared.name.startswith(tuple(args.only)):
            rows.append(measured(compared, 1 if args.smoke else args.reps))
            print("#", rows[-1], flush=True)
    print(table(["measure", "input", "plain code", "lmdyn", "plain / lmdyn", "greatest difference"], rows))


def measured(compared: Comparison, reps: int) -> list[str]:
    """Both in turn; the difference is relative to the greatest number."""
    plain, ours = (numbers(call(*compared.arguments)) for call in (compared.plain, compared.ours))
    difference = np.abs(plain - ours).max() / np.abs(plain).max()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(reps):
        for call, found in zip((compared.plain, compared.ours), times, strict=True):
            start = now(CPU)
            call(*compared.arguments)
            found.append(now(CPU).since(start).cpu)
    ratios = [a / b for a, b in zip(*times, strict=True)]
    seconds = [f"{min(found):.3f} s" for found in times]
    return [compared.name, compared.given, *seconds, f"**{spread(ratios, '{:.2f}')}**", f"{difference:.1e}"]


def numbers(found: Any) -> np.ndarray:
    parts = found if isinstance(found, (list, tuple)) else [found]
    return np.concatenate([np.asarray(part, dtype=np.float64).reshape(-1) for part in parts])


def comparisons(smoke: bool) -> list[Comparison]:
    g = torch.Generator().manual_seed(0)
    d = 24 if smoke else 768
    few, many = (60, 80) if smoke else (2000, 8000)

    def activations(n: int, dtype: torch.dtype) -> Tensor:
        scales = torch.arange(1, d + 1, dtype=torch.float64) ** -0.5
        mixing = torch.linalg.qr(torch.randn(d, d, generator=g, dtype=torch.float64)).Q
        x = torch.randn(n, d, generator=g, dtype=torch.float64) * scales @ mixing
        return (x + torch.randn(d, generator=g, dtype=torch.float64)).to(dtype)

    def pair(n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        x = activations(n, dtype)
        return x, (x + activations(n, dtype)).contiguous()

    exact, single = pair(few, torch.float64), pair(many, torch.float32)
    x = single[0]
    shapes = ((d, 3 * d), (d, d), (d, 4 * d), (4 * d, d), (50 * d // 8, d))
    weights = [0.02 * torch.randn(shape, generator=g) for shape in shapes]
    heads = transformer(smoke)
    size = f"{few:,} × {d}"
    return [
        Comparison("RBF CKA", f"{size}, float64", exact, plain_rbf_cka, A.kernel_cka),
        Comparison("RSA", f"{size}, float64", exact, plain_rsa, A.rsa),
        Comparison("linear CKA", f"{many:,} × {d}, float64", pair(many, torch.float64), plain_cka, A.linear_cka),
        Comparison("linear CKA, dtype=float32", f"{many:,} × {d}, float32", single, plain_cka, single_cka),
        Comparison("TwoNN", f"{size}, float32", (x[:few],), plain_two_nn, two_nn),
        Comparison("RankMe", f"{many:,} × {d}, float32", (x,), plain_rankme, A.rankme),
        Comparison("RankMe of few", f"{size}, float32", (x[:few],), plain_rankme, A.rankme),
        Comparison("weight spectra", "GPT-2's shapes, float32", (weights,), plain_spectra, spectra),
        Comparison("matrix_spectrum", "GPT-2's shapes, float32", (weights,), plain_quantities, quantities),
        Comparison("head scores", f"GPT-2, {heads[1].shape[0]} × {heads[1].shape[1]}", heads, plain_heads, our_heads),
    ]  # fmt: skip


# Similarity -------------------------------------------------------------------------------------------------


def plain_rbf_cka(x: Tensor, y: Tensor) -> float:
    def centred(z: np.ndarray) -> np.ndarray:
        gram = z @ z.T
        norms = gram.diagonal()
        squared = np.maximum(norms[:, None] + norms - 2 * gram, 0)
        sigma = np.median(np.sqrt(squared[np.triu_indices(len(z), 1)]))
        kernel = np.exp(-squared / (2 * sigma**2))
        return kernel - kernel.mean(0) - kernel.mean(1, keepdims=True) + kernel.mean()

    k, l = centred(x.numpy()), centred(y.numpy())  # noqa: E741
    return float((k * l).sum() / np.sqrt((k * k).sum() * (l * l).sum()))


def plain_rsa(x: Tensor, y: Tensor) -> float:
    above = np.triu_indices(len(x), 1)
    ranks = [rankdata(1 - np.corrcoef(z.numpy())[above]) for z in (x, y)]
    return float(np.corrcoef(*ranks)[0, 1])


def plain_cka(x: Tensor, y: Tensor) -> float:
    x, y = x - x.mean(0), y - y.mean(0)
    return float((x.T @ y).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm()))


def single_cka(x: Tensor, y: Tensor) -> Tensor:
    return A.linear_cka(x, y, dtype=torch.float32)


# Geometry and weights ---------------------------------------------------------------------------------------


def plain_two_nn(x: Tensor) -> float:
    return float(skdim.id.TwoNN().fit(x.numpy()).dimension_)


def two_nn(x: Tensor) -> float:
    return A.intrinsic_dimension(x, parts=(1,)).dimensions[0]


def plain_rankme(x: Tensor) -> float:
    values = torch.linalg.svdvals(x)
    shares = values / values.sum()
    return math.exp(float(-(shares * shares.log()).sum()))


def plain_spectra(weights: list[Tensor]) -> list[Tensor]:
    return [torch.linalg.svdvals(w) for w in weights]


def spectra(weights: list[Tensor]) -> list[Tensor]:
    return [A.singular_values(w) for w in weights]


def plain_quantities(weights: list[Tensor]) -> list[list[float]]:
    """Norms, ranks and moments of singular values, Gini index and Hoyer's measure of entries."""
    found = []
    for w in weights:
        s = torch.linalg.svdvals(w)
        share, entries = s / s.sum(), np.sort(w.abs().flatten().numpy()).astype(np.float64)
        d, total = entries.size, entries.sum()
        gini = 1 - 2 * (entries @ ((d - np.arange(1, d + 1) + 0.5) / d)) / total
        hoyer = (math.sqrt(d) - total / np.sqrt(entries @ entries)) / (math.sqrt(d) - 1)
        norms = (s.norm(), s[0], s.sum(), s.mean(), s.quantile(0.5), s.var(correction=0))
        ranks = ((s / s[0]).square().sum(), (-(share * share.log()).sum()).exp())
        found.append([*map(float, norms + ranks), float(gini), float(hoyer)])
    return found


def quantities(weights: list[Tensor]) -> list[list[float]]:
    names = (
        "frobenius_norm spectral_norm nuclear_norm mean median variance stable_rank effective_rank gini hoyer"
    )
    spectra = map(A.matrix_spectrum, weights)
    return [[float(getattr(spectrum, name)) for name in names.split()] for spectrum in spectra]


# Attention --------------------------------------------------------------------------------------------------


def transformer(smoke: bool) -> tuple[Any, Tensor, dict[str, str]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16} if smoke else {"n_layer": 4, "n_head": 8, "n_embd": 256}
    model = GPT2LMHeadModel(
        GPT2Config(**sizes, n_positions=128, vocab_size=10_000, bos_token_id=0, eos_token_id=0)
    ).eval()
    ids = torch.randint(10_000, (2 if smoke else 16, 128), generator=torch.Generator().manual_seed(1))
    return model, ids, {f"layer{i}": f"transformer.h.{i}.attn" for i in range(len(model.transformer.h))}


def plain_heads(model: Any, ids: Tensor, sites: dict[str, str]) -> list[Tensor]:
    """Mean entropy, weight on both neighbours, weight on the token itself, by layer and head."""
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(input_ids=ids, output_attentions=True).attentions
    model.set_attn_implementation(own)
    found = []
    for p in attentions:
        entropy = -(p * (p + 1e-12).log()).sum(-1)
        before, after = p.diagonal(-1, 2, 3).sum(-1), p.diagonal(1, 2, 3).sum(-1)
        itself = p.diagonal(0, 2, 3)
        found += [entropy.mean((0, 2)), (before + after).mean(0) / p.shape[-1], itself.mean((0, 2))]
    return found


def our_heads(model: Any, ids: Tensor, sites: dict[str, str]) -> list[Tensor]:
    tokens = torch.ones_like(ids, dtype=torch.bool)
    sums = {site: AttentionPatternSums() for site in sites}

    def read(site: str, weights: Tensor) -> dict[str, Tensor]:
        return pattern_sums(site, weights, tokens, size=32)

    with observing(model), torch.no_grad(), A.capture(model, {}, attention_sites=sites, read=read) as seen:
        call_module(model, {"input_ids": ids})  # as observers do, without a cache of keys and values
        for site, found in seen.attentions.items():
            sums[site].add(found)
    means = [of_site.result() for of_site in sums.values()]
    return [of[name][0] for of in means for name in ("entropy", "diagonal", "itself")]


if __name__ == "__main__":
    main()
