"""Handwriting: letters as paths, and the observer against separate regressions on states computed by hand."""

from functools import partial

import numpy as np
import pytest
import torch
from transformers import AlbertConfig, AlbertForPreTraining, BertConfig, BertForPreTraining

from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.callbacks.dynamics.handwriting import Handwriting
from lmdyn.callbacks.dynamics.letter_paths import letter_path, pen_velocity
from lmdyn.callbacks.observing.run import Run
from lmdyn.datamodules.tasks.tasks import RawTask, TaskData, TextExample
from tests.callbacks.probing.test_downstream import TOKENIZER, WORDS
from tests.callbacks.probing.test_downstream import Model as Encoder
from tests.helpers.refusals import assert_refused

SIZES = {"hidden_size": 8, "num_hidden_layers": 3, "intermediate_size": 16}
WINDOWS = {"starts": 3, "lengths": 4}
Model = partial(Encoder, AlbertForPreTraining, AlbertConfig, **SIZES)


class Toys(TaskData):
    """Pairs scored by how often the first says good; more that are unlike than alike."""

    def __init__(self, most=6, names=("STS-B", "CoLA")):
        super().__init__(max_sequence_length=40)
        self.most, self.names, self.tokenizer = most, names, TOKENIZER

    def read(self):
        for name in self.names:
            kind = "classification" if name == "CoLA" else "regression"
            parts = [self.pairs(n, seed) for n, seed in ((60, 0), (40, 1))]
            yield RawTask(name, kind, parts[0], {"": parts[1]}, ("0", "1") if name == "CoLA" else ())

    def pairs(self, n, seed):
        random = np.random.default_rng(seed)
        found = []
        for i in range(n):
            k = (0, 1, 0, 3, 4, 1, 5, 2)[i % 8] if self.most > 4 else 0
            words = ["good"] * k + random.choice(WORDS[1:], int(random.integers(6 - k, 9 - k))).tolist()
            found.append(TextExample(" ".join(words), "it .", float(k)))
        return found


def attach(folder, toys=None, **settings):
    observer = Handwriting(probe=toys or Toys(), **{**WINDOWS, **settings})
    observer.attach(Run(folder, tokenizer=TOKENIZER))
    return observer


def values(table, quantity):
    return table.loc[table["quantity"].eq(quantity), "value"].tolist()


# ------------------------------------------------------------------------------------------ letters


@pytest.mark.parametrize("letter", ["U", "S"])
def test_paths_are_closed_and_equally_spaced(letter):
    fine = letter_path(letter, 4000)
    path = letter_path(letter, 40)
    assert torch.equal(path[0], path[-1])
    torch.testing.assert_close(path, fine[::100])
    lengths = fine.diff(dim=0).norm(dim=1)
    assert 0.99 < float(lengths.median() / lengths.max()) <= 1
    assert (lengths < 0.999 * lengths.max()).sum() < 12  # those that go round a corner
    low, high = fine.min(0).values, fine.max(0).values
    torch.testing.assert_close(low, torch.zeros(2, dtype=torch.float64), atol=2e-3, rtol=0)
    assert float(high[1]) == pytest.approx(1, abs=2e-3)
    assert 0.4 < float(high[0]) < 1
    torch.testing.assert_close(pen_velocity(letter, 40).cumsum(0) + path[0], path[1:])
    assert (pen_velocity(letter, 1) == 0).all()
    assert not torch.allclose(letter_path("U", 40), letter_path("S", 40))


def test_what_cannot_be_written():
    assert_refused(
        lambda arguments: letter_path(*arguments),
        (("O", 3), "has 2 outlines"),
        (("US", 3), "expected one visible character"),
        ((" ", 3), "expected one visible character"),
        (("U", 0), "steps is 0"),
        (("U", 3, "No Such Font"), "'No Such Font' is not installed"),
    )


# ----------------------------------------------------------------------------------------- the observer


READ = {
    "first_token": lambda x: x[0, 0],
    "mean_token": lambda x: x[0].mean(0),
    "all_tokens": lambda x: x[0].flatten(),
}


def states_by_hand(module, examples, length, times, state="first_token"):
    """(times, sentences, d) of the first token, one sentence at a time, by the model's own layers."""
    found, f = [], None
    for e in examples:
        ids, types = (torch.zeros(1, length, dtype=torch.int64) for _ in range(2))
        ids[0, : len(e["input_ids"])] = torch.as_tensor(e["input_ids"])
        types[0, : len(e["token_type_ids"])] = torch.as_tensor(e["token_type_ids"])
        batch = {"input_ids": ids, "token_type_ids": types}
        f = f or EncoderMap(module.lm.base_model, batch)
        x = f.start(batch)
        rows = [READ[state](x)]
        for t in range(times - 1):
            x = f(x) if f.shared else f.maps[t](x)
            rows.append(READ[state](x))
        found.append(torch.stack(rows))
    return torch.stack(found, 1).detach().double()


def separate(train, development, start, length):
    """NMSE of each development sentence, and what it writes."""

    def stacked(x, letters):
        y = torch.stack([pen_velocity("US"[i], length) for i in letters], 1)
        return x[start : start + length].flatten(0, 1), y.flatten(0, 1)

    x, y = stacked(*train)
    mean = x.mean(0)
    root = (1e-6 * (x - mean).square().sum() / x.shape[1]).sqrt()
    design = torch.cat([x - mean, root * torch.eye(x.shape[1], dtype=x.dtype)])
    right = torch.cat([y - y.mean(0), y.new_zeros(x.shape[1], 2)])
    weights = torch.linalg.lstsq(design, right).solution
    z, wanted = stacked(*development)
    answers = (z - mean) @ weights + y.mean(0)
    n = len(development[1])
    errors, sizes = ((v.square().sum(1).view(length, n).sum(0)) for v in (answers - wanted, wanted))
    return errors / sizes, answers.view(length, n, 2).cumsum(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "config"), [(AlbertForPreTraining, AlbertConfig), (BertForPreTraining, BertConfig)]
)
def test_numbers_are_those_of_separate_regressions(tmp_path, caplog, cls, config):
    module = Encoder(cls, config, **SIZES)
    observer = attach(tmp_path, ridge=1e-6, n_written=3, batch_tokens=70, shortest=1)
    table = observer.observe(module, 4)
    task = observer.regression
    times = 6 if cls is AlbertForPreTraining else 4  # x0 and three layers
    assert values(table, "times") == [times]
    assert ("each t is a layer" in caplog.text) == (times == 4)
    length = int(max(e.lengths.max() for e in (task.train, *task.evaluation.values())))
    sets, kept = [], []
    for examples in (list(task.train), list(task.evaluation[""])):
        kept.append([i for i, e in enumerate(examples) if not 1 < e["label"] < 4])
        letters = [int(examples[i]["label"] > 2) for i in kept[-1]]
        sets.append((states_by_hand(module, [examples[i] for i in kept[-1]], length, times), letters))
    for part, (_, letters) in zip(("train", "development"), sets, strict=True):
        assert values(table, f"n_{part}") == [letters.count(0), letters.count(1)]
        assert letters.count(0) != letters.count(1)
    rows = table[table["quantity"].eq("nmse")]
    windows = [(int(a), int(b)) for a, b in zip(rows["start"], rows["length"], strict=True)]
    assert set(windows) == {(a, b) for a in range(3) for b in range(1, 5) if a + b <= times}
    for window, value in zip(windows, rows["value"], strict=True):
        if window[1] == 1:
            assert np.isnan(value)
        else:
            assert value == pytest.approx(float(separate(*sets, *window)[0].mean()), rel=2e-3)
    best = int(values(table, "best_start")[0]), int(values(table, "best_length")[0])
    assert values(table, "best_nmse")[0] == np.nanmin(rows["value"])
    nmse, paths = separate(*sets, *best)
    for i, letter in enumerate("US"):
        of = table[table["letter"].eq(letter)]
        target = of.loc[of["quantity"].eq("target_path"), "value"].to_numpy().reshape(-1, 2)
        np.testing.assert_allclose(target[1:], pen_velocity(letter, best[1]).cumsum(0), atol=1e-12)
        mine = [j for j, one in enumerate(sets[1][1]) if one == i]
        written = of[of["quantity"].eq("path")]
        numbers = written["sentence"].unique().tolist()
        assert len(numbers) == min(3, len(mine))
        chosen = [kept[1].index(number) for number in numbers]
        worst_of_chosen = max(float(nmse[j]) for j in chosen)
        assert all(float(nmse[j]) > worst_of_chosen - 1e-3 for j in mine if j not in chosen)
        points = written.loc[written["sentence"].eq(numbers[0]), "value"].to_numpy().reshape(-1, 2)
        assert (points[0] == 0).all()
        np.testing.assert_allclose(points[1:], paths[:, chosen[0]], atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["mean_token", "all_tokens"])
def test_other_state_vectors(tmp_path, state):
    """Against separate regressions on states computed by hand."""
    module = Model()
    observer = attach(tmp_path, ridge=1e-6, state=state, max_sentences=7, shortest=1, batch_tokens=70)
    table = observer.observe(module, 4)
    sets = []
    for part in ("train", "development"):
        found = observer.sentences[part]
        x = states_by_hand(module, [e for _, _, e in found], observer.padded_length, 6, state)
        assert x.shape[2] == 8 * (observer.padded_length if state == "all_tokens" else 1)
        sets.append((x, [letter for _, letter, _ in found]))
    rows = table[table["quantity"].eq("nmse") & table["length"].gt(1)]
    assert len(rows) == 3 * 3
    for start, length, value in rows[["start", "length", "value"]].itertuples(index=False):
        assert value == pytest.approx(float(separate(*sets, start, length)[0].mean()), rel=5e-3)
    plain = attach(tmp_path / "b", ridge=1e-6, max_sentences=7, shortest=1).observe(module, 4)
    assert values(plain, "best_nmse") != values(table, "best_nmse")  # the control


def test_the_published_window(tmp_path):
    table = attach(tmp_path, starts=8, lengths=28, max_sentences=9).observe(Model(), 0)
    rows = table[table["quantity"].eq("nmse") & table["start"].eq(7) & table["length"].eq(28)]
    assert values(table, "published_window_nmse") == rows["value"].tolist()
    assert values(table, "n_train") == [9, 9]


def test_states_that_are_not_finite(tmp_path, caplog):
    module = Model()
    observer = attach(tmp_path)
    train = [(letter, e["input_ids"]) for _, letter, e in observer.sentences["train"]]
    rare = next(int(i) for i in train[0][1] if sum(int(i) in ids for _, ids in train) < 30)
    weight = module.lm.base_model.embeddings.word_embeddings.weight
    with torch.no_grad():
        weight[rare] = torch.nan
    table = observer.observe(module, 3)
    left = [sum(rare not in ids for letter, ids in train if letter == i) for i in (0, 1)]
    assert values(table, "n_train") == left
    assert "sentences whose states are not finite" in caplog.text
    assert np.isfinite(values(table, "best_nmse")).all()


def test_what_is_refused(tmp_path):
    assert_refused(
        lambda **settings: attach(tmp_path, **settings).check_module(Model()),
        ({"toys": Toys(most=0)}, "0 scored at least 4.0: expected at least one pair of each kind"),
        ({"toys": Toys(names=("CoLA",))}, r"`task` as one of its regressions, got no `task`"),
        ({"toys": Toys(names=("STS-B", "SICK"))}, r"`task` as one of STS-B, SICK, got no `task`"),
        ({"task": "CoLA"}, "got 'CoLA'"),
        ({"letters": ("U", "O")}, "has 2 outlines"),
        ({"letters": ("U", "U")}, "expected two different letters"),
        ({"low": 4.0}, "low < high"),
        ({"max_length": 6}, "expected at most max_length = 6"),
        ({"max_tokens": 9}, "Remove `max_tokens`, `forward` and `split`"),
        ({"max_length": 50}, "of at most 40 tokens, the positions of AlbertModel, got 50"),
    )
