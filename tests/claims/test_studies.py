"""The claims of all studies: what they read, floors and conditions, and fingerprints that records were made with."""

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import lmdyn.callbacks
from lmdyn.analysis.statistics.correlation import somers_d
from lmdyn.callbacks.words.token_learning import POS_GROUPS
from lmdyn.callbacks.words.token_learning import VERB_FORMS as KNOWN_FORMS
from lmdyn.claims import STUDIES, At, NotMeasured, Number, Rows, SeedPair
from lmdyn.claims.numbers import untrained
from lmdyn.claims.recorded import RecordsFolder
from lmdyn.claims.studies.chiang2020_embryology import BY_FREQUENCY, CONTENT, FUNCTION, ORDERS, VERB_FORMS
from lmdyn.claims.studies.svcca_numbers import TaggerTest
from lmdyn.datamodules import GrammarCorpus
from lmdyn.runs.schema import declarations, declared
from tests.helpers.observed_runs import FakeRun

DOCS = Path(__file__).parents[2] / "docs"
TESTED = {"test_accuracy", "test_majority"}
RECORDED = [name for name in STUDIES if (DOCS / "records" / name).is_dir()]


def numbers_of(claim):
    numbers = [*(part.number for part in claim.parts), *(c.number for c in claim.void_unless), claim.floor]
    return [number for number in numbers if isinstance(number, Number)]


@pytest.mark.parametrize("name", STUDIES)
def test_claims_read_what_observers_write(name):
    for claim in STUDIES[name].claims:
        for read in (read for number in numbers_of(claim) for read in number.reads()):
            observer, _, quantity = read.partition("/")
            known = (observer == "test" and quantity in TESTED) or quantity == "learning_rate"
            cls = getattr(lmdyn.callbacks, observer, None)
            assert known or declared(declarations(cls), quantity) is not None, (claim.name, read)


@pytest.mark.parametrize("name", STUDIES)
def test_each_claim_is_stated_once(name):
    """No two claims of one study have the same number, region, floor and conditions."""
    claims = STUDIES[name].claims
    assert len({claim.fingerprint for claim in claims}) == len(claims)
    assert all(claim.where and claim.matters and claim.floor for claim in claims)


@pytest.mark.parametrize("name", RECORDED)
def test_fingerprints_are_those_of_the_results(name):
    """Runs registered them before they were observed: a claim that changes is exploratory, and a new one is not it."""
    table = pd.read_csv(DOCS / "results" / f"{name}.csv").dropna(subset="fingerprint")
    written = dict(zip(table["claim"], table["fingerprint"], strict=True))
    assert {claim.name: claim.fingerprint[:12] for claim in STUDIES[name].claims} == written


@pytest.mark.parametrize("name", RECORDED)
def test_records_registered_some_of_the_claims(name):
    known = {claim.name: claim.fingerprint for claim in STUDIES[name].claims}
    found = [
        run.registered.get(name, {})
        for folder in (DOCS / "records" / name).iterdir()
        for run in RecordsFolder(folder).runs
    ]
    assert any(said.get(claim) == fingerprint for said in found for claim, fingerprint in known.items())


def test_the_untrained_number_is_at_step_0():
    rows = Rows("Sparsity", "rho_gradient", "h1")
    for claim in (claim for study in STUDIES.values() for claim in study.claims):
        for number in numbers_of(claim):
            assert untrained(untrained(number)) == untrained(number)
            assert untrained(number).reads() == number.reads()
    assert untrained(At(rows)) == At(rows, 0)
    assert untrained(At(rows, 0.5)) == At(rows, 0.5)


def test_claims_on_a_trained_model_are_void_of_one_that_is_not():
    for name, exceptions in (
        ("geiping2025_loops", {"fixed_points_untrained"}),
        ("saphra2021_attention", set()),
        ("he2022_twotower", set()),
    ):
        assert {claim.name for claim in STUDIES[name].claims if not claim.void_unless} == exceptions


def test_groups_are_those_of_the_observer():
    assert {*FUNCTION, *CONTENT} == set(POS_GROUPS)
    assert {*VERB_FORMS, "VBP"} == set(KNOWN_FORMS)  # which the publication's table 4 has not


def test_orders_that_frequency_explains_are_told():
    """Of the organism's training text: the order by the mean frequency of a group's words."""
    sizes = {
        "n_nouns": 600,
        "n_verbs": 225,
        "n_adjectives": 175,
        "n_adverbs": 75,
        "n_names": 150,
        "n_facts": 75,
    }
    counts = defaultdict(Counter)
    group_of = {tag: group for group, tags in POS_GROUPS.items() for tag in tags}
    for document in GrammarCorpus(n_train_tokens=200_000, fact_rate=0.2, **sizes).documents("train"):
        for word, tag in ((w, t) for s in document for w, t in zip(s.words, s.xpos, strict=True)):
            counts[tag][word] += 1
            counts[group_of.get(tag)][word] += 1
    mean = {group: sum(of.values()) / len(of) for group, of in counts.items()}
    found = {}
    for name, (_, groups, *_) in ORDERS.items():
        places = [place for place, of in enumerate(groups) for _ in of]
        found[name] = somers_d(np.array(places, float), np.array([-mean[g] for of in groups for g in of]))
    assert {name: round(d, 9) for name, d in found.items() if d >= 0.5} == BY_FREQUENCY


def test_taggers_are_found_by_their_names():
    def tagger(name, seed):
        return FakeRun(f"{name}_{seed}", SeedPair(seed), tested={"test_accuracy": 0.5 + seed / 10})

    runs = [tagger("upos_next", 3), tagger("shuffled_upos_next", 2)]
    assert TaggerTest("upos_next", "accuracy").of(runs).value == 0.8
    assert TaggerTest("shuffled_upos_next", "accuracy").of(runs).value == 0.7
    with pytest.raises(NotMeasured, match="no tagger 'upos'"):
        TaggerTest("upos", "accuracy").of(runs)
    with pytest.raises(ValueError, match="several taggers 'upos_next' of one seed"):
        TaggerTest("upos_next", "accuracy").of([*runs, tagger("upos_next", 4)])


@pytest.mark.parametrize("name", STUDIES)
def test_each_measure_of_a_publication_names_a_variant(name):
    study = STUDIES[name]
    assert all(any(own in claim.variant for claim in study.claims) for own in study.own)
