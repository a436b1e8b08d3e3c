"""Interdependence with the backend shapley, as the registry tests each observer: on an LSTM, Llama, Mamba and T5."""

from unittest import mock

import pandas as pd
import pytest

from lmdyn.callbacks import Interdependence
from lmdyn.cli.__main__ import main
from tests.callbacks import test_registry as registry
from tests.golden import runs as golden
from tests.helpers.recorded import check_tags, check_values, logged_tags

pytestmark = pytest.mark.slow

SHAPLEY = {
    "backend": "shapley", "max_distance": 3, "min_pairs": 5, "max_tokens": 60, "samples": 4, "exact_up_to": 4,
    "max_length": 12, "longer": "skip", "schedule": registry.SHORT,
}  # fmt: skip


KINDS = {
    "lstm": registry.LANGUAGES["recurrent"]["model"],
    **{
        name: registry.built("tests.helpers.any_model.AnyModel", name=name)
        for name in ("llama", "mamba", "t5")
    },
}


@pytest.fixture(scope="module", params=KINDS)
def runs(request, tmp_path_factory):
    """A run without observers, and one with."""
    language = {request.param: {"model": KINDS[request.param], "data": golden.WORDS}}
    with mock.patch.dict(registry.LANGUAGES, language):
        plain = registry.fit(tmp_path_factory.mktemp("plain"), [], request.param)
        observer = {"class_path": "Interdependence", "init_args": SHAPLEY}
        observed = registry.fit(tmp_path_factory.mktemp("observed"), [observer], request.param)
    return plain, observed, request.param


def test_observation_is_invisible(runs):
    plain, observed, _ = runs
    assert registry.identical(registry.final_weights(plain), registry.final_weights(observed))


def test_live_equals_replayed(runs):
    _, observed, kind = runs
    out = observed.parent / "replayed"
    main(["analyze", str(observed), "--out", str(out), "--scheduled"])
    live, replayed = (
        pd.read_parquet(registry.folder_of(root, "Interdependence")) for root in (observed, out)
    )
    pd.testing.assert_frame_equal(live, replayed, check_exact=True)
    assert set(live["site"]) - {""} == ({"hidden"} if kind == "t5" else {"hidden", "logits"})
    assert live["quantity"].eq("sampling_error").any()
    di = live[live["quantity"].eq("di")]
    assert di["value"].gt(0).all()
    assert di.groupby("step")["value"].mean().nunique() == 2  # training changes it


def test_tags_and_values_are_declared(runs):
    _, observed, kind = runs
    logged = logged_tags(Interdependence, registry.folder_of(observed, "Interdependence"))
    check_tags(Interdependence, "interdependence", logged)
    check_values(Interdependence, pd.read_parquet(registry.folder_of(observed, "Interdependence")))
    assert any("/logits/" in tag for tag in logged) == (kind != "t5")
