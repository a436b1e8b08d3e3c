"""The numbers of the sparsity study, from observations whose values are known."""

import math

import pytest

from lmdyn.claims import At, Layer, NotMeasured, Rows
from lmdyn.claims.studies.sparsity_numbers import LogRatio, OtherSites, SinceReduction, Tokens
from tests.helpers.observed_runs import FakeRun
from tests.helpers.sparsity_observations import curve, observations

GRADIENT = ("gradient", "rnn_b", "target")
RHO = Rows(
    "Sparsity",
    "rho_gradient",
    Layer("last"),
    (("role", "target"), ("pos_class", "")),
    error="rho_gradient_error",
)


def one(**truth):
    return [FakeRun(observed=observations(0.0, **truth))]


def test_the_largest_elsewhere():
    rho = {
        GRADIENT: curve(0, 0.9),
        ("activation", "rnn_b", "target"): curve(0.8, -0.4),
        ("gradient", "logits", "target"): curve(0, 0.3),
    }
    run = one(rho=rho)
    assert OtherSites(RHO, ("rho_activation",)).of(run).value == pytest.approx(0.4)
    assert OtherSites(RHO, ("rho_activation",)).of(run).error == pytest.approx(0.01)
    assert OtherSites(RHO, ("rho_activation",), step="first").of(run).value == pytest.approx(0.8)
    assert OtherSites(RHO).of(run).value == pytest.approx(0.3)
    assert OtherSites(RHO, but=False).of(run).value == pytest.approx(0.9)


def test_log_ratios_and_their_errors():
    groups = (("role", "target"), ("pos_class", "1000+"))
    chi = Rows("Sparsity", "chi_gradient_types", "rnn_b", groups, error="chi_gradient_types_error")
    run = one(chi={"1000+": curve(0.08, 0.1)})
    ratio = LogRatio(At(chi), At(chi, 0)).of(run)
    assert ratio.value == pytest.approx(math.log(1.25))
    assert ratio.error == pytest.approx(math.hypot(1e-5 / 0.1, 1e-5 / 0.08))
    reference = At(Rows("Sparsity", "chi_gaussian", "rnn_b"))
    assert LogRatio(At(chi), reference, exact=True).of(run).error == pytest.approx(1e-4)
    assert LogRatio(At(chi), reference).of(run).error is None
    assert math.isnan(LogRatio(At(RHO, 0), At(chi)).of(run).value)


def test_since_the_first_reduction():
    rates = [1, 20, 20, 5, 5, 1]  # a warmup is no reduction
    run = one(rho={GRADIENT: curve(0, 0.4)}, rates=rates)
    assert SinceReduction(RHO).of(run).value == pytest.approx(0.4 * 0.75)  # since step 250, the last before
    for never in ([20] * 6, [5, *[20] * 5], ()):
        with pytest.raises(NotMeasured, match="never reduced"):
            SinceReduction(RHO).of(one(rates=never))


def test_tokens_seen():
    assert Tokens(RHO).of(one(per_step=7)).value == 7000
