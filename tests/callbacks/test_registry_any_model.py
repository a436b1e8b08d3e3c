"""Observers with found sites and measured labels, and Shapley interactions: invisible, live = replayed, tags."""

from pathlib import Path
from unittest import mock

import pandas as pd
import pytest

from lmdyn.callbacks import ObservationStore
from lmdyn.callbacks.observing.run import snake_case
from lmdyn.cli.__main__ import main
from tests.callbacks import test_registry as registry
from tests.golden import runs as golden

pytestmark = pytest.mark.slow

ANY = {
    "LearningCurves": {},
    "Sparsity": {},
    "Similarity": {"measures": ["linear_cka"]},
    "Geometry": {"max_samples": 40},
    "Trajectory": {"words": 6, "min_count": 2},
    "DiagnosticProbe": {"tasks": ["parity"], "targets": ["current"], "classifier": {"epochs": 1}},
    "WordClusters": {"components": 3, "words": 30},
    "Landscape": {"plane": "random", "points": 3, "plane_size": 3, "bootstrap": 5, "max_tokens": 200},
    "Curvature": {"max_tokens": 200, "probes": 2, "tolerance": 0.1},
    "WeightSpectra": {},
    "LossChangeAllocation": {"max_tokens": 200, "bands": [5], "most_points": 3},
}
ATTENTION = {"AttentionPatterns": {}}
INDUCTION = {"Induction": {"length": 5, "sequences": 10, "vocab_size": 40}}
DYNAMICS = {
    "EncoderDynamics": {
        "length": 6, "lengths": [4], "sentences": 2, "examples": 1,
        "short_term": {"steps": 4, "tau": 2, "sentences": 2},
        "long_term": {"steps": 4, "tau": 2, "check": 0, "transverse_skip": 0},
    }
}  # fmt: skip
# what is found differs between models: labels, sites, matrices; every observer on each: tests/test_architectures.py
FOUND = {cls: ANY[cls] for cls in ("LearningCurves", "Similarity", "WeightSpectra")}
SHAPLEY = {
    "Interdependence": {
        "backend": "shapley", "max_distance": 3, "min_pairs": 5, "max_tokens": 60, "samples": 4, "exact_up_to": 4,
        "max_length": 12, "longer": "skip",
    }
}  # fmt: skip
MODELS = {
    "own_lstm": FOUND,
    "llama": {**ANY, **ATTENTION, **INDUCTION, **DYNAMICS},
    "mamba": FOUND,
    "t5": {**FOUND, **ATTENTION},
    **{f"{name} of sentences": SHAPLEY for name in ("lstm", "llama", "mamba", "t5")},
}


def fit(folder: Path, name: str, observers: dict) -> Path:
    """A run of a model by its dotted path, observed."""
    kind, _, sentences = name.partition(" of ")
    model = registry.built("tests.helpers.any_model.AnyModel", name=kind)
    text = registry.built("tests.helpers.any_model.Text", labels=7 if name == "t5" else None)
    language = {
        "model": registry.LANGUAGES["recurrent"]["model"] if kind == "lstm" else model,
        "data": golden.WORDS if sentences else text,
    }
    callbacks = [
        registry.built(cls, **arguments, schedule=registry.SHORT) for cls, arguments in observers.items()
    ]
    with mock.patch.dict(registry.LANGUAGES, {name: language}):
        return registry.fit(folder, callbacks, name)


@pytest.fixture(scope="module", params=MODELS)
def observed(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, fit(folder / "observed", request.param, MODELS[request.param])


def test_observation_is_invisible(observed, tmp_path):
    name, run = observed
    plain = fit(tmp_path, name, {})
    assert registry.identical(registry.final_weights(plain), registry.final_weights(run))


def test_live_equals_replayed(observed):
    name, run = observed
    out = run.parent / "replayed"
    main(["analyze", str(run), "--out", str(out), "--scheduled"])
    for cls in MODELS[name]:
        folder = Path("observations") / snake_case(cls)
        live, replayed = (pd.read_parquet(root / folder) for root in (run, out))
        assert sorted(live["step"].unique()) == [0, 3]
        pd.testing.assert_frame_equal(live, replayed, check_exact=True)
        assert ObservationStore(run / folder).about() == ObservationStore(out / folder).about()
