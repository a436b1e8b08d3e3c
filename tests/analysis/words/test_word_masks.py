"""Masked copies and words that are right, against loops over single words."""

import pytest
import torch

from lmdyn.analysis.words.word_masks import masked_copies, number_words, word_hash, words_right

MASK = 99


def sentences(seed=0, n=9, longest=12):
    """Sentences of 0 to ``longest`` pieces between two special tokens; words of up to 4 pieces, some without any."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.zeros(n, longest + 2, dtype=torch.int64)
    words, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
    for i in range(n):
        length = int(torch.randint(0 if i == 0 else 1, longest + 1, (), generator=g)) if i else 0
        ids[i, : length + 2] = torch.randint(3, 90, (length + 2,), generator=g)
        mask[i, : length + 2] = 1
        steps = (torch.rand(length, generator=g) < 0.6).long() * torch.randint(1, 3, (length,), generator=g)
        words[i, 1 : length + 1] = steps.cumsum(0)
    return {"input_ids": ids, "words": words, "attention_mask": mask, "example": torch.arange(n)}


def naive(batch):
    """(row, word, positions) of each word."""
    found = []
    for row, words in enumerate(batch["words"].tolist()):
        for word in sorted({w for w in words if w >= 0}):
            found.append((row, word, [t for t, w in enumerate(words) if w == word]))
    return found


def test_words_are_those_of_a_loop():
    batch = sentences()
    words, expected = number_words(batch["words"]), naive(batch)
    assert len(words) == len(expected) > 20
    assert any(len(p) > 1 for *_, p in expected)
    for i, (row, word, positions) in enumerate(expected):
        assert (words.row[i], words.word[i], words.first[i]) == (row, word, positions[0])
        assert words.pieces[i] == len(positions)
        assert (words.number == i).nonzero().tolist() == [[row, t] for t in positions]
    assert bool((words.number.ge(0) == batch["words"].ge(0)).all())


@pytest.mark.parametrize(("batch_tokens", "max_words"), [(1, 512), (40, 512), (10_000, 512), (10_000, 3)])
def test_each_word_is_masked_once_and_nothing_else(batch_tokens, max_words):
    batch = sentences()
    words, expected = number_words(batch["words"]), naive(batch)
    chosen = torch.arange(len(words))[::2]
    seen = []
    for copies in masked_copies(batch, words, chosen, MASK, batch_tokens=batch_tokens, max_words=max_words):
        size, time = copies.batch["input_ids"].shape
        assert size == 1 or (size * time <= batch_tokens and size <= max_words)
        assert copies.batch["attention_mask"].sum(1).max() == time  # no column of padding alone
        assert "example" not in copies.batch
        place = 0
        for i, number in enumerate(copies.words.tolist()):
            row, _, positions = expected[number]
            whole = batch["input_ids"][row].clone()
            assert copies.targets[place : place + len(positions)].tolist() == whole[positions].tolist()
            assert copies.word_of_target[place : place + len(positions)].eq(i).all()
            place += len(positions)
            whole[positions] = MASK
            assert copies.batch["input_ids"][i].tolist() == whole[:time].tolist()
            assert batch["attention_mask"][row, time:].sum() == 0
            assert copies.masked[i].nonzero()[:, 0].tolist() == positions
            assert copies.batch["words"][i].tolist() == batch["words"][row, :time].tolist()
        assert place == len(copies.targets)
        seen += copies.words.tolist()
    assert sorted(seen) == chosen.tolist()


def test_a_word_is_right_when_all_its_pieces_are():
    g = torch.Generator().manual_seed(1)
    word = torch.randint(0, 40, (150,), generator=g)
    hits = torch.rand(150, generator=g) < 0.7
    expected = [
        all(h for h, w in zip(hits.tolist(), word.tolist(), strict=True) if w == i) for i in range(41)
    ]
    assert words_right(hits, word, 41).tolist() == expected
    assert expected[40]
    assert 0 < sum(expected) < 41


def test_hashes_are_of_the_word_alone_and_uniform():
    example, word = (t.flatten() for t in torch.meshgrid(torch.arange(300), torch.arange(30), indexing="ij"))
    hashes = word_hash(example, word, 7)
    order = torch.randperm(len(word), generator=torch.Generator().manual_seed(0))
    assert torch.equal(word_hash(example[order], word[order], 7), hashes[order])
    assert len(hashes.unique()) == len(hashes)
    assert hashes.min() >= 0
    assert (hashes < 2**62).double().mean() == pytest.approx(0.5, abs=0.02)
    assert (
        abs(torch.corrcoef(torch.stack([hashes.double(), word_hash(example, word, 8).double()]))[0, 1]) < 0.03
    )
