"""Batches of any kind in one set of names, and the shift of labels."""

import pytest
import torch

from lmdyn.analysis.inspection.batches import named_batch, next_token_labels

IDS = torch.tensor([[1, 2, 3], [4, 5, 0]])
TARGETS = torch.tensor([[2, 3, 4], [5, 0, 0]])


@pytest.mark.parametrize(
    ("batch", "names"),
    [
        ((IDS, TARGETS), None),
        ([IDS, TARGETS], None),
        ({"idx": IDS, "targets": TARGETS}, None),
        ({"x": IDS, "y": TARGETS}, None),
        ({"input_ids": IDS, "targets": TARGETS}, None),
        ({"input_ids": IDS, "labels": TARGETS}, None),
        ({"a": IDS, "b": TARGETS}, {"input_ids": "a", "labels": "b"}),
        ((TARGETS, IDS.float(), IDS), {"input_ids": 2, "labels": 0}),
    ],
)
def test_ids_and_labels_are_found(batch, names):
    found = named_batch(batch, names)
    assert torch.equal(found["input_ids"], IDS)
    assert torch.equal(found["labels"], TARGETS)


def test_names_take_an_entry_and_leave_the_rest():
    batch = named_batch(
        {"idx": IDS, "labels": IDS, "targets": TARGETS}, {"input_ids": "idx", "labels": "targets"}
    )
    assert batch.keys() == {"input_ids", "labels"}
    assert torch.equal(batch["labels"], TARGETS)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (IDS.float(), r"a float32 \(2, 3\). Set `batch:"),
        ((IDS,), r"a tuple of \[int64 \(2, 3\)\]"),
        ((IDS, TARGETS[:, :2]), r"a tuple of \[int64 \(2, 3\), int64 \(2, 2\)\]"),
        ({"idx": IDS, "tokens": IDS}, r"a dict of \{idx: int64 \(2, 3\), tokens"),
        ({"source": IDS}, "Set `batch:"),
        ("text", "got text"),
    ],
)
def test_what_is_not_clear_is_refused(batch, message):
    with pytest.raises(ValueError, match=message):
        named_batch(batch)


def test_shift_leaves_out_padding_and_moves_the_layers_of_labels():
    mask = (IDS > 0).long()
    moved = next_token_labels({"input_ids": IDS, "attention_mask": mask, "target_upos": IDS, "upos": IDS})
    assert moved["labels"].tolist() == [[2, 3, -100], [5, -100, -100]]
    assert moved["target_upos"].tolist() == [[2, 3, -100], [5, -100, -100]]
    assert torch.equal(moved["upos"], IDS)
    assert next_token_labels({"input_ids": IDS, "labels": TARGETS})["labels"].tolist() == [
        [3, 4, -100],
        [0, 0, -100],
    ]
