"""The numbers of the sparsity study, from observations whose values are known."""

import math

import pandas as pd
import pytest

from lmdyn.claims import At, Layer, NotMeasured, Rows
from lmdyn.claims.studies.sparsity_numbers import LogRatio, OtherSites, SinceReduction, Tokens
from tests.helpers.observed_runs import FakeRun, rows

STEPS = [0, 100, 250, 333, 750, 1000]
SITES = {"embedding": "embedding", "rnn_a": "rnn.a", "rnn_b": "rnn.b", "logits": "decoder"}
TARGET = (("role", "target"), ("pos_class", ""))
RHO = Rows("Sparsity", "rho_gradient", Layer("last"), TARGET, error="rho_gradient_error")


def curve(start, end):
    """From one value to another, linear in steps."""
    return {step: start + (end - start) * step / STEPS[-1] for step in STEPS}


def one(*others, **rho):
    """What Sparsity writes of a model whose correlations are 0 but for these, by quantity and site."""
    tables = []
    for what in ("activation", "gradient"):
        for site in SITES:
            values, errors = rho.get(f"{what}_{site}", curve(0, 0)), dict.fromkeys(STEPS, 0.01)
            for quantity, known in ((f"rho_{what}", values), (f"rho_{what}_error", errors)):
                tables.append(rows(quantity, known, site, role="target", pos_class=""))
    table = pd.concat([*tables, *others]).assign(word=None)
    return [FakeRun(observed={"sparsity": ("lmdyn.callbacks.Sparsity", {"sites": SITES}, table)})]


def rates(*values):
    known = dict(zip(STEPS, values, strict=True))
    return rows("learning_rate", known, role="", pos_class="")


def test_the_largest_elsewhere():
    known = {"activation_rnn_b": curve(0.8, -0.4), "gradient_logits": curve(0, 0.3)}
    run = one(gradient_rnn_b=curve(0, 0.9), **known)
    assert OtherSites(RHO, ("rho_activation",)).of(run).value == pytest.approx(0.4)
    assert OtherSites(RHO, ("rho_activation",)).of(run).error == pytest.approx(0.01)
    assert OtherSites(RHO, ("rho_activation",), step="first").of(run).value == pytest.approx(0.8)
    assert OtherSites(RHO).of(run).value == pytest.approx(0.3)
    assert OtherSites(RHO, but=False).of(run).value == pytest.approx(0.9)


def test_log_ratios_and_their_errors():
    groups = {"role": "target", "pos_class": "1000+"}
    tables = [rows("chi", curve(0.08, 0.1), "rnn_b", **groups)]
    tables.append(rows("chi_error", dict.fromkeys(STEPS, 1e-5), "rnn_b", **groups))
    run = one(*tables, rows("gaussian", curve(0.0885, 0.0885), "rnn_b", role="", pos_class=""))
    chi = Rows("Sparsity", "chi", "rnn_b", tuple(groups.items()), error="chi_error")
    ratio = LogRatio(At(chi), At(chi, 0)).of(run)
    assert ratio.value == pytest.approx(math.log(1.25))
    assert ratio.error == pytest.approx(math.hypot(1e-5 / 0.1, 1e-5 / 0.08))
    reference = At(Rows("Sparsity", "gaussian", "rnn_b"))
    assert LogRatio(At(chi), reference, exact=True).of(run).error == pytest.approx(1e-4)
    assert LogRatio(At(chi), reference).of(run).error is None
    assert math.isnan(LogRatio(At(RHO, 0), At(chi)).of(run).value)


def test_since_the_first_reduction():
    rho = curve(0, 0.4)  # a warmup is no reduction; since step 250, the last before
    assert SinceReduction(RHO).of(one(rates(1, 20, 20, 5, 5, 1), gradient_rnn_b=rho)).value == pytest.approx(
        0.3
    )
    for never in ([rates(*[20] * 6)], [rates(5, *[20] * 5)], []):
        with pytest.raises(NotMeasured, match="never reduced"):
            SinceReduction(RHO).of(one(*never))


def test_tokens_seen():
    assert Tokens(RHO).of(one()).value == 10_000
