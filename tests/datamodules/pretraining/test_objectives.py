"""Causal and cloze rows: every label by its closed form, each token predicted once, corpora and streams alike."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest

from lmdyn.datamodules import PretrainingCorpus, StreamedText
from lmdyn.datamodules.corpora.tokenization import load_tokenizer, subword_tokenizer
from lmdyn.datamodules.pretraining import text_rows as R
from lmdyn.datamodules.pretraining.stream_reader import _Gatherer
from tests.datamodules.pretraining.test_pretraining import cache as cache
from tests.datamodules.pretraining.test_pretraining import make

# a machine, or a test's share of it, may have one core
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

DENSE = ["causal", "cloze"]


def expected_labels(ids, special, objective):
    """Token by token, from the definition; the text has no special tokens of its own."""
    labels = [[-100] * len(row) for row in ids]
    for b, row in enumerate(ids):
        for t in range(len(row)):
            predicted = t + 1 if objective == "causal" else t
            if predicted < len(row) and row[predicted] not in special:
                labels[b][t] = row[predicted]
    return labels


@pytest.mark.parametrize("short_share", [0.0, 0.5])
@pytest.mark.parametrize("objective", DENSE)
def test_every_label_is_the_input_it_should_be(objective, short_share, cache):
    data = make(cache, objective=objective, short_share=short_share)
    special = set(R.special_ids(data.tokenizer, objective).values())
    lengths = set()
    for split in ("train", "validation"):
        for batch in data.loader(split):
            ids = batch["input_ids"].tolist()
            assert batch["labels"].tolist() == expected_labels(ids, special, objective)
            assert "masked_positions" not in batch
            lengths |= {sum(i not in special for i in row) for row in ids}
    assert (len(lengths) > 5) == (short_share > 0)  # padding was among what was checked


@pytest.mark.parametrize("objective", DENSE)
def test_each_token_is_predicted_once(objective, cache):
    """All windows together predict the text, in order; a masked model predicts some of it."""
    data = make(cache, objective=objective)
    text = np.asarray(data.corpus.encoded("validation").tokens)
    rows = {}
    for batch in data.val_dataloader():
        for number, labels in zip(batch["example"].tolist(), batch["labels"], strict=True):
            rows[number] = labels[labels != -100].tolist()
    predicted = np.concatenate([rows[i] for i in range(len(rows))])
    np.testing.assert_array_equal(predicted, text[: len(text) // 30 * 30])
    masked = make(cache, objective="masked").val_dataloader()
    assert sum(int((b["labels"] != -100).sum()) for b in masked) < 0.2 * len(predicted)


@pytest.mark.parametrize("objective", ["masked", *DENSE])
def test_gold_layers_follow_the_labels(objective, cache):
    """Of a causal model they are those of the next token."""
    data = make(cache, objective=objective, layers=["upos"])
    text = data.corpus.encoded("validation")
    gold = np.asarray(text.layer("upos"))
    assert len(set(gold.tolist())) > 5
    for batch in data.val_dataloader():
        for row, number in enumerate(batch["example"].tolist()):
            window = [-100, *gold[30 * number : 30 * number + 30].tolist(), -100, -100]
            shift = 1 if objective == "causal" else 0
            labels = batch["labels"][row].tolist()
            expected = [-100 if labels[t] == -100 else window[t + shift] for t in range(32)]
            assert batch["target_upos"][row].tolist() == expected
    assert data.val_dataloader().label_names["upos"] == data.corpus.label_names["upos"]


@pytest.fixture(scope="module")
def streamed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream")
    texts = [" ".join(f"w{(i * i + j * 7) % 31}" for j in range(25 + i % 7)) + " ." for i in range(40)]
    counts = Counter(word for text in texts for word in text.split())
    subword_tokenizer("wordpiece", counts, vocab_size=120).save_pretrained(str(folder / "tokenizer"))
    pd.DataFrame({"text": texts}).to_parquet(folder / "text.parquet")
    return folder, texts


def stream(folder, objective, **settings):
    text = StreamedText(
        {"path": "parquet", "data_files": str(folder / "text.parquet")}, tokenizer=str(folder / "tokenizer"),
        epoch_batches=5, block_rows=8,
    )  # fmt: skip
    data = PretrainingCorpus(stream=text, objective=objective, sequence_length=24, batch_size=4, **settings)
    data.prepare_data()
    return data


@pytest.mark.parametrize("objective", DENSE)
def test_streams_have_the_labels_of_a_corpus(objective, streamed):
    folder, texts = streamed
    data = stream(folder, objective)
    special = set(R.special_ids(data.tokenizer, objective).values())
    gatherer = _Gatherer(load_tokenizer(str(folder / "tokenizer")))
    for text in texts:
        gatherer.add(text)
    whole = gatherer.block().tokens
    windows = {tuple(whole[i : i + 22].tolist()) for i in range(0, len(whole) - 21, 22)}
    predicted = set()
    for batch in data.train_dataloader():
        ids = batch["input_ids"].tolist()
        assert batch["labels"].tolist() == expected_labels(ids, special, objective)
        assert "masked_positions" not in batch
        predicted |= {tuple(row[row != -100].tolist()) for row in batch["labels"]}
    assert len(predicted) == 5 * 4
    assert predicted <= windows  # which begin where the one before ends: no token twice


@pytest.mark.parametrize("source", ["corpus", "stream"])
def test_another_objective_is_other_data(source, cache, streamed):
    """Its fingerprint differs, and no run goes on with it."""

    def data(objective):
        return make(cache, objective=objective) if source == "corpus" else stream(streamed[0], objective)

    loaders = {objective: data(objective).train_dataloader() for objective in ("masked", *DENSE)}
    if source == "corpus":
        assert len({loader.fingerprint for loader in loaders.values()}) == 3
        assert make(cache, objective="causal").train_dataloader().fingerprint == loaders["causal"].fingerprint
    for name, loader in loaders.items():
        next(iter(loader))
        state = loader.state_dict()
        for other in loaders:
            again = data(other)
            if other == name:
                again.train_dataloader().load_state_dict(state)
            else:
                with pytest.raises(ValueError, match=rf"{name}.*{other}.*: (to resume exactly, )?keep"):
                    again.train_dataloader().load_state_dict(state)


def test_a_mask_token_is_for_masked_rows_only(streamed):
    tokenizer = load_tokenizer(str(streamed[0] / "tokenizer"))
    tokenizer.mask_token = None
    for objective in DENSE:
        assert sorted(R.special_ids(tokenizer, objective)) == ["cls", "pad", "sep"]
        maker = R.RowMaker(
            R.RowFormat(8, objective=objective),
            R.special_ids(tokenizer, objective),
            R.ordinary_ids(tokenizer),
        )
        gatherer = _Gatherer(tokenizer)
        gatherer.add(streamed[1][0])
        batch = maker.batch(gatherer.block(), np.array([0]), [R.row_generator(0)])
        assert int((batch["labels"] != -100).sum()) == 6
    with pytest.raises(ValueError, match=r"'masked' requires a tokenizer with mask_token.*vocabulary"):
        R.special_ids(tokenizer, "masked")
    tokenizer.sep_token = None
    with pytest.raises(ValueError, match=r"'causal' requires a tokenizer with sep_token"):
        R.special_ids(tokenizer, "causal")
