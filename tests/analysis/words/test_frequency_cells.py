"""Means over word types by frequency with errors over text, and samples of words: against loops over tokens."""

import math
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
import torch

from lmdyn.analysis.words.frequency_cells import BLOCKS, FrequencyCells, frequency_samples

V = 60
RANDOM = np.random.default_rng(0)
COUNTS = torch.from_numpy(np.sort(RANDOM.integers(0, 5000, V))[::-1].copy())
COUNTS[30:] = torch.from_numpy(RANDOM.integers(0, 400, V - 30))
COUNTS[50:55] = torch.arange(5)


def samples():
    ids = torch.arange(V)
    words = ids >= 2
    every = {"open": (3, 0), "closed": (3, 1), "open_matched": (6, 0), "closed_matched": (6, 1)}
    return {"": words, **{name: words & (ids % n == i) for name, (n, i) in every.items()}}


def tokens(n=3000):
    g = torch.Generator().manual_seed(1)
    words = torch.randint(-1, V, (n,), generator=g)
    blocks = torch.randint(0, BLOCKS, (n,), generator=g)
    chi = torch.rand(n, generator=g) + 0.01 * blocks
    chi[::17] = torch.nan
    return words, blocks, chi


def members(sample):
    """Words of a sample as it is called."""
    pos_class, _, band = sample.rpartition("_")
    inside = samples()[pos_class if pos_class else ""].clone()
    if band == "matched":
        return samples()[sample]
    low, _, high = band.rstrip("+").partition("-")
    counts, top = COUNTS, int(high) if high else math.inf
    return inside & (counts >= int(low)) & (counts <= top)


def naive(sample, words, blocks, chi):
    """The weighted mean and its error, by loops."""
    inside = members(sample)
    kept = [i for i in range(len(words)) if words[i] >= 0 and inside[words[i]] and not chi[i].isnan()]
    weight = {i: 1 / max(1, int(COUNTS[words[i]])) for i in kept}
    mean = sum(weight[i] * float(chi[i]) for i in kept) / sum(weight.values())
    residuals = defaultdict(float)
    for i in kept:
        residuals[int(blocks[i])] += weight[i] * (float(chi[i]) - mean)
    n = len(residuals)
    error = (
        math.sqrt(sum(r**2 for r in residuals.values()) * n / (n - 1)) / sum(weight.values())
        if n > 1
        else math.nan
    )
    return mean, error


def filled(n_batches):
    cells = FrequencyCells(COUNTS, samples())
    for batch in zip(*(torch.chunk(t, n_batches) for t in tokens()), strict=True):
        cells.update("target", batch[0], batch[1], {"chi_gradient/h": batch[2]})
    return cells.table().set_index(["quantity", "pos_class"])["value"]


def test_means_and_errors_by_band_class_and_matched_sample():
    table = filled(7)
    found = {sample for _, sample in table.index}
    assert {"0-9", "10-99", "100-999", "1000+", "open_1000-2999", "closed_3000+", "open_matched"} <= found
    for sample in found:
        mean, error = naive(sample, *tokens())
        assert table["chi_gradient_types", sample] == pytest.approx(mean, rel=1e-9), sample
        assert table["chi_gradient_types_error", sample] == pytest.approx(error, rel=1e-9), sample
    pd.testing.assert_series_equal(filled(1), table)
    unweighted = tokens()[2][[bool(w >= 0 and members("1000+")[w]) for w in tokens()[0]]].nanmean().item()
    assert table["chi_gradient_types", "1000+"] != pytest.approx(unweighted, rel=1e-4)  # the control


def test_the_error_is_the_spread_over_other_texts():
    """Sentences have something in common: an error of independent tokens is far too small."""
    g = torch.Generator().manual_seed(4)
    found, errors = [], []
    for _ in range(150):
        words = torch.randint(0, 20, (64 * 30,), generator=g)
        blocks = torch.arange(64).repeat_interleave(30)
        chi = torch.randn(64, generator=g)[blocks] + torch.randn(len(words), generator=g)
        cells = FrequencyCells(torch.full((20,), 50), {"": torch.ones(20, dtype=torch.bool)})
        cells.update("target", words, blocks, {"chi_gradient/h": chi})
        table = cells.table().set_index("quantity")["value"]
        found.append(table["chi_gradient_types"])
        errors.append(table["chi_gradient_types_error"])
    assert np.mean(errors) == pytest.approx(np.std(found), rel=0.15)
    assert math.sqrt(2 / (64 * 30)) < 0.5 * np.std(found)


def test_few_blocks_give_no_error():
    cells = FrequencyCells(COUNTS, samples())
    words, blocks, chi = tokens()
    cells.update("target", words, blocks % 4, {"chi_gradient/h": chi})
    table = cells.table()
    assert table[table["quantity"].eq("chi_gradient_types_error")]["value"].isna().all()
    assert table[table["quantity"].eq("chi_gradient_types")]["value"].notna().all()
    assert cells.blocks() == 4


def test_samples_without_the_most_frequent():
    found = frequency_samples(COUNTS, samples())
    order = sorted(range(2, V), key=lambda i: -int(COUNTS[i]))
    rest = {i: i in order[20:] for i in range(V)}
    assert found["no_top20"].tolist() == [rest[i] for i in range(V)]
    assert found["count100"].tolist() == [i >= 2 and int(COUNTS[i]) >= 100 for i in range(V)]
    assert torch.equal(found["count100_no_top20"], found["count100"] & found["no_top20"])
    assert torch.equal(found["open_no_top20"], samples()["open"] & found["no_top20"])
    found = frequency_samples(COUNTS, {"": samples()[""]})
    assert set(found) == {"no_top20", "count100", "count100_no_top20"}
