"""The table of an observation: what is undefined, and what is not finite."""

import logging
import math

import pandas as pd
import pytest

from lmdyn.callbacks.observing.sums import tabulate


def test_an_undefined_number_does_not_hide_a_diverged_one_of_its_site(caplog):
    summary = pd.DataFrame({"quantity": ["rho", "chi"], "site": "h1", "value": ["", math.nan]})
    rows = [({"site": "h2"}, {"rho": "too few words", "chi": 0.5}), summary]
    with caplog.at_level(logging.WARNING):
        table = tabulate(rows, {}, "sparsity", 3)
    assert table.set_index(["site", "quantity"])["value"].isna().to_dict() == {
        ("h2", "rho"): True, ("h2", "chi"): False, ("h1", "rho"): True, ("h1", "chi"): True,
    }  # fmt: skip
    assert "sparsity: values are not finite at step 3 in h1: the model has diverged" in caplog.text
    assert "no value at step 3 of (rho, h2): too few words" in caplog.text


def test_what_is_expected_to_be_undefined_is_not_told(caplog):
    table = tabulate([pd.DataFrame({"quantity": ["rho"], "site": "h1", "value": [""]})], {}, "sparsity", 3)
    assert table["value"].isna().all()
    assert not caplog.records


def test_a_column_that_is_not_declared_is_refused():
    with pytest.raises(
        ValueError, match=r"norms: .* undeclared columns position.* `columns`, as in columns = \{'position'"
    ):
        tabulate([({"site": "h1", "position": 0}, {"norm": 1.0})], {}, "norms", 3)


def test_infinity_is_told(caplog):
    table = tabulate([({"site": "h1"}, {"norm": math.inf})], {}, "norms", 3)
    assert table["value"].tolist() == [math.inf]
    assert "norms: values are not finite at step 3 in h1" in caplog.text
