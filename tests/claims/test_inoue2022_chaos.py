"""The claims on chaos: of initial networks and of training, what they read, and what voids them."""

import importlib.util
from pathlib import Path

import pandas as pd
import pytest

from lmdyn.analysis.orbits.orbit_kind import KINDS
from lmdyn.callbacks import DepthPerformance, EncoderDynamics, Handwriting
from lmdyn.claims import STUDIES
from lmdyn.claims.studies.chaos.published import PRETRAINED
from lmdyn.claims.studies.chaos.training import TRAINING
from lmdyn.claims.studies.inoue2022_chaos import LONG, NETWORKS, SHORT

OBSERVERS = {cls.__name__: cls for cls in (DepthPerformance, EncoderDynamics, Handwriting)}


def test_each_claim_is_said_once():
    study = STUDIES["inoue2022_chaos"]
    assert study.claims == SHORT + LONG + PRETRAINED + TRAINING
    assert len({claim.fingerprint for claim in study.claims}) == len(study.claims)
    for claim in study.claims:
        assert claim.floor
        assert claim.where.startswith(("section II", "figure 2", "appendix D", "ours"))


def test_uses_of_a_model_that_learned_nothing_are_void():
    """What is claimed of the trained model needs one that is; of how it got there, it does not."""
    for claim in TRAINING:
        learned = [c for c in claim.void_unless if "DepthPerformance/cross_entropy" in c.number.reads()]
        assert bool(learned) == (claim.name not in ("contracts_first", "accuracy_learned"))


def test_dimensions_near_their_ceiling_are_void():
    for claim in TRAINING:
        ceiling = [c for c in claim.void_unless if "EncoderDynamics/share_of_ceiling" in c.number.reads()]
        assert bool(ceiling) == claim.name.startswith("dimension_t")


@pytest.mark.parametrize("claim", STUDIES["inoue2022_chaos"].claims, ids=lambda claim: claim.name)
def test_quantities_are_those_that_observers_write(claim):
    for name in (name for part in claim.parts for name in part.number.reads()):
        observer, quantity = name.split("/")
        assert quantity in str(OBSERVERS[observer].__doc__)


def test_each_way_of_drawing_weights_is_one_condition():
    ways = [(how, deviation) for how, deviation, _ in NETWORKS.values()]
    assert len(set(ways)) == len(ways)
    kinds = {claim.name for claim in LONG if claim.name.startswith("undetermined")}
    assert kinds == {f"undetermined_{network}" for network in NETWORKS}
    assert "undetermined" in KINDS


def test_survival_over_networks():
    """The example: two networks of two sentences, one of which is chaotic to the horizon, the other until 4,000."""
    path = Path(__file__).parents[2] / "examples" / "network_survival.py"
    spec = importlib.util.spec_from_file_location("network_survival", path)
    assert spec
    assert spec.loader
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    rows = pd.DataFrame(
        {
            "network": [1, 1, 2, 2, 3, 3],
            "length": [10_000.0, 10_000.0, 4000.0, 4000.0, 0.0, 0.0],
            "censored": [True, True, False, False, False, False],
        }
    )
    cells = [cell.strip() for cell in example.line("normal", rows).strip("|").split("|")]
    assert cells[:5] == ["normal", "3", "6", "4", "2"]
    assert cells[6].startswith("4,667 ")  # of 10,000, 4,000 and 0
    assert cells[5].startswith(f"{2 / (2 * 9000 + 2 * 3000):.1e}")  # ends, over the time after 1,000 steps
    none = example.line("normal", rows.assign(length=0.0, censored=False))
    assert "–" in none
    assert "0 (all networks alike: no interval)" in none
