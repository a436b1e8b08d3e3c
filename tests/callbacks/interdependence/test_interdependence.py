"""Interdependence against every pair of words by itself, and its intervals and correlations against their formulas."""

import itertools
import logging

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from lmdyn.analysis import (
    decompositional_interdependence,
    dependency_distances,
    jackknife,
    off_by_one_distances,
    spearman,
)
from lmdyn.callbacks import Interdependence, Run, select
from lmdyn.datamodules import ConlluCorpus
from lmdyn.datamodules.corpora.tokenization import word_tokenizer
from lmdyn.models import LSTMLanguageModel
from tests.helpers.refusals import assert_refused

WORDS = [f"w{i:02d}" for i in range(14)]
KINDS = {"NOUN": "open", "VERB": "open", "DET": "closed", "ADP": "closed", "PUNCT": None}
LENGTHS = (7, 1, 5, 9, 2, 6, 3, 8, 5, 7)
MAX_DISTANCE, MIN_PAIRS = 4, 3


def sentences(lengths=LENGTHS, seed=0, tags=tuple(KINDS)):
    """Words, heads (-1 is the root) and tags of each sentence."""
    random = np.random.default_rng(seed)
    found = []
    for n in lengths:
        order, heads = random.permutation(n), np.full(n, -1)
        for i in range(1, n):
            heads[order[i]] = order[random.integers(max(0, i - 3), i)]  # deep trees
        words = [WORDS[i] for i in random.integers(len(WORDS), size=n)]
        found.append((words, heads.tolist(), [tags[i] for i in random.integers(len(tags), size=n)]))
    return found


def conllu(path, text, heads=True, upos=True):
    with path.open("w", encoding="utf-8") as file:
        for words, parents, tags in text:
            for i, (word, head, tag) in enumerate(zip(words, parents, tags, strict=True), 1):
                columns = [str(i), word, "_", tag if upos else "_", "_", "_", str(head + 1) if heads else "_"]
                file.write("\t".join([*columns, "_", "_", "_"]) + "\n")
            file.write("\n")
    return str(path)


def tokenizer():
    return word_tokenizer({word: 100 - i for i, word in enumerate(WORDS)})


def counts():
    return pd.DataFrame({"count": np.random.default_rng(2).permutation(len(tokenizer())) * 10})


def language_model(layers=2, seed=0):
    torch.manual_seed(seed)
    size = {"embedding_size": 5, "hidden_size": 6, "num_layers": layers, "init_range": 1.5}
    return LSTMLanguageModel(vocab_size=len(tokenizer()), **size).double()


def attach(folder, observer=None, text=None, words=None, token_counts=None, probe=None, **settings):
    folder.mkdir(parents=True, exist_ok=True)
    if observer is None:
        observer = Interdependence(**{"max_distance": MAX_DISTANCE, "min_pairs": MIN_PAIRS, **settings})
    if probe is None:
        path = conllu(folder / "probe.conllu", sentences() if text is None else text)
        probe = ConlluCorpus(validation=path, batch_size=1)
    observer.probe = probe
    observer.attach(Run(folder, words or tokenizer(), token_counts=token_counts))
    return observer


def climb(heads, word):
    """The word and all above it."""
    way = [word]
    while heads[way[-1]] >= 0:
        way.append(heads[way[-1]])
    return way


def about(heads, tags, a, b):
    """Distance, distance in the tree and class of a pair of words."""
    up, other = climb(heads, a), climb(heads, b)
    common = next(word for word in up if word in other)
    kinds = {KINDS[tags[a]], KINDS[tags[b]]}
    kind = None if None in kinds else kinds.pop() if len(kinds) == 1 else "mixed"
    return b - a, up.index(common) + other.index(common), kind


def direct(module, text, starts=True, variant="published"):
    """A row for each pair of words: what is known of it, and its interdependence by itself."""
    module, words = module.eval(), tokenizer()
    rows = []
    for number, (tokens, heads, tags) in enumerate(text):
        before = [words.eos_token_id] if starts else []
        ids = torch.tensor([[*before, *words.convert_tokens_to_ids(tokens)]])
        pairs = list(itertools.combinations(range(len(tokens)), 2))
        if not pairs:
            continue
        one = torch.eye(ids.shape[1], dtype=torch.bool)[:, None]
        left, right = (one[[pair[side] + len(before) for pair in pairs]] for side in (0, 1))
        vectors = module.embedding(ids).detach()
        hidden, logits = (
            decompositional_interdependence(module.lstm, vectors, left, right, decoder=d, variant=variant)
            for d in (None, module.decoder)
        )
        for k, (a, b) in enumerate(pairs):
            words_of = (int(ids[0, i + len(before)]) for i in (a, b))
            rows.append((number, *about(heads, tags, a, b), *words_of, float(hidden[k]), float(logits[k])))
    columns = ["sentence", "distance", "syntactic", "pos_class", "left", "right", "hidden", "logits"]
    return pd.DataFrame(rows, columns=columns)


@pytest.fixture(scope="module")
def module():
    return language_model()


@pytest.fixture(scope="module")
def pairs(module):
    return direct(module, sentences())


def found(table, **key):
    """The value of the one row with this quantity, site and groups; None where there is none."""
    columns = ("quantity", "site", "distance", "syntactic", "pos_class", "word")
    rows = select(table, **{**dict.fromkeys(columns), **key})
    assert len(rows) <= 1
    return float(rows["value"].iloc[0]) if len(rows) else None


def by_hand(group, site):
    """Mean, ends of its interval, and number: sentences are clusters (Liang & Zeger 1986)."""
    values = group[site].tolist()
    mean, n = sum(values) / len(values), len(values)
    sums = {}
    for sentence, value in zip(group["sentence"], values, strict=True):
        sums[sentence] = sums.get(sentence, 0.0) + value - mean
    clusters = len(sums)
    error = float("nan")
    if clusters > 1:
        error = (clusters / (clusters - 1) * sum(s**2 for s in sums.values())) ** 0.5 / n
    return {"di": mean, "di_low": mean - 1.959964 * error, "di_high": mean + 1.959964 * error, "pairs": n}


NAMES = ("distance", "syntactic", "pos_class")
STRATA = (["distance"], ["distance", "pos_class"], ["distance", "syntactic"], [*NAMES])


def check_means(table, pairs, sites=("hidden", "logits"), min_pairs=MIN_PAIRS):
    """All rows are those of the pairs, and there are no others."""
    pairs = pairs[pairs["distance"] <= MAX_DISTANCE]
    rows = table[table["word"].isna()] if "word" in table else table
    keys = rows[["quantity", "site", *NAMES]].astype(object)
    keys = keys.where(keys.notna(), None).itertuples(index=False, name=None)
    known, expected = dict(zip(keys, rows["value"], strict=True)), 0  # `select` for each would take seconds
    assert len(known) == len(rows)
    for site, columns in itertools.product(sites, STRATA):
        for values, group in pairs.groupby(columns):
            key = dict(zip(columns, values, strict=True))
            if len(group) < min_pairs:
                assert ("di", site, *map(key.get, NAMES)) not in known
                continue
            for quantity, value in by_hand(group, site).items():
                got = known[quantity, site, *map(key.get, NAMES)]
                assert got == pytest.approx(value, rel=1e-9, nan_ok=True), (site, key, quantity)
                expected += 1
    assert len(table[table["quantity"].isin(["di", "di_low", "di_high", "pairs"])]) == expected
    return expected


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2])
def test_every_mean_is_that_of_its_pairs(layers, module, pairs, tmp_path):
    if layers == 1:
        module = language_model(1)
        pairs = direct(module, sentences())
    table = attach(tmp_path).observe(module, 7)
    assert check_means(table, pairs) > 200
    assert set(table["step"]) == {7}
    for columns in STRATA:  # some mean of each kind, and some that is left out
        sizes = pairs[pairs["distance"] <= MAX_DISTANCE].groupby(columns).size()
        assert (sizes >= MIN_PAIRS).any()
    assert (sizes < MIN_PAIRS).any()
    assert not np.allclose(pairs["hidden"], pairs["logits"], rtol=0.1)


def test_the_sentence_begins_after_the_end_of_the_last(module, pairs, tmp_path):
    """The control: without the token before the sentence the numbers are others; and a tokenizer may lack it."""
    words = tokenizer()
    bare = PreTrainedTokenizerFast(
        tokenizer_object=words.backend_tokenizer, unk_token="<unk>", pad_token="<pad>", padding_side="right"
    )
    assert bare.eos_token_id is None
    path = conllu(tmp_path / "probe.conllu", sentences())
    table = attach(tmp_path, words=bare, probe=ConlluCorpus(validation=path, eos=False)).observe(module, 0)
    without = direct(module, sentences(), starts=False)
    check_means(table, without)
    assert float(np.abs(without["hidden"] - pairs["hidden"]).max()) > 0.01


@pytest.mark.parametrize("variant", ["released", "generalized"])
def test_the_other_variants_and_no_decoder(module, pairs, tmp_path, variant):
    observer = attach(tmp_path, variant=variant, decoder=None)
    table = observer.observe(module, 0)
    assert set(table["site"]) == {"hidden"}
    other = direct(module, sentences(), variant=variant)
    check_means(table, other, sites=("hidden",))
    assert float(np.abs(other["hidden"] - pairs["hidden"]).max()) > 0.01


def strata_of(left, right):
    """Training counts to a factor of two, one by one."""
    level = [0 if n == 0 else len(bin(int(n))) - 2 for n in (*left, *right)]
    return [100 * a + b for a, b in zip(level[: len(left)], level[len(left) :], strict=True)]


def matched(syntactic, di, strata):
    """Ranks within each stratum, as shares about their middle, correlated over all."""
    parts = [[], []]
    for stratum in set(strata):
        chosen = [i for i, s in enumerate(strata) if s == stratum]
        for part, values in zip(parts, (syntactic, di), strict=True):
            ranks = scipy.stats.rankdata([values[i] for i in chosen])
            part.extend((ranks - ranks.mean()) / len(chosen))
    a, b = np.array(parts)
    scale = np.sqrt((a @ a) * (b @ b))
    return a @ b / scale if scale > 0 else float("nan")


def by_hand_correlations(group, site, tree, counted):
    """Quantity (without the tree's name) and word: the correlation of some pairs."""
    di = group[site].to_numpy()
    expected = {("syntactic_correlation", None): scipy.stats.spearmanr(group[tree], di).statistic}
    if counted is not None:
        held = [counted["count"].to_numpy()[group[side]] for side in ("left", "right")]
        for side, n in zip(("left", "right"), held, strict=True):
            expected["frequency_correlation", side] = scipy.stats.spearmanr(n, di).statistic
        expected["partial_correlation", None] = spearman(group[tree].to_numpy(), di, held)
        expected["matched_correlation", None] = matched(group[tree].tolist(), di.tolist(), strata_of(*held))
    return expected


@pytest.mark.slow
@pytest.mark.parametrize("counted", [True, False])
def test_correlations_are_scipys(module, pairs, tmp_path, counted):
    counted = counts() if counted else None
    table = attach(tmp_path, token_counts=counted).observe(module, 0)
    for site, (distance, group) in itertools.product(
        ("hidden", "logits"), pairs[pairs["distance"] <= MAX_DISTANCE].groupby("distance")
    ):
        blocks = group["sentence"].to_numpy()  # fewer sentences than blocks
        for (quantity, word), expected in by_hand_correlations(group, site, "syntactic", counted).items():
            key = {"site": site, "distance": distance, "word": word}
            got = found(table, quantity=quantity, **key)
            assert got == pytest.approx(expected, abs=1e-9)
            assert abs(got) > 1e-3
            without = [
                by_hand_correlations(group[blocks != block], site, "syntactic", counted)[quantity, word]
                for block in np.unique(blocks)
            ]
            error = jackknife(expected, without, np.unique(blocks, return_counts=True)[1]).error
            assert found(table, quantity=f"{quantity}_error", **key) == pytest.approx(error, abs=1e-8)
            assert error > 0.01
    correlations = table["quantity"].str.endswith("_correlation") & table["pos_class"].isna()
    assert correlations.sum() == 2 * (MAX_DISTANCE + 1) * (1 if counted is None else 5)
    assert (table["quantity"].eq("syntactic_correlation") & table["pos_class"].notna()).any()


@pytest.mark.slow
@pytest.mark.parametrize("pos_class", [None, "open"])
def test_the_mean_over_distances_has_the_error_of_all_of_them(module, tmp_path, pos_class):
    """Without a sentence all distances lack it; of independent distances the error would be another one."""
    text = sentences((9, 10, 8) * 5, tags=("NOUN", "VERB", "ADP"))
    table = attach(tmp_path, text=text, token_counts=counts(), min_pairs=20).observe(module, 0)
    groups = direct(module, text)
    groups = groups[groups["distance"] <= MAX_DISTANCE]
    groups = groups if pos_class is None else groups[groups["pos_class"].eq(pos_class)]
    enough = groups.groupby("distance")["hidden"].transform("size") >= 20
    groups = groups[enough]

    def mean(rows, quantity):
        parts = (rows[rows["distance"].eq(d)] for d in sorted(set(groups["distance"])))
        each = [by_hand_correlations(part, "hidden", "syntactic", counts()) for part in parts]
        return np.mean([one[quantity, None] for one in each])

    for quantity in ("syntactic_correlation", "matched_correlation"):
        key = {"site": "hidden", "pos_class": pos_class}
        value = found(table, quantity=f"mean_{quantity}", **key)
        assert value == pytest.approx(mean(groups, quantity), abs=1e-9)
        present, sizes = np.unique(groups["sentence"], return_counts=True)
        without = [mean(groups[groups["sentence"] != s], quantity) for s in present]
        expected = float(jackknife(value, without, sizes).error)
        got = found(table, quantity=f"mean_{quantity}_error", **key)
        assert got == pytest.approx(expected, abs=1e-8, nan_ok=True)
        if pos_class is None:
            each = [
                found(table, quantity=f"{quantity}_error", distance=d, **key)
                for d in range(1, MAX_DISTANCE + 1)
            ]
            assert abs(got - np.linalg.norm(each) / MAX_DISTANCE) > 1e-3


def test_controls_are_correlations_with_other_trees_and_of_known_words(module, pairs, tmp_path):
    """Trees read off by one, trees of other sentences of the same length, pairs without unknown words."""
    text = sentences()
    unknown = {1, 3, 4}
    heard = [
        (["?" if w in {WORDS[i] for i in unknown} else w for w in words], *rest) for words, *rest in text
    ]
    plain = attach(tmp_path / "plain", text=heard, token_counts=counts())
    observer = attach(tmp_path / "controls", text=heard, token_counts=counts(), controls=True)
    assert observer.settings != plain.settings
    table, without = observer.observe(module, 0), plain.observe(module, 0)
    own = table["quantity"].str.match("(mean_)?(known_|off_by_one_|shuffled_)")
    pd.testing.assert_frame_equal(table[~own].reset_index(drop=True), without)
    pairs = direct(module, heard)
    assert len(plain.pairs.table[plain.pairs.table["unknown"]]) > 20
    lengths = {}
    for number, (words, _, _) in enumerate(text):
        lengths.setdefault(len(words), []).append(number)
    assert sorted(len(group) for group in lengths.values()) == [1] * 6 + [2, 2]
    swapped = {a: b for group in lengths.values() if len(group) == 2 for a, b in (group, group[::-1])}
    rows = pairs.to_dict("records")
    each_pair = [pair for words, *_ in text for pair in itertools.combinations(range(len(words)), 2)]
    for row, (a, b) in zip(rows, each_pair, strict=True):
        heads = text[row["sentence"]][1]
        row["off_by_one"] = off_by_one_distances(heads)[a, b]
        other = swapped.get(row["sentence"])
        row["shuffled"] = -1 if other is None else dependency_distances(text[other][1])[a, b]
    pairs = pd.DataFrame(rows)
    unk = tokenizer().unk_token_id
    known = pairs[(pairs["left"] != unk) & (pairs["right"] != unk)]
    assert len(known) < len(pairs)
    seen = set()
    for prefix, part in (("", pairs), ("known_", known)):
        for tree in ("syntactic", "off_by_one", "shuffled"):
            name = prefix + ("" if tree == "syntactic" else f"{tree}_")
            for distance, group in part[part["distance"].le(MAX_DISTANCE) & part[tree].ge(0)].groupby(
                "distance"
            ):
                for (quantity, word), expected in by_hand_correlations(
                    group, "hidden", tree, counts()
                ).items():
                    if tree != "syntactic" and word is not None:
                        continue
                    key = {"site": "hidden", "distance": distance, "word": word}
                    got = found(table, quantity=name + quantity, **key)
                    if len(group) < MIN_PAIRS:
                        assert got is None
                        continue
                    assert got == pytest.approx(expected, abs=1e-9, nan_ok=True), (name, quantity, distance)
                    assert found(table, quantity=f"{name}{quantity}_error", **key) is not None
                    seen.add(name + quantity)
    assert len(seen) == 2 * (4 + 2 * 3)
    there = set(table.loc[table["quantity"].str.contains("correlation"), "quantity"])
    seen |= {f"mean_{name}" for name in seen}
    assert there == seen | {f"{name}_error" for name in seen}
    assert not table.loc[own, "site"].eq("logits").any()


def test_a_record_keeps_curves_and_the_first_and_last_observation(module, tmp_path):
    observer = attach(tmp_path, token_counts=counts(), controls=True)
    table = pd.concat([observer.observe(module, step) for step in (0, 2, 3, 4, 5)])
    kept = Interdependence.record_rows(table, {})
    first, between, last = (kept[kept["step"].eq(step)] for step in (0, 3, 5))
    assert set(between["site"]) == {"hidden"}
    assert between["pos_class"].isna().all()
    assert not between["quantity"].str.contains("known_|off_by|shuffled").any()
    for quantity in ("di", "di_low", "syntactic_correlation", "syntactic_correlation_error"):
        assert len(between[between["quantity"].eq(quantity)]) == MAX_DISTANCE
    for end in (first, last):  # the first is the floor of what is claimed of the last
        by_class = end[end["pos_class"].notna() & end["syntactic"].notna()]
        assert len(by_class)
        assert set(by_class["site"]) == {"hidden"}
        assert "off_by_one_syntactic_correlation" in set(end["quantity"])
        assert set(end["site"]) == {"hidden", "logits"}
    assert len(kept) < 0.6 * len(table)


# ---------------------------------------------------------------- sentences that are looked at


def test_longer_sentences_are_refused_or_left_out_and_counted(module, pairs, tmp_path, caplog):
    with pytest.raises(ValueError, match=r"sentence 1 has 7 words, more than max_length = 6.*longer: skip"):
        attach(tmp_path / "a", max_length=6)
    with caplog.at_level(logging.INFO):
        observer = attach(tmp_path / "b", max_length=6, longer="skip")
    assert "interdependence: lmdyn leaves out 4 sentences of more than 6 words" in caplog.messages
    kept = pairs[pairs["sentence"].map(lambda i: LENGTHS[i] <= 6)]
    check_means(observer.observe(module, 0), kept)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        attach(tmp_path / "c", max_length=9)
    assert not any("left out" in message for message in caplog.messages)


def test_about_so_many_tokens(module, pairs, tmp_path):
    table = attach(tmp_path, max_tokens=24).observe(module, 0)  # 7 + 1 + 5 + 9 + 2 of them
    check_means(table, pairs[pairs["sentence"] < 5])


def test_what_cannot_be_looked_at_is_refused(tmp_path):
    for settings in ({"lengths": (1, 1, 1)}, {"lengths": (5, 1, 6), "max_length": 3, "longer": "skip"}):
        with pytest.raises(ValueError, match="no sentence has two words or more"):
            attach(tmp_path, text=sentences(settings.pop("lengths")), **settings)


class Other(nn.Module):
    def __init__(self, lstm, decoder=None, between=None):
        super().__init__()
        self.embedding = nn.Embedding(len(tokenizer()), 4)
        self.lstm = lstm
        self.decoder = decoder or nn.Linear(6, 5)
        self.between = between or nn.Identity()

    def forward(self, input_ids):
        return self.decoder(self.between(self.lstm(self.embedding(input_ids))[0]))


def test_modules_that_do_not_fit_are_refused_before_training(tmp_path):
    assert_refused(
        lambda lstm, **parts: attach(tmp_path).check_module(Other(lstm, **parts)),
        ({"lstm": nn.GRU(4, 6)}, "requires an nn.LSTM.*`backend: shapley` for"),
        ({"lstm": nn.LSTM(4, 6, proj_size=3)}, "without projections, got bidirectional=False, proj_size=3"),
        ({"lstm": nn.LSTM(4, 6, bidirectional=True)}, "bidirectional=True"),
        (
            {"lstm": nn.LSTM(4, 7)},
            "expected a linear decoder of 7 dimensions in .* like the LSTM, got Linear",
        ),
        ({"lstm": nn.LSTM(4, 6), "decoder": nn.Identity()}, "6 dimensions in .* like the LSTM, got Identity"),
    )
    assert_refused(
        lambda **settings: attach(tmp_path, **settings).check_module(Other(nn.LSTM(4, 6))),
        *(({part: "no.path"}, f"'no.path': set `{part}`") for part in ("embedding", "lstm", "decoder")),
    )


def test_other_operations_than_those_of_the_parts_are_refused(tmp_path):
    observer, lstm = attach(tmp_path), nn.LSTM(4, 6, num_layers=2, batch_first=True)
    assert observer.observe(Other(lstm), 0)["value"].notna().any()
    with pytest.raises(ValueError, match=r"logits differ from decoder\(lstm\(embedding\(input_ids\)\)\)"):
        observer.observe(Other(lstm, between=nn.LayerNorm(6)), 0)
