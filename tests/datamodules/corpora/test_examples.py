"""Batches of examples: each once, little padding, the same for any number of ranks."""

import numpy as np
import pytest

from lmdyn.datamodules.corpora.examples import ExampleLoader


def examples(n=50, seed=0):
    random = np.random.default_rng(seed)
    made = []
    for i in range(n):
        length, spans = int(random.integers(1, 30)), int(random.integers(0, 4))
        ids = {name: random.integers(5, 99, length) for name in ("input_ids", "labels")}
        made.append({**ids, "spans": random.integers(0, length, (spans, 5)), "label": np.array(i % 3)})
    return made


def test_each_example_is_served_once_padded_as_said():
    made = examples()
    loader = ExampleLoader(made, batch_tokens=120, pad_id=7, label_names={"label": ["a", "b", "c"]})
    seen = []
    for batch in loader:
        assert batch["input_ids"].numel() <= 120
        for row, number in enumerate(batch["example"].tolist()):
            length = len(made[number]["input_ids"])
            for name, padding in (("input_ids", 7), ("labels", -100)):
                assert batch[name][row, :length].tolist() == made[number][name].tolist()
                assert (batch[name][row, length:] == padding).all()
            spans = len(made[number]["spans"])
            assert batch["spans"][row, :spans].tolist() == made[number]["spans"].tolist()
            assert (batch["spans"][row, spans:] == -100).all()
            assert batch["label"][row] == number % 3
            assert batch["attention_mask"][row].tolist() == [1] * length + [0] * (
                batch["labels"].shape[1] - length
            )
            seen.append(number)
    assert sorted(seen) == list(range(50))
    positions = sum(batch["input_ids"].numel() for batch in loader)
    assert positions < 1.3 * sum(len(e["input_ids"]) for e in made)
    assert len(loader) == len(list(loader))


@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_ranks_share_the_examples(ranks):
    loader = ExampleLoader(examples(), batch_tokens=40)
    shares = [[n for b in loader.shard(r, ranks) for n in b["example"].tolist()] for r in range(ranks)]
    assert sorted(n for share in shares for n in share) == list(range(50))
    assert len({loader.shard(r, ranks).fingerprint for r in range(ranks)} | {loader.fingerprint}) == 1


def test_a_limit_draws_the_same_examples_each_time():
    loader = ExampleLoader(examples(), batch_tokens=60)
    first, second = ([n for b in loader.limit(200) for n in b["example"].tolist()] for _ in range(2))
    assert first == second
    total = sum(len(loader.examples[n]["input_ids"]) for n in first)
    assert 200 <= total < 230
    assert max(first) - min(first) > 25  # of the whole set, not of its beginning
    assert loader.limit(200).fingerprint != loader.fingerprint
    assert sum(len(b["example"]) for b in loader.limit(10**9)) == 50


def test_fingerprint_tells_contents_apart():
    made = examples()
    before = ExampleLoader(made).fingerprint
    made[3] = {**made[3], "label": np.array(2)}
    assert ExampleLoader(made).fingerprint != before
    assert ExampleLoader(examples()).fingerprint == before


def test_bad_settings_are_refused():
    """Those of all loaders are in test_bptt.py."""
    with pytest.raises(ValueError, match="batch_tokens"):
        ExampleLoader(examples(), batch_tokens=0)
    with pytest.raises(ValueError, match="no example"):
        ExampleLoader([])
