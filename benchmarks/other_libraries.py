"""What do other libraries compute under the names SVCCA, PWCCA, CKA, N_eff and λ, and what do common mistakes cost?

Question: the values of other implementations next to those of ``lmdyn.analysis``, on the same seeded inputs in float64.
``docs/measures/conventions.md`` has the tables with what explains them. A library that is not installed is skipped, and
the script says so. Those of PyPI go into an environment of their own, not into that of lmdyn:
``pip install --no-deps cca-zoo ckatorch cka-pytorch deep-reps dimensionality nolds==0.5.2 neurokit2 pytorch-cka repsim
rsatoolbox scikit-dimension statsmodels torch-cka``, and what they import. Those that are on GitHub only are read from
clones: ``--sources FOLDER`` with ``svcca`` (google/svcca), ``anatome`` (moskomule/anatome) and ``netrep``
(ahwillia/netrep).

Run: ``python benchmarks/other_libraries.py --sources clones`` (a minute on 2 cores; ``--smoke`` for seconds)

Inputs: ``x`` and ``y`` have 2,000 samples of 64 dimensions, a falling spectrum of condition number 1e3, half of what
they hold in common, and means of 5 standard deviations. ``noise`` is Gaussian and independent.
"""

import argparse
import importlib
import math
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import table
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lmdyn.analysis import (
    canonical_correlations,
    cca,
    correlation_dimension,
    decompositional_interdependence,
    deviation,
    effective_dimension,
    kernel_cka,
    linear_cka,
    lyapunov_spectrum,
    pwcca,
    rsa,
    svcca,
    svcca_ranks,
)
from lmdyn.analysis.statistics.multiplicity import holm

Row = tuple[str, ...]
SKIPPED: list[str] = []


def related(n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two (n, d) matrices that share half of what they hold; a falling spectrum; a mean of 5 standard deviations."""
    g = torch.Generator().manual_seed(seed)
    common = torch.randn(n, d, generator=g, dtype=torch.float64)
    scales = torch.logspace(0, -3, d, dtype=torch.float64)
    sides = []
    for _ in range(2):
        values = (common + torch.randn(n, d, generator=g, dtype=torch.float64)) * scales
        rotated = values @ torch.linalg.qr(torch.randn(d, d, generator=g, dtype=torch.float64)).Q
        sides.append(rotated + 5 * rotated.std() * torch.randn(d, generator=g, dtype=torch.float64))
    return sides[0], sides[1]


def noise(n: int, d: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two unrelated (n, d) matrices."""
    x, y = torch.randn(2, n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x, y


class Half(nn.Module):
    """A model whose one layer returns the first or the last half of the columns of its input."""

    def __init__(self, d: int, first: bool) -> None:
        super().__init__()
        self.out = nn.Linear(2 * d, d, bias=False)
        with torch.no_grad():
            self.out.weight.copy_(torch.eye(2 * d)[:d] if first else torch.eye(2 * d)[d:])

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)


def library(module: str, package: str) -> Any:
    """A module and the version of its package, or None where it is not installed or cannot be imported."""
    try:
        with redirect_stdout(StringIO()):
            found = importlib.import_module(module)
        name = f"{package} {version(package)}"
    except (ImportError, PackageNotFoundError, TypeError) as error:
        SKIPPED.append(f"{package}: {type(error).__name__}")
        return None
    return types.SimpleNamespace(m=found, name=name)


def files_of(module: str, package: str, *parts: str) -> Any:
    """As :func:`library`, file by file, of a package whose own ``__init__`` cannot be imported."""
    try:
        folder = next(Path(entry) / module for entry in sys.path if (Path(entry) / module).is_dir())
        shell = types.ModuleType(module)
        shell.__path__ = [str(folder)]
        sys.modules[module] = shell
        found = types.SimpleNamespace(**{p: importlib.import_module(f"{module}.{p}") for p in parts})
        return types.SimpleNamespace(m=found, name=f"{package} {version(package)}")
    except (ImportError, PackageNotFoundError, StopIteration) as error:
        SKIPPED.append(f"{package}: {type(error).__name__}")
        return None


def source(folder: Path | None, place: str, module: str, name: str) -> Any:
    """A module of a clone."""
    if folder is None or not (folder / place).is_dir():
        SKIPPED.append(f"{name}: no clone (--sources)")
        return None
    sys.path.insert(0, str(folder / place))
    return types.SimpleNamespace(m=importlib.import_module(module), name=name)


def number(value: object) -> str:
    return f"{float(value):.4f}"  # type: ignore[arg-type]


def compared(
    rows: list[Row],
    name: str,
    what: str,
    theirs: Callable[[Tensor, Tensor], Any],
    ours: Any,
    x: Tensor,
    y: Tensor,
) -> None:
    """A row of values of (x, y) and (x, x), and of lmdyn's."""
    values = []
    for pair in ((x, y), (x, x)):
        try:
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                values.append(number(theirs(pair[0].clone(), pair[1].clone())))
        except Exception as error:  # what a library raises is the finding
            values.append(type(error).__name__)
    rows.append((name, what, *values, number(ours(x, y))))


def cca_rows(x: Tensor, y: Tensor, sources: Path | None) -> Iterator[Row]:
    """CCA, SVCCA and PWCCA."""
    rows: list[Row] = []
    d = x.shape[1]

    def add(name: str, what: str, theirs: Callable[[Tensor, Tensor], Any], ours: Any = cca) -> None:
        compared(rows, name, what, theirs, ours, x, y)

    from sklearn.cross_decomposition import CCA

    def sklearn_mean(a: Tensor, b: Tensor, **more: Any) -> float:
        u, v = CCA(n_components=d, **more).fit_transform(a.numpy(), b.numpy())
        return float(np.mean([abs(np.corrcoef(u[:, i], v[:, i])[0, 1]) for i in range(d)]))

    add(
        f"scikit-learn {version('scikit-learn')}",
        "`CCA(n_components=d)`: mean of score correlations",
        sklearn_mean,
    )
    zoo = library("cca_zoo.linear", "cca-zoo")
    if zoo:

        def zoo_mean(a: Tensor, b: Tensor) -> float:
            views = [a.numpy(), b.numpy()]
            u, v = zoo.m.CCA(n_components=d).fit(views).transform(views)
            return float(np.mean([abs(np.corrcoef(u[:, i], v[:, i])[0, 1]) for i in range(d)]))

        add(zoo.name, "`CCA(n_components=d)`: mean of score correlations", zoo_mean)
    google = source(sources, "svcca", "cca_core", "google/svcca")
    pw = google and source(sources, "svcca", "pwcca", "google/svcca")
    if google:

        def google_mean(a: Tensor, b: Tensor, **more: Any) -> float:
            return float(
                google.m.get_cca_similarity(a.T.numpy(), b.T.numpy(), verbose=False, **more)["mean"][0]
            )

        def google_sv(a: Tensor, b: Tensor) -> float:
            sides = []
            for side in (a.numpy(), b.numpy()):
                _, s, vt = np.linalg.svd((side - side.mean(0)).T, full_matrices=False)
                sides.append(torch.from_numpy((np.diag(s[:20]) @ vt[:20]).T))
            return google_mean(*sides, epsilon=1e-10)

        add(google.name, "`get_cca_similarity(…)['mean']`", google_mean)
        add(google.name, "the same, `epsilon=1e-6`", lambda a, b: google_mean(a, b, epsilon=1e-6))
        add(google.name, "its tutorial's SVCCA: 20 directions", google_sv, svcca)
    anatome = source(sources, "anatome", "anatome.distance", "anatome")
    if anatome:
        add(anatome.name, "1 − `svcca_distance(…, 0.99)`",
            lambda a, b: 1 - anatome.m.svcca_distance(a, b, 0.99, "svd"), svcca)  # fmt: skip
    netrep = source(sources, "netrep", "netrep.metrics", "netrep")
    if netrep:

        def angle(a: Tensor, b: Tensor) -> float:
            one, other = a.numpy(), b.numpy()
            return float(netrep.m.LinearMetric(alpha=0.0).fit(one, other).score(one, other))

        add(netrep.name, "cos `LinearMetric(alpha=0).score`", lambda a, b: math.cos(angle(a, b)))
        add(
            netrep.name,
            "the same, of x / 10,000 and y / 10,000",
            lambda a, b: math.cos(angle(a / 1e4, b / 1e4)),
        )
    latentis = library("latentis.measure.functional.svcca", "latentis")
    if latentis:
        add(latentis.name, "`svcca`", latentis.m.svcca, svcca)
    deep = files_of("deep_reps", "deep-reps", "utils", "cca_measures")
    if deep:
        c = deep.m.cca_measures
        add(deep.name, "`compute_standard_cca`", c.compute_standard_cca)
        add(deep.name, "`compute_standard_svcca`", c.compute_standard_svcca, svcca)
        add(deep.name, "`compute_yanai_svcca`: squares", c.compute_yanai_svcca, svcca)
        add(
            deep.name,
            "`compute_wvcca(…, output_dim=d)`",
            lambda a, b: c.compute_wvcca(a.float(), b.float(), d),
            pwcca,
        )
    repsim = library("repsim", "repsim")
    if repsim:

        def repsim_of(function: str, *more: str) -> Callable[[Tensor, Tensor], float]:
            return lambda a, b: float(getattr(repsim.m, function)([a.numpy(), b.numpy()], *more)[0, 1])

        for kind in ("yanai", "pillai"):
            add(repsim.name, f"`cca(…, '{kind}')`", repsim_of("cca", kind))
            add(repsim.name, f"`svcca(…, '{kind}')`", repsim_of("svcca", kind), svcca)
        add(repsim.name, "`pwcca`", repsim_of("pwcca"), pwcca)
    if pw:
        add(pw.name, "`compute_pwcca`", lambda a, b: pw.m.compute_pwcca(a.T.numpy(), b.T.numpy())[0], pwcca)
        centred = lambda a, b: pw.m.compute_pwcca((a - a.mean(0)).T.numpy(), (b - b.mean(0)).T.numpy())[0]  # noqa: E731
        add(pw.name, "the same, centred before", centred, pwcca)
        add(pw.name, "`compute_pwcca(x, 48 columns of y)`",
            lambda a, b: pw.m.compute_pwcca(a.T.numpy(), b[:, : 3 * d // 4].T.numpy())[0],
            lambda a, b: pwcca(a, b[:, : 3 * d // 4]))  # fmt: skip
    if anatome:
        add(
            anatome.name,
            "1 − `pwcca_distance`",
            lambda a, b: 1 - anatome.m.pwcca_distance(a, b, "svd"),
            pwcca,
        )
    yield from rows


def cka_rows(x: Tensor, y: Tensor, sources: Path | None) -> Iterator[Row]:
    """Linear CKA, biased and debiased, at once and by batches."""
    rows: list[Row] = []

    def debiased(a: Tensor, b: Tensor) -> Tensor:
        return linear_cka(a, b, debiased=True)

    def add(name: str, what: str, theirs: Callable[[Tensor, Tensor], Any], ours: Any = linear_cka) -> None:
        compared(rows, name, what, theirs, ours, x, y)

    ck = library("ckatorch.core", "ckatorch")
    if ck:
        add(ck.name, "`cka_base`", ck.m.cka_base)
        add(ck.name, "`cka_base(unbiased=True)`", lambda a, b: ck.m.cka_base(a, b, unbiased=True), debiased)

        def of_fifty(a: Tensor, b: Tensor) -> Any:
            return ck.m.cka_batch(*(side.reshape(-1, 50, side.shape[1]) for side in (a, b)))

        add(ck.name, "`cka_batch`, 50 samples a batch", of_fifty, debiased)
    pytorch_cka = library("cka", "pytorch-cka")
    if pytorch_cka:
        add(pytorch_cka.name, "`cka_from_features`",
            lambda a, b: torch.as_tensor(pytorch_cka.m.cka_from_features(a, b)).flatten()[0], debiased)  # fmt: skip

    def by_models(
        run: Callable[[nn.Module, nn.Module, DataLoader[Any]], Any], batch: int
    ) -> Callable[..., Any]:
        def value(a: Tensor, b: Tensor) -> Any:
            both = torch.cat([a, b], 1).float()
            loader = DataLoader(TensorDataset(both, both), batch)
            return run(Half(a.shape[1], True), Half(a.shape[1], False), loader)

        return value

    torch_cka = library("torch_cka", "torch-cka")
    if torch_cka:

        def by_torch_cka(one: nn.Module, other: nn.Module, loader: DataLoader[Any]) -> Any:
            found = torch_cka.m.CKA(one, other, "x", "y", ["out"], ["out"], device="cpu")
            with torch.no_grad():
                found.compare(loader)
            return found.export()["CKA"][0, 0]

        for batch in (32, 500, len(x)):
            add(
                torch_cka.name,
                f"`CKA.compare`, {batch} samples a batch",
                by_models(by_torch_cka, batch),
                debiased,
            )
        whole = by_models(by_torch_cka, len(x))
        add(
            torch_cka.name,
            "the same, centred before",
            lambda a, b: whole(a - a.mean(0), b - b.mean(0)),
            debiased,
        )
    calculator = library("cka_pytorch.cka", "cka-pytorch")
    if calculator:

        def by_calculator(one: nn.Module, other: nn.Module, loader: DataLoader[Any]) -> Any:
            found = calculator.m.CKACalculator(one, other, ["out"], ["out"], verbose=False)
            return found.calculate_cka_matrix(loader, num_epochs=1)[0, 0]

        add(calculator.name, "`calculate_cka_matrix`, 500 a batch", by_models(by_calculator, 500), debiased)
        small = by_models(by_calculator, 500)
        add(calculator.name, "the same, of x / 10 and y / 10", lambda a, b: small(a / 10, b / 10), debiased)
    repsim = library("repsim", "repsim")
    if repsim:
        for estimator, ours in (("gretton", linear_cka), ("song", debiased), ("lange", debiased)):
            add(repsim.name, f"`cka(…, 'linear', '{estimator}')`",
                lambda a, b, e=estimator: repsim.m.cka([a.numpy(), b.numpy()], "linear", e)[0, 1], ours)  # fmt: skip
    toolbox = library("rsatoolbox", "rsatoolbox")
    if toolbox:

        def compared_distances(method: str) -> Callable[[Tensor, Tensor], Any]:
            def value(a: Tensor, b: Tensor) -> Any:
                sets = [toolbox.m.data.Dataset(side[:200].numpy()) for side in (a, b)]
                one, other = (toolbox.m.rdm.calc_rdm(side, method="euclidean") for side in sets)
                return toolbox.m.rdm.compare(one, other, method=method)[0, 0]

            return value

        for method, ours in (
            ("spearman", lambda a, b: rsa(a[:200], b[:200], "euclidean")),
            ("cosine_cov", lambda a, b: linear_cka(a[:200], b[:200])),
            ("corr_cov", lambda a, b: linear_cka(a[:200], b[:200], debiased=True)),
        ):
            what = f"`compare(…, '{method}')` of Euclidean distances, 200 samples"
            add(toolbox.name, what, compared_distances(method), ours)
    deep = files_of("deep_reps", "deep-reps", "utils", "similarity_functions", "rsm_measures")
    if deep:
        add(deep.name, "`centered_kernel_alignment`, 100 samples",
            lambda a, b: deep.m.rsm_measures.centered_kernel_alignment(
                a[:100].float(), b[:100].float(), deep.m.similarity_functions.linear_kernel),
            lambda a, b: linear_cka(a[:100], b[:100]))  # fmt: skip
    netrep = source(sources, "netrep", "netrep.metrics", "netrep")
    if netrep:
        add(netrep.name, "`LinearCKA().score`", lambda a, b: netrep.m.LinearCKA().score(a.numpy(), b.numpy()))
    anatome = source(sources, "anatome", "anatome.distance", "anatome")
    if anatome:
        cka = anatome.m.linear_cka_distance
        add(anatome.name, "1 − `linear_cka_distance(…, False)`", lambda a, b: 1 - cka(a, b, False))
        add(anatome.name, "1 − `linear_cka_distance(…, True)`", lambda a, b: 1 - cka(a, b, True), debiased)
    yield from rows


def dimension_and_dynamics_rows(x: Tensor, n: int) -> Iterator[Row]:
    """N_eff, the exponent of the logistic map, its correlation dimension, Holm's correction."""
    ours = number(effective_dimension(x))
    dim = library("dimensionality", "dimensionality")
    if dim:
        found = dim.m.participation_ratio(x.numpy(), return_all=True)
        yield dim.name, "N_eff of x: `participation_ratio`, naive", number(found["naive"]), ours
        yield (
            dim.name,
            "N_eff of x: `participation_ratio`, corrected for samples and units",
            number(found["both"]),
            ours,
        )
    skdim = library("skdim.id", "scikit-dimension")
    if skdim:
        fitted = skdim.m.lPCA(ver="participation_ratio").fit(x.numpy()).dimension_
        yield skdim.name, "N_eff of x: `lPCA(ver='participation_ratio')`", number(fitted), ours
    s = torch.linalg.svdvals(x)
    yield (
        "uncentred",
        "N_eff of x without its mean taken off",
        number(s.square().sum() ** 2 / s.pow(4).sum()),
        ours,
    )

    def logistic(rate: float) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        values = [torch.tensor(0.3, dtype=torch.float64)]
        for _ in range(n + 500):
            values.append(rate * values[-1] * (1 - values[-1]))
        return (lambda state: rate * state * (1 - state)), torch.stack(values[501:])

    nolds = library("nolds", "nolds")
    kit = library("neurokit2", "neurokit2")
    for rate, known in ((4.0, "ln 2 = 0.6931"), (3.55, "a cycle of 8")):
        step, series = logistic(rate)
        exponent = lyapunov_spectrum(step, series[:1, None, None], k=1, steps=n).exponents.flatten()[0]
        about = f"λ of {n} values of the logistic map at {rate} ({known})"
        given = series.numpy()
        if nolds:
            short = {"emb_dim": 2, "lag": 1, "min_tsep": 10, "trajectory_len": 5}
            for call, found in (
                ("lyap_r()", nolds.m.lyap_r(given)),
                ("lyap_r(emb_dim=2, lag=1, min_tsep=10, trajectory_len=5)", nolds.m.lyap_r(given, **short)),
                (
                    "lyap_e(emb_dim=2, matrix_dim=2), largest",
                    nolds.m.lyap_e(given, emb_dim=2, matrix_dim=2).max(),
                ),
            ):
                yield nolds.name, f"{about}: `{call}`", number(found), number(exponent)
        if kit:
            found, _ = kit.m.complexity_lyapunov(given, delay=1, dimension=2)
            yield (
                kit.name,
                f"{about}: `complexity_lyapunov(delay=1, dimension=2)`",
                number(found),
                number(exponent),
            )
    _, series = logistic(3.569945672)
    ours = number(correlation_dimension(series[:, None, None])[0])
    if nolds:
        found = nolds.m.corr_dim(series[:1500].numpy(), emb_dim=1)
        yield (
            nolds.name,
            "correlation dimension at the end of the doublings (0.50): `corr_dim(emb_dim=1)`",
            number(found),
            ours,
        )
    multitest = library("statsmodels.stats.multitest", "statsmodels")
    if multitest:
        p = [0.001, 0.01, 0.012, 0.04, 0.3]
        corrected = multitest.m.multipletests(p, method="holm")[1]
        same = float(np.abs(corrected - np.array(holm(p))).max())
        yield (
            multitest.name,
            "`multipletests(method='holm')` of five p: greatest difference",
            f"{same:.1e}",
            "0",
        )


def mistakes_of_samples(d: int) -> Iterator[Row]:
    """Unrelated noise: what each measure says at n samples per dimension."""
    for ratio in (1.5, 2, 3, 5, 10, 30, 100):
        n = int(ratio * d)
        values = []
        measures = (cca, svcca, pwcca, linear_cka, lambda a, b: linear_cka(a, b, debiased=True))
        for measure in (*measures, lambda a, _: effective_dimension(a)):
            try:
                found = np.mean([float(measure(*noise(n, d, seed))) for seed in range(3)])
                values.append(number(found))
            except ValueError:
                values.append("error")
        yield f"{ratio:g}", str(n), *values


def mistakes(x: Tensor, y: Tensor) -> Iterator[Row]:
    """One mistake in each row, by a few lines of our own."""

    def bases(a: Tensor, keep: Callable[[Tensor], int], centred: bool = True) -> Tensor:
        u, s, _ = torch.linalg.svd(a - a.mean(0) if centred else a, full_matrices=False)
        return u[:, : keep(s)]

    def share(power: int) -> Callable[[Tensor], int]:
        return lambda s: int((s.pow(power).cumsum(0) / s.pow(power).sum() < 0.99).sum()) + 1

    def rho(a: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.svdvals(a.T @ b)

    right = svcca(x, y)
    ranks = " and ".join(map(str, svcca_ranks(x, y)))
    yield (
        "SVCCA",
        "cut on the sum of singular values",
        number(svcca(x, y, cut="singular_values")),
        number(right),
        (f"keeps {' and '.join(map(str, svcca_ranks(x, y, cut='singular_values')))} directions, not {ranks}"),
    )
    one, two = bases(x, share(2), centred=False), bases(y, share(2), centred=False)
    uncentred = rho(one, two).mean()
    yield (
        "SVCCA",
        "never centred",
        number(uncentred),
        number(right),
        (f"keeps {one.shape[1]} and {two.shape[1]} directions, the first of each is the mean"),
    )
    kept = [
        (a @ torch.linalg.svd(a, full_matrices=False).Vh[: b.shape[1]].T) for a, b in ((x, one), (y, two))
    ]
    yield (
        "SVCCA",
        "cut before centring",
        number(cca(*kept)),
        number(right),
        "the mean takes up the first direction",
    )
    d = x.shape[1]
    for epsilon in (1e-6, 1e-4, 1e-2):
        a, b = x - x.mean(0), y - y.mean(0)
        covariance = [(s.T @ s) / len(s) for s in (a, b)]
        halves = []
        for c in covariance:
            values, vectors = torch.linalg.eigh(c / c.abs().max() + epsilon * torch.eye(d, dtype=c.dtype))
            halves.append(vectors * values.rsqrt() @ vectors.T / c.abs().max().sqrt())
        own = torch.linalg.svdvals(halves[0] @ covariance[0] @ halves[0]).mean()
        found = torch.linalg.svdvals(halves[0] @ (a.T @ b / len(a)) @ halves[1]).mean()
        yield (
            "CCA",
            f"{epsilon:g} of the largest entry added to the covariances",
            number(found),
            number(cca(x, y)),
            (f"cca(x, x) = {float(own):.4f}"),
        )
    coefficients = canonical_correlations(x, y)
    many = int((coefficients.cumsum(0) / coefficients.sum() < 0.98).sum())
    yield (
        "CCA",
        "mean over the correlations that hold 98 % of their sum",
        number(coefficients[:many].mean()),
        number(coefficients.mean()),
        f"drops {len(coefficients) - many} of {len(coefficients)}",
    )
    yield (
        "CCA",
        "mean of squares (R², Yanai)",
        number(coefficients.square().mean()),
        number(coefficients.mean()),
        "",
    )
    yield "PWCCA", "weights of the other view: `pwcca(y, x)`", number(pwcca(y, x)), number(pwcca(x, y)), ""
    leading = torch.linalg.svd(x - x.mean(0), full_matrices=False).U[:, :4] * len(x) ** 0.5
    other = noise(len(x), d, 9)[0]
    other[:, :4] += 3 * leading
    yield (
        "PWCCA",
        "the same, z: the 4 leading directions of x in 4 units of 64, noise",
        number(pwcca(other, x)),
        number(pwcca(x, other)),
        "`pwcca(z, x)` and `pwcca(x, z)`",
    )
    a, b = x @ x.T, y @ y.T
    yield "CKA", "not centred", number((a * b).sum() / a.norm() / b.norm()), number(linear_cka(x, y)), ""
    for batch in (10, 32, 256):
        pairs = list(zip(x.split(batch), y.split(batch), strict=True))
        mean = np.mean([float(linear_cka(*pair)) for pair in pairs if len(pair[0]) > 3])
        yield "CKA", f"biased, mean over batches of {batch}", number(mean), number(linear_cka(x, y)), ""
        unrelated = noise(len(x), d, 3)
        pairs = list(zip(unrelated[0].split(batch), unrelated[1].split(batch), strict=True))
        mean = np.mean([float(linear_cka(*pair)) for pair in pairs if len(pair[0]) > 3])
        yield (
            "CKA",
            f"the same of unrelated noise, batches of {batch}",
            number(mean),
            number(linear_cka(*unrelated)),
            "",
        )
    sequences = [s[: len(s) // 20 * 20].reshape(-1, 20 * d) for s in (x, y)]
    yield (
        "CKA",
        "20 tokens flattened to one sample",
        number(linear_cka(*sequences)),
        number(linear_cka(x, y)),
        (f"{len(sequences[0])} samples of {20 * d} dimensions"),
    )
    yield (
        "CKA",
        "the same, debiased",
        number(linear_cka(*sequences, debiased=True)),
        number(linear_cka(x, y, debiased=True)),
        "",
    )
    median = float(torch.pdist(x[:500]).median())
    far = [torch.exp(-torch.cdist(s[:500], s[:500]).square() / 2) for s in (x * 10 / median, y * 10 / median)]
    yield (
        "CKA, RBF",
        "σ = 1 where the median distance is 10",
        number(kernel_cka(*far, "precomputed")),
        number(kernel_cka(x[:500], y[:500])),
        "500 samples; lmdyn: σ = the median distance",
    )


def publications(d: int) -> Iterator[Row]:
    """Variants between a publication's text and its code."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(32, d, generator=g, dtype=torch.float64)
    printed, released = deviation(x), deviation(x, "released")
    yield (
        "D of 32 tokens",
        f"d = {d}",
        "printed",
        number(printed),
        f"released {float(released):.4f}: {float(printed / released):.1f} times smaller",
    )
    steps = [math.ceil(math.log(1e-5 / float(v)) / math.log(0.9)) for v in (printed, released)]
    yield (
        "steps to D ≤ 1e-5",
        "tokens that approach by 10 % a step",
        "printed",
        str(steps[0]),
        f"released {steps[1]}",
    )
    torch.manual_seed(0)
    lstm, words = nn.LSTM(40, 60, batch_first=True).double(), torch.randn(20, 12, 40, dtype=torch.float64)
    for parameter in lstm.parameters():
        nn.init.normal_(parameter, std=0.3)
    left, right = torch.zeros(2, 20, 12, dtype=torch.bool)
    left[:, 4], right[:, 8] = True, True
    of = {
        v: decompositional_interdependence(lstm, words, left, right, variant=v)
        for v in ("published", "released", "generalized")
    }  # type: ignore[arg-type]
    for name in ("released", "generalized"):
        rank = np.corrcoef(of["published"].argsort().argsort(), of[name].argsort().argsort())[0, 1]
        yield (
            "DI of words 5 and 9",
            "LSTM of 60 units, 20 sentences, mean",
            "published",
            number(of["published"].mean()),
            (f"{name} {float(of[name].mean()):.4f}, rank correlation over sentences {rank:.2f}"),
        )
    logits = torch.randn(4000, 5, generator=g, dtype=torch.float64)
    labels = logits + torch.randn(4000, 5, generator=g, dtype=torch.float64) > 0

    def f1(above: float) -> float:
        given = logits > above
        return 2 * float((given & labels).sum()) / float(given.sum() + labels.sum())

    yield (
        "micro-F1 of multi-label probes",
        "4,000 × 5 logits",
        "logit > 0",
        number(f1(0.0)),
        f"raw logit > 0.5: {f1(0.5):.4f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", type=Path, help="folder of clones: svcca, anatome, netrep")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    n, d, times = (200, 24, 300) if args.smoke else (2000, 64, 5000)
    x, y = related(n, d)
    header = ["implementation", "what is called", "(x, y)", "(x, x)", "lmdyn (x, y)"]
    parts = {
        f"CCA, SVCCA, PWCCA ({n} samples of {d})": (header, cca_rows(x, y, args.sources)),
        "CKA": (header, cka_rows(x, y, args.sources)),
        "N_eff, λ, dimensions, Holm": (
            ["implementation", "what", "value", "lmdyn"],
            dimension_and_dynamics_rows(x, times),
        ),
        f"unrelated noise of {d} dimensions, mean of three seeds": (
            ["samples per dimension", "samples", "cca", "svcca", "pwcca", "CKA", "CKA, debiased", "N_eff"],
            mistakes_of_samples(d),
        ),
        "mistakes": (["measure", "mistake", "value", "lmdyn", "note"], mistakes(x, y)),
        "text and code of publications": (
            ["quantity", "of", "variant", "value", "other variants"],
            publications(d if args.smoke else 1024),
        ),
    }
    for title, (head, rows) in parts.items():
        print(f"\n## {title}\n")
        print(table(head, list(rows)))
    print("\nskipped:", "; ".join(dict.fromkeys(SKIPPED)) or "nothing")


if __name__ == "__main__":
    main()
