"""The language of the scaffold experiments: what it promises is counted in the text itself."""

from collections import Counter
from inspect import signature

import numpy as np
import pytest
import torch

from lmdyn.datamodules import ScaffoldCorpus
from lmdyn.datamodules.synthetic.scaffold import CLOSE, OPEN

SMALL = {"n_rules": 200, "n_phrases": 20, "n_outside": 30, "n_types": 1000, "n_train_tokens": 10_000}
SMALL |= {"n_validation_tokens": 5_000, "n_test_tokens": 500}


def corpus(familiar=True, length=3, **settings):
    return ScaffoldCorpus(familiar, length, **{**SMALL, **settings})


def ready(folder, **settings):
    made = corpus(cache_dir=str(folder), **settings)
    made.setup()
    return made


def words(made, split="train"):
    """The text as any reader of the corpus meets it."""
    return [w for document in made.documents(split) for sentence in document for w in sentence.words]


def phrases(made):
    return [tuple(made.vocabulary[i] for i in phrase) for phrase in made.phrases]


def windows(text, length):
    return [tuple(text[i : i + length]) for i in range(len(text) - length + 1)]


def scaffolds(text, length):
    """What stands between α and ω, after checking that nothing else has either."""
    assert text.count(OPEN) == text.count(CLOSE)
    found = []
    for at in (i for i, word in enumerate(text) if word == OPEN):
        assert text[at + length + 1] == CLOSE
        found.append(tuple(text[at + 1 : at + 1 + length]))
        assert OPEN not in found[-1]
        assert CLOSE not in found[-1]
    return found


@pytest.mark.parametrize("familiar", [True, False])
@pytest.mark.parametrize("length", [2, 3, 8])
def test_rules_and_phrases_are_counted(familiar, length):
    made = corpus(familiar, length)
    text = words(made)
    assert len(text) == 10_000
    inside = scaffolds(text, length)
    assert len(inside) == 200
    known = phrases(made)
    assert len(set(known)) == 20
    assert Counter(inside) == dict.fromkeys(known, 10)
    everywhere = Counter(windows(text, length))
    outside = {phrase: everywhere[phrase] - 10 for phrase in known}
    # by chance two given words stand at one of 10,000 places once in 100 texts, longer phrases never
    chance = 1 if length == 2 else 0
    planted = 30 if familiar else 0
    assert all(planted <= n <= planted + chance for n in outside.values())
    assert sum(outside.values()) - 20 * planted <= 2 * chance


def test_words_of_length_one_are_planted_on_top_of_chance():
    made = corpus(True, 1, n_outside=100)
    text = words(made)
    inside = scaffolds(text, 1)
    assert Counter(inside) == dict.fromkeys(phrases(made), 10)
    assert len(text) == 10_000
    counts = Counter(text)
    noise = 10_000 - 200 * 3 - 20 * 100
    for (word,) in phrases(made):
        chance = counts[word] - 110
        assert 0 <= chance < 7.4 + 6 * 7.4**0.5  # Poisson of 7.4
    others = [counts[w] for w in made.vocabulary[:1000] if (w,) not in phrases(made)]
    assert np.mean(others) == pytest.approx(noise / 1000, rel=0.05)
    plain = Counter(words(corpus(False, 1)))
    assert all(plain[word] - 10 < 9.4 + 6 * 9.4**0.5 for (word,) in phrases(made))
    positions = [i for i, w in enumerate(text) if (w,) in phrases(made)]
    assert 4000 < np.mean(positions) < 6000  # all over the text


def test_rules_and_phrases_stand_in_random_order():
    made = corpus()
    text = words(made)
    order = scaffolds(text, 3)
    known = phrases(made)
    numbers = [known.index(scaffold) for scaffold in order]
    for written in ([i % 20 for i in range(200)], sorted(numbers)):
        assert sum(a == b for a, b in zip(numbers, written, strict=True)) < 30  # 10 by chance
    for symbol in (OPEN, known[0][0]):
        at = [i for i, word in enumerate(text) if word == symbol]
        assert 3000 < np.mean(at) < 7000
    noise = Counter(w for w in text if w not in (OPEN, CLOSE) and not any(w in p for p in known))
    expected = (10_000 - 200 * 5 - 600 * 3) / 1000
    assert np.mean(list(noise.values())) == pytest.approx(expected, rel=0.05)
    assert np.var([noise[w] for w in noise]) == pytest.approx(expected, rel=0.25)  # Poisson


@pytest.mark.parametrize("key", ["familiar", "length", "n_rules", "n_phrases", "n_outside", "n_types"])
def test_what_the_text_depends_on_keys_the_cache(key):
    changed = {"familiar": False, "length": 2, "n_rules": 100, "n_phrases": 10, "n_outside": 3}
    changed["n_types"] = 900
    assert corpus(**{key: changed[key]}).content_key() != corpus().content_key()


def test_the_encoded_stream_is_the_text(tmp_path):
    made = ready(tmp_path)
    ids = made.encoded("train").tokens
    assert len(ids) == 10_000  # no end of sentence
    assert made.tokenizer.convert_ids_to_tokens(ids.tolist()) == words(made)
    assert made.tokenizer.eos_token_id not in ids
    assert made.tokenizer.unk_token_id not in ids
    of_words = {*made.tokenizer.convert_tokens_to_ids(made.vocabulary)}
    assert len(of_words - {made.tokenizer.unk_token_id}) == 1002
    with_ends = ready(tmp_path, eos=True).encoded("train").tokens
    assert len(with_ends) == 10_100
    assert (with_ends[100::101] == made.tokenizer.eos_token_id).all()


def test_words_that_the_text_lacks_are_known_too(tmp_path):
    made = ready(
        tmp_path, n_types=5000, n_train_tokens=2500, n_rules=20, n_outside=0, n_validation_tokens=2500
    )
    assert len(set(words(made))) < 3000
    known = made.tokenizer.get_vocab()
    assert all(word in known for word in made.vocabulary)
    assert made.tokenizer.unk_token_id not in made.encoded("validation").tokens


def test_instances_of_the_rule(tmp_path):
    made = ready(tmp_path)
    known = phrases(made)
    training = set(windows(words(made), 3 + 2))
    for domain in ("in", "out"):
        found = made.examples(domain, 50, context=7)
        assert found.dtype == torch.int64
        assert found.shape == (50, 7 + 1 + 3 + 1)
        assert torch.equal(found, made.examples(domain, 50, context=7))
        text = [made.tokenizer.convert_ids_to_tokens(row) for row in found.tolist()]
        assert all(row[7] == OPEN and row[-1] == CLOSE for row in text)
        assert all(row.count(OPEN) == row.count(CLOSE) == 1 for row in text)
        scaffold = [tuple(row[8:-1]) for row in text]
        if domain == "in":
            assert scaffold == [known[i % 20] for i in range(50)]
        else:
            assert not set(scaffold) & set(known)
            assert len(set(scaffold)) == 50
            assert not {tuple(row[7:]) for row in text} & training
        assert len({tuple(row[:7]) for row in text}) == 50
    assert not torch.equal(made.examples("in", 50, 7)[:, :7], made.examples("out", 50, 7)[:, :7])
    bare = made.examples("out", 1, context=0)
    assert bare.shape == (1, 5)
    assert made.tokenizer.convert_ids_to_tokens(bare[0].tolist())[0] == OPEN
    assert made.examples("in").shape == (1000, 25)
    other = ready(tmp_path, language_seed=1)
    assert not torch.equal(other.examples("out", 50, 7), made.examples("out", 50, 7))


ARMS = [(True, 0), (False, 1), (False, 0), (True, 1)]


def arm(familiar, half, **settings):
    return corpus(familiar, 3, first_use=0.6, half=half, batch_size=10, n_outside=60, **settings)


def test_rules_begin_at_first_use_across_one_half_of_the_phrases():
    for familiar, half in ARMS:
        made = arm(familiar, half)
        known = phrases(made)
        outside = half if familiar else 1 - half
        for part in np.split(np.array(words(made)), 10):
            before, after = part[:600].tolist(), part[600:].tolist()
            assert OPEN not in before
            assert after.count(OPEN) == 20
            planted = Counter(windows(before, 3))
            assert sum(planted[p] for p in known[outside::2]) == 60
            assert not any(planted[p] for p in known[1 - outside :: 2])
            assert set(scaffolds(after, 3)) <= set(known[half::2])
        assert Counter(scaffolds(words(made), 3)) == dict.fromkeys(known[half::2], 20)


@pytest.mark.parametrize("order_seed", [None, 3])
def test_texts_with_one_half_outside_differ_only_in_the_words_of_scaffolds(order_seed):
    for a, b in (ARMS[:2], ARMS[2:][::-1]):
        one, other = (arm(*of, order_seed=order_seed).text("train") for of in (a, b))
        differ = np.flatnonzero(one != other)
        assert len(differ) > 100
        opens = np.flatnonzero(one == 1000)
        inside = (opens[:, None] + [1, 2, 3]).ravel()
        assert set(differ) <= set(inside.tolist())
        assert (differ % 1000 >= 600).all()


def test_runs_read_the_same_batches_up_to_the_first_use(tmp_path):
    made = []
    for familiar, half in ARMS[:2]:
        one = arm(familiar, half, cache_dir=str(tmp_path), sequence_length=20)
        one.setup()
        made.append(one)
    assert made[0].tokenizer.get_vocab() == made[1].tokenizer.get_vocab()
    pairs = zip(*(one.train_dataloader() for one in made), strict=True)
    equal = [torch.equal(a["input_ids"], b["input_ids"]) for a, b in pairs]
    assert all(equal[:29])
    assert sum(equal[30:]) < 3


def test_a_run_of_before_is_of_the_same_condition():
    """Arguments that came later are null in it, and null values are no part of a condition."""
    later = {name: p.default for name, p in signature(ScaffoldCorpus).parameters.items()}
    assert {later[name] for name in ("first_use", "half", "scrambled")} == {None}
    with pytest.raises(ValueError, match="scrambled requires familiar"):
        corpus(False, first_use=0.5, scrambled=True)


@pytest.mark.parametrize(
    "wrong", [{"first_use": 1.0}, {"first_use": -0.1}, {"first_use": 0.5, "length": 1}, {"half": 2}]
)
def test_first_use_is_refused_where_it_means_nothing(wrong):
    with pytest.raises(ValueError, match="expected 0, or a share below 1 with at least 2"):
        corpus(**wrong)
