"""The claims of the SVCCA study, on observations of the organism's observers whose truth is planted."""

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from lmdyn.callbacks import Similarity
from lmdyn.claims import STUDIES, SeedPair
from lmdyn.claims.judge import judge
from lmdyn.claims.studies.svcca_models import TaggerTest
from tests.helpers.observed_runs import FakeRun

ORGANISM = Path(__file__).parents[2] / "configs/saphra2019_svcca/organism"
STEPS = (0, 156, 312, 624, 936, 1248, 1560)
SITES = ("embedding", "h1", "h2")
OBSERVERS = [
    (callback["class_path"], callback["init_args"])
    for callback in yaml.safe_load((ORGANISM / "observers.yaml").read_text(encoding="utf-8"))["trainer"][
        "callbacks"
    ]
]
CHAIN = yaml.safe_load((ORGANISM / "config.yaml").read_text(encoding="utf-8"))["config"]


def names_of(references):
    for name, given in references.items():
        yield from given["init_args"]["names"] if given["class_path"] == "Checkpoints" else [name]


def planted(measure, name, reference, site, step):
    """CCA to the other seed rises and SVCCA falls; UPOS is above the other tasks, but not at equal rank."""
    done = step / STEPS[-1]
    if name == "other_seed":
        return {"svcca": 0.8 - 0.2 * done}.get(measure, 0.4 + 0.2 * done) if reference == "partner" else 0.2
    if name == "own_end":
        return 0.5 + 0.5 * done + (0.02 * (1 - done) if site == "h2" else 0)
    base = {"upos": 0.5 if measure == "svcca" else 0.44, "semtag": 0.4}.get(reference, 0.45)
    return base - (0.2 if "topic" in reference else 0)


def similarities(arguments, noise):
    rows = []
    for reference in names_of(arguments["reference"]):
        itself = reference == "itself"
        pairs = (
            [(a, b) for i, a in enumerate(SITES) for b in SITES[i + 1 :]]
            if itself
            else [(s, s) for s in SITES]
        )
        for own, site in pairs:
            tagger = "taggers" in str(arguments["reference"])
            their = "h1" if tagger and site == "h2" else site
            for measure in arguments["measures"]:
                for step in STEPS:
                    value = planted(measure, arguments["name"], reference, own, step) + noise
                    ends = {measure: value, f"{measure}_corrected": value, f"{measure}_error": 0.001}
                    rows += [(step, 10 * step, q, own, reference, their, v) for q, v in ends.items()]
    return pd.DataFrame(
        rows, columns=["step", "tokens", "quantity", "site", "reference", "reference_site", "value"]
    )


def probes(arguments, noise):
    rows = []
    values = {"accuracy": 0.7, "selectivity": 0.2, "codelength": 2.0, "compression": 2.0}
    ends = {f"{q}_{end}": values[q] + shift for q in ("accuracy", "selectivity")
            for end, shift in (("low", -0.01), ("high", 0.01))}  # fmt: skip
    for task in arguments["tasks"]:
        for target in ("current", "next"):
            for site in SITES:
                for step in STEPS:
                    for quantity, value in {**values, **ends}.items():
                        drift = noise * step / STEPS[-1]  # no two seeds alike
                        rows.append((step, 10 * step, quantity, site, task, target, value + noise + drift))
    return pd.DataFrame(rows, columns=["step", "tokens", "quantity", "site", "task", "target", "value"])


def runs_of(seed):
    noise = 0.002 * (seed - 4)
    seen = {}
    for kind, arguments in OBSERVERS:
        make = similarities if kind == "Similarity" else probes
        seen[arguments["name"]] = (
            f"lmdyn.callbacks.{kind}",
            {"sites": dict.fromkeys(SITES)},
            make(arguments, noise),
        )
    seeds = SeedPair(seed, seed)
    accuracies = {f"{t}_next": 0.5 for t in CHAIN["taggers"]} | {
        f"{t}_current": 0.9 for t in CHAIN["current"]
    }
    accuracies |= {f"shuffled_{t}_next": 0.2 for t in CHAIN["shuffled"]} | {
        "topic_next": 0.21,
        "topic_current": 0.21,
    }
    taggers = [
        FakeRun(f"{name}_{seed}", seeds, tested={"test_accuracy": value + noise, "test_majority": 0.2})
        for name, value in accuracies.items()
    ]
    return [FakeRun(f"lm_{seed}", seeds, observed=seen), *taggers]


CHOSEN = (
    "other_seed_rises_cca", "other_seed_rises_svcca_30", "other_seed_rises_svcca", "upos_above_semantic_svcca",
    "upos_above_semantic_svcca_30", "probes_stable_accuracy_next", "own_end_moves_cca", "least_topic_svcca",
    "rises_topic_cca", "least_topic_adam_svcca", "least_topic_sentences_cca",
)  # fmt: skip


@pytest.fixture(scope="module")
def judged():
    study = STUDIES["saphra2019_svcca"]
    chosen = replace(study, claims=tuple(claim for claim in study.claims if claim.name in CHOSEN))
    assert len(chosen.claims) == len(CHOSEN)
    return judge(chosen, [run for seed in range(2, 7) for run in runs_of(seed)])


@pytest.mark.slow
def test_the_organism_measures_all_but_what_it_does_not_train():
    runs = runs_of(2)
    claims = STUDIES["saphra2019_svcca"].claims
    assert len(claims) > 100
    for claim in claims:
        if any(measure in claim.name for measure in ("_cca", "pwcca", "svcca_30")):
            continue
        if "topic_sentences" in claim.name or "_other_text_" in claim.name:
            with pytest.raises(LookupError):
                [n.number.of(runs) for n in (*claim.parts, *claim.void_unless)]
            continue
        for number in (*(p.number for p in (*claim.parts, *claim.void_unless)), claim.floor):
            if not isinstance(number, str):
                assert math.isfinite(number.of(runs).high) or "later" in claim.name, claim.name


@pytest.mark.slow
def test_verdicts_are_those_of_what_was_planted(judged):
    verdicts = {row.claim.name: row.verdict for row in judged}
    assert verdicts["other_seed_rises_cca"] == verdicts["other_seed_rises_svcca_30"] == "holds"
    assert verdicts["other_seed_rises_svcca"] == "fails"
    assert verdicts["upos_above_semantic_svcca"] == "holds"
    assert verdicts["upos_above_semantic_svcca_30"] == "fails"  # at equal rank
    assert verdicts["probes_stable_accuracy_next"] == "holds"
    assert verdicts["own_end_moves_cca"] == "holds"


@pytest.mark.slow
def test_a_tagger_at_chance_has_no_verdicts(judged):
    for row in judged:
        if row.claim.name.startswith(
            ("least_topic_", "below_floor_topic_", "rises_topic_", "later_than_upos_topic_")
        ):
            learned = "topic_adam" in row.claim.name
            if "topic_sentences" not in row.claim.name:
                assert (row.verdict == "void") != learned, (row.claim.name, row.reasons)
    assert judged["least_topic_adam_svcca"].verdict == "holds"


def test_questions_whose_answer_depends_on_the_measure_have_all_of_them():
    variants = {}
    for claim in STUDIES["saphra2019_svcca"].claims:
        variants.setdefault(claim.question, set()).add(claim.variant)
    figure_4 = "Does similarity to another seed rise over training?"
    assert len(variants[figure_4]) == 5
    assert sum("topic by" in v for v in variants["Is topic least captured?"]) == 6
    quantities = {m for _, a in OBSERVERS for m in a.get("measures", ())}
    assert quantities == {"cca", "svcca", "svcca_30", "pwcca", "linear_cka"}
    assert Similarity(measures=sorted(quantities)).measures  # all of them are known


def test_taggers_are_found_by_their_names():
    runs = runs_of(3)
    assert TaggerTest("upos_next", "accuracy").of(runs).value == pytest.approx(0.498)
    assert TaggerTest("shuffled_upos_next", "accuracy").of(runs).value == pytest.approx(0.198)
    with pytest.raises(LookupError, match="no tagger 'upos'"):
        TaggerTest("upos", "accuracy").of(runs)
    with pytest.raises(ValueError, match="several taggers 'upos_next' of one seed"):
        TaggerTest("upos_next", "accuracy").of([*runs, *runs_of(4)])
