"""Ranges that observers declare are those that the table of measures tests, on random and on degenerate inputs."""

import math

import pytest

import lmdyn.callbacks
from lmdyn.runs.schema import declared
from tests.properties.table import TABLE

SAME = {
    "Similarity": {
        **{measure: f"similarity.cca.{measure}" for measure in ("cca", "svcca", "pwcca")},
        "linear_cka": "similarity.cka.linear_cka", "procrustes": "similarity.procrustes.procrustes",
        "kernel_cka": "similarity.cka.kernel_cka[rbf]", "rsa": "similarity.rsa.rsa[correlation]",
    },
    "Sparsity": {
        "chi_activation": "words.concentration.concentration",
        "rho_gradient": "words.concentration.frequency_correlation",
        "rho_gradient_error": "words.concentration.frequency_correlation_error",
        **{f"{of}_entropy": f"words.concentration.{of}_entropy" for of in ("normalized_attention", "unigram")},
    },
    "Interdependence": {"di": "interdependence.pairwise.decompositional_interdependence"},
    "LoopConvergence": {"residual": "dynamics.convergence.relative_change"},
    "EncoderDynamics": {"deviation": "dynamics.synchronization.deviation"},
    "TowerPreference": {
        "preference": "preference.preference.token_preference[mean_probability]",
        "standard_error": "preference.preference.preference_standard_error",
    },
    "Geometry": {
        "anisotropy": "geometry.vector_sums.anisotropy", "dead_units": "geometry.rectifiers.UnitSigns",
        "first_token_attention": "attention.first_token.first_token_attention",
    },
    "Trajectory": {
        "between_share": "geometry.group_variance.group_variance",
        "coarse_share": "geometry.group_variance.nested_variance",
    },
    "Downstream": {"pearson": "probing.task_metrics.regression_metrics"},
}  # fmt: skip


@pytest.mark.parametrize(("observer", "quantity"), [(o, q) for o, of in SAME.items() for q in of])
def test_a_declared_range_is_the_measure_s(observer, quantity):
    found = declared(getattr(lmdyn.callbacks, observer).recorded, quantity)
    rows = [row for row in TABLE if row.name == SAME[observer][quantity]]
    assert rows
    ends = [None if math.isinf(end) else end for row in rows for end in (row.low, row.high)]
    assert ends == [found.low, found.high] * len(rows)
