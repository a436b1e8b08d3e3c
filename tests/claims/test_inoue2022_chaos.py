"""The claims on chaos: of initial networks and of training, what they read, and what voids them."""

import importlib.util
from pathlib import Path

import pandas as pd
import pytest
import yaml

from lmdyn.analysis.orbits.orbit_kind import KINDS
from lmdyn.callbacks import DepthPerformance, EncoderDynamics, Handwriting
from lmdyn.callbacks.dynamics.depth_performance import TIMES
from lmdyn.callbacks.dynamics.dynamics_settings import ShortTerm
from lmdyn.callbacks.observing.run import snake_case
from lmdyn.callbacks.observing.schema import declared
from lmdyn.claims import STUDIES, SeedPair
from lmdyn.claims.studies.chaos.published import PRETRAINED
from lmdyn.claims.studies.chaos.training import TRAINING
from lmdyn.claims.studies.inoue2022_chaos import LONG, NETWORKS, SHORT
from tests.helpers.observed_runs import FakeRun, rows

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
        assert declared(OBSERVERS[observer].recorded, quantity) is not None


def test_each_way_of_drawing_weights_is_one_condition():
    ways = [(how, deviation) for how, deviation, _ in NETWORKS.values()]
    assert len(set(ways)) == len(ways)
    kinds = {claim.name for claim in LONG if claim.name.startswith("undetermined")}
    assert kinds == {f"undetermined_{network}" for network in NETWORKS}
    assert "undetermined" in KINDS


# ------------------------------------------------------------------------------- the published network


PAPER = Path(__file__).parents[2] / "configs" / "inoue2022_chaos" / "paper"
NETWORK = {  # what is measured, of an initial network and of one that is as the publication says
    "restricted_offset": (10.0, 40.0), "synchronized_share": (1.0, 1.0),
    "chaotic_lyapunov_exponent": (6.41e-3, 9.54e-2),
    "transient_share": (0.6, 1.0), "ended_share": (0.0, 1.0), "largest_attractor_share": (0.3, 1.0),
    "restricted_mean_length": (1e3, 4e5), "local_exponent": (-1e-3, 0.02), "accuracy": (0.05, 0.6),
    "frozen": (0.2, 0.7),
    "fine_tuned": (0.2, 0.8), "best_nmse": (0.5, 0.1), "best_start": (0.0, 7.0), "best_length": (8.0, 28.0),
}  # fmt: skip
ALIKE = {
    "pretrained_synchronizes",
    "pretrained_broad_range",
    "pretrained_plateau",
}  # of initial networks, too


def as_said(name, published):
    """A run of the profile ``paper``, whose observers have its settings: at their times, lengths and names."""
    number = {quantity: both[published] for quantity, both in NETWORK.items()}
    observers = yaml.safe_load((PAPER / "observers.yaml").read_text())["trainer"]["callbacks"]
    settings = {o["init_args"].get("name", snake_case(o["class_path"])): o["init_args"] for o in observers}
    short = ShortTerm()
    run = {}
    for folder in ("encoder_dynamics", "encoder_dynamics_stsb"):
        stsb = published and folder.endswith("stsb")
        lengths = settings[folder].get("lengths", [8, 16, 64])
        table = [rows(q, {0: number[q]}, length=n) for n in (32, *lengths) for q in NETWORK if q in SHARED]
        table += [
            rows("local_exponent", {0: number["local_exponent"] + 0.05 * stsb}, term="short", t=t)
            for t in range(0, short.steps, short.tau)
        ]
        for t in short.times:  # falls fast where it was raised
            dimension = (30.0 if t <= 50 else 15.0) / (2 if stsb else 1) if published else 5.0
            table += [
                rows("effective_dimension", {0: dimension}, t=t),
                rows("share_of_ceiling", {0: 0.1}, t=t),
            ]
        if settings[folder]["long_term"]["steps"]:
            table += [rows(q, {0: number[q]}) for q in NETWORK if q in OF_THE_LONG_TERM]
        run[folder] = ("lmdyn.callbacks.EncoderDynamics", {}, pd.concat(table))
    table = [
        rows("accuracy", {0: number["accuracy"]}, how=how, where=where, t=t)
        for how in ("fixed", "retrained") for where in ("all", "mask") for t in TIMES
    ]  # fmt: skip
    table += [
        rows("pearson", {0: number["frozen"] + (-t if published else t) / 1000}, how="frozen", t=t)
        for t in TIMES
    ]
    tuned = settings["depth_performance"]["fine_tuned_times"]
    table += [rows("pearson", {0: number["fine_tuned"]}, how="fine_tuned", t=t) for t in tuned]
    run["depth_performance"] = ("lmdyn.callbacks.DepthPerformance", {}, pd.concat(table))
    table = [rows(q, {0: number[q]}) for q in NETWORK if q.startswith("best_")]
    run["handwriting"] = ("lmdyn.callbacks.Handwriting", {}, pd.concat(table))
    condition = {"model.pretrained": "albert/albert-large-v2"} if name == "pretrained" else INITIAL
    return FakeRun(name, SeedPair(1, 1), condition, run)


SHARED = ("restricted_offset", "synchronized_share")
OF_THE_LONG_TERM = (
    "chaotic_lyapunov_exponent", "transient_share", "ended_share", "largest_attractor_share", "restricted_mean_length",
)  # fmt: skip
INITIAL = {
    "model.config.hidden_size": 1024, "model.initialization": "truncated_normal",
    "model.config.initializer_range": 0.02,
}  # fmt: skip


@pytest.mark.parametrize("claim", PRETRAINED, ids=lambda claim: claim.name)
def test_the_published_network_is_asked_what_is_said_of_it(claim):
    """Each number is there at the settings of ``paper``, in its region if all is as printed, and else outside."""
    initial = as_said("initial_1", False)
    for published in (True, False):
        runs = [as_said("pretrained", published), initial]
        inside = [part.number.of(runs).value in part.region for part in claim.parts]
        assert all(inside) if published or claim.name in ALIKE else not any(inside)
        assert all(c.number.of(runs).value in c.region for c in claim.void_unless)


def test_claims_on_initial_networks_are_measured_beside_another_observer():
    """Of the two observers of dynamics in ``paper``, they mean the one with its class's name."""
    runs = [as_said(name, name == "pretrained") for name in ("pretrained", "initial_1")]
    found = {claim.name: claim for claim in LONG}["without_transient_truncated"].parts[0].number.of(runs)
    assert found.value == NETWORK["transient_share"][0]


def test_which_runs_had_been_seen():
    study = STUDIES["inoue2022_chaos"]
    assert study.was_seen(1, INITIAL)
    assert not study.was_seen(11, INITIAL)
    assert not study.was_seen(1, {"model.pretrained": "albert/albert-large-v2"})


# ------------------------------------------------------------------------------- survival


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
    rows = rows.assign(
        way="normal", exponent=[0.01, 0.02, -0.1, -0.3, 0.0, 0.01],
        whole_length=[40_000.0] * 2 + [4000.0] * 2 + [0.0] * 2,
        kind=["chaotic", "chaotic", "cycle", "cycle", "torus", "undetermined"],
    )  # fmt: skip
    said = example.kinds_table(rows)
    assert said[2:6] == [
        "| normal | chaotic | 2 | 1 | 0.0100, 0.0150, 0.0200 |",
        "| normal | cycle | 2 | 1 | -0.3000, -0.2000, -0.1000 |",
        "| normal | torus | 1 | 1 | 0.0000, 0.0000, 0.0000 |",
        "| normal | undetermined | 1 | 1 | 0.0100, 0.0100, 0.0100 |",
    ]
    assert said[6] == "\nIn 2 of 3 networks all sentences end on one kind."
    assert said[7:] == ["normal, network 2: chaos ended at 4,000 steps, then cycle"] * 2
