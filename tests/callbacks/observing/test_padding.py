"""Positions whose attention_mask is 0 count in no observer; where labels lie on them, this is said."""

import logging
from functools import partial

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from transformers import BartConfig, BartForConditionalGeneration

from lmdyn.analysis.inspection.batches import next_token_labels
from lmdyn.callbacks import (
    AttentionPatterns,
    Curvature,
    Induction,
    Itself,
    Landscape,
    LearningCurves,
    ProbeSet,
    Run,
    Similarity,
    Sparsity,
    Trajectory,
    WeightSpectra,
)
from lmdyn.callbacks.observing.run import forget_reported
from tests.helpers.architectures import ARCHITECTURES, VOCABULARY

PAD = 0
LENGTHS = torch.tensor([12, 3, 7, 5])
_STEPS = torch.arange(12)
MASK = (LENGTHS[:, None] > _STEPS).long()
IDS = torch.randint(3, VOCABULARY, (4, 12), generator=torch.Generator().manual_seed(1)) * MASK
MASKED = {"input_ids": IDS, "attention_mask": MASK, "labels": IDS}
N_REAL = int((LENGTHS - 1).sum())


def left_padded(values):
    return torch.stack([row.roll(12 - int(n)) for row, n in zip(values, LENGTHS, strict=True)])


def observed(observer, probe, folder, module=None, **run):
    observer.probe = probe
    observer.attach(Run(folder, **run))
    return observer.observe(ARCHITECTURES["llama"]() if module is None else module, 0)


def warnings_of(caplog):
    """What was warned since the last call."""
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    caplog.clear()
    return said


def value_of(table, quantity):
    rows = table[table["quantity"].eq(quantity)]
    return float(rows.loc[rows["by"].eq(""), "value"].iloc[0])


def loss_by_hand(module):
    losses = []
    with torch.no_grad():
        for row, n in zip(IDS, LENGTHS, strict=True):  # each row alone, without padding
            logits = module(input_ids=row[None, :n]).logits[0]
            losses.append(F.cross_entropy(logits[:-1], row[1:n], reduction="none"))
    return torch.cat(losses)


def test_padding_on_the_left_gives_the_same_tokens(tmp_path):
    left = {name: left_padded(values) for name, values in MASKED.items()}
    position_ids = (left["attention_mask"].cumsum(1) - 1).clamp(min=0)
    module = ARCHITECTURES["llama"]()
    table = observed(LearningCurves(bands=()), [{**left, "position_ids": position_ids}], tmp_path, module)
    assert value_of(table, "loss") == pytest.approx(float(loss_by_hand(module).mean()), abs=1e-5)


@pytest.mark.parametrize("given", [{}, {"position_ids": left_padded(_STEPS.expand(4, -1))}])
def test_padding_on_the_left_without_positions_is_reported(given, caplog):
    """GPT-2 counts positions from the padding on: its numbers are those of other positions."""
    batch = {name: left_padded(values) for name, values in MASKED.items()} | given
    forget_reported("probe set")  # it is said once
    with caplog.at_level(logging.INFO):
        list(ProbeSet([batch]).batches())
    assert any("padded on the left without position_ids" in r.getMessage() for r in caplog.records) == (
        not given
    )


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_packed_documents_are_observed_as_rows(tmp_path, architecture):
    module, given = ARCHITECTURES[architecture](), MASK.bool()
    ids = IDS[given][None]
    positions = _STEPS.expand(4, 12)[given][None]
    packed = [{"input_ids": ids, "position_ids": positions, "labels": ids.where(positions > 0, -100)}]
    for make in (partial(LearningCurves, bands=()), AttentionPatterns):
        table = observed(make(), packed, tmp_path / "packed", module)
        expected = observed(make(), [MASKED], tmp_path / "rows", module)
        pd.testing.assert_frame_equal(
            table.drop(columns="tokens"), expected.drop(columns="tokens"), atol=1e-6
        )


def test_aligned_labels_and_those_of_the_tokens_follow_the_mask():
    upos = torch.ones_like(IDS)
    (aligned,) = ProbeSet([{**MASKED, "target_upos": upos}]).batches()
    assert torch.equal(aligned["labels"] == -100, MASK == 0)
    assert torch.equal(aligned["target_upos"] == -100, MASK == 0)
    for batch in (MASKED, {k: v for k, v in MASKED.items() if k != "labels"}):
        assert int((next_token_labels(batch)["labels"] != -100).sum()) == N_REAL


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        LearningCurves,
        Sparsity,
        AttentionPatterns,
        partial(Similarity, reference={"itself": Itself()}, measures=["debiased_linear_cka"]),
        partial(Curvature, eigenvalues=1, probes=2),
        partial(Landscape, reference={}, plane="random", plane_size=3),
        partial(Trajectory, words=5, min_count=1),
        partial(WeightSpectra, gradients=True),
        partial(Induction, length=4, sequences=4, vocab_size=VOCABULARY),
    ],
)
def test_padded_rows_give_the_numbers_of_rows_without_padding(make, tmp_path):
    alone = [
        {name: values[i : i + 1, : int(n)] for name, values in MASKED.items()} for i, n in enumerate(LENGTHS)
    ]
    padded, expected = (
        observed(make(labels="next"), probe, tmp_path / str(i)) for i, probe in enumerate(([MASKED], alone))
    )
    key = [name for name in padded if name not in ("tokens", "value")]
    by_key = [table.astype(dict.fromkeys(key, str)).set_index(key)["value"] for table in (padded, expected)]
    pd.testing.assert_series_equal(by_key[0], by_key[1].reindex(by_key[0].index), rtol=1e-3, atol=1e-4)


def bart():
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=16,
    )  # fmt: skip
    return BartForConditionalGeneration(config).eval()


def test_labels_of_a_decoder_follow_the_decoder_s_mask(tmp_path):
    """The encoder's text may be shorter than the decoder's in a batch of the same shape."""
    labels = IDS.masked_fill(MASK == 0, 9)
    batch = {"input_ids": IDS, "attention_mask": MASK, "labels": labels}
    module = bart()
    with torch.no_grad():
        expected = float(module(**batch).loss)
    for number, frequency in enumerate(("probe", None)):  # counts are taken before the module is known
        observer = LearningCurves(frequency=frequency, bands=(3,) if frequency else (), name=f"c{number}")
        table = observed(observer, [batch], tmp_path, module)
        assert value_of(table, "loss") == pytest.approx(expected, abs=1e-5)
    own = {**batch, "decoder_input_ids": IDS, "decoder_attention_mask": MASK, "labels": labels}
    (read,) = ProbeSet([own], decodes=True).batches()
    assert torch.equal(read["labels"] == -100, MASK == 0)


def test_labels_on_padding_are_counted_once(tmp_path, caplog):
    module = ARCHITECTURES["llama"]()
    probe = [MASKED, MASKED]
    for number in range(2):
        observer = LearningCurves(bands=(), name=f"c{number}")
        observer.probe = probe
        observer.attach(Run(tmp_path))
        observer.bind(module)
    on_padding = 2 * int((MASK == 0).sum())
    (said,) = warnings_of(caplog)
    counted = f"{on_padding} of {2 * IDS.numel()} labels"
    assert f"c0: the probe set has labels on padding (attention_mask 0; {counted})" in said
    ignored = {**MASKED, "labels": IDS.masked_fill(MASK == 0, -100)}
    observed(LearningCurves(bands=()), [ignored], tmp_path / "ignored")
    assert not warnings_of(caplog)


def test_without_a_mask_nothing_is_dropped_and_rows_that_end_in_padding_are_counted(tmp_path, caplog):
    module = ARCHITECTURES["llama"]()
    unmasked = {"input_ids": IDS, "labels": IDS}
    with torch.no_grad():
        expected = float(module(**unmasked).loss)
    table = observed(LearningCurves(bands=()), [unmasked], tmp_path, module)
    assert value_of(table, "loss") == pytest.approx(expected, abs=1e-6)
    (said,) = warnings_of(caplog)
    assert "rows that begin or end with two or more padding tokens (id 0; 3 of 4 rows)" in said
    flipped = IDS.flip(1)
    observed(LearningCurves(bands=()), [{"input_ids": flipped, "labels": flipped}], tmp_path / "begins")
    assert "3 of 4 rows" in warnings_of(caplog)[0]
    ends = IDS[:1].repeat(2, 1)
    ends[:, -1] = PAD  # one such token may end a text
    observed(LearningCurves(bands=()), [{"input_ids": ends, "labels": ends}], tmp_path / "ends")
    ignored = IDS.masked_fill(MASK == 0, -100)
    observed(LearningCurves(bands=()), [{"input_ids": IDS, "labels": ignored}], tmp_path / "ignored")
    assert not warnings_of(caplog)
