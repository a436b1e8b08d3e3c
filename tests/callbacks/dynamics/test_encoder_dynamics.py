"""``EncoderDynamics``: its numbers are those of the functions, its sentences the text's; what it refuses."""

import logging

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel

from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.dynamics.long_run import long_run
from lmdyn.analysis.dynamics.synchronization import deviation
from lmdyn.analysis.dynamics.synchronized_map import synchronized_map, transverse_exponents
from lmdyn.analysis.orbits.orbit_kind import orbit_kind
from lmdyn.analysis.orbits.trajectories import iterate
from lmdyn.analysis.orbits.transients import transient_length
from lmdyn.callbacks import EncoderDynamics, Run, select
from lmdyn.callbacks.dynamics.encoder_runs import zero_one_rows
from lmdyn.datamodules import GrammarCorpus, PretrainingCorpus
from lmdyn.models import MaskedLanguageModel
from tests.helpers.dynamics_arguments import grouped
from tests.helpers.refusals import assert_refused
from tests.helpers.small_runs import PIECES

pytestmark = pytest.mark.slow

SMALL = {
    "length": 12, "lengths": (6, 20), "sentences": 7, "short_steps": 100, "short_tau": 10,
    "dimension_times": (0, 20, 60), "long_steps": 400, "long_tau": 10, "check": 2, "check_steps": 100, "max_period": 8,
    "examples": 2, "batch_size": 3, "dtype": "float64", "log_figures": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    sizes = {**PIECES, "n_train_tokens": 1000, "n_validation_tokens": 600}
    corpus = GrammarCorpus(**sizes, cache_dir=str(tmp_path_factory.mktemp("cache")))
    data = PretrainingCorpus(corpus, sequence_length=20, batch_size=4)
    data.prepare_data()
    data.setup("fit")
    return data


def module(scale=0.25, **changes):
    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3}
    model = MaskedLanguageModel("albert", {**sizes, "num_attention_heads": 2, **changes}, vocab_size=200)
    with torch.no_grad():
        for p in model.encoder.encoder.parameters():
            if p.ndim > 1:
                p.normal_(std=scale)
    return model


def observer(data, tmp_path, **changes):
    found = EncoderDynamics(**grouped(**{**SMALL, **changes}))
    found.attach(Run(tmp_path, data.tokenizer, data.token_counts, datamodule=data))
    return found


@pytest.fixture(scope="module")
def observed(data, tmp_path_factory):
    model = module()
    return model, observer(data, tmp_path_factory.mktemp("run")).observe(model, 5)


def values(table, quantity, **where):
    return select(table, quantity=quantity, **where)["value"].to_numpy()


def sentences(data, n=7):
    """The text of the validation rows: masked tokens put back."""
    batches = list(data.val_dataloader())
    ids = [torch.where(b["labels"] == -100, b["input_ids"], b["labels"]) for b in batches]
    return torch.cat(ids)[:n]


def test_sentences_are_the_text(data, tmp_path):
    whole, mask = sentences(data), data.tokenizer.mask_token_id
    rows = observer(data, tmp_path)._rows["input_ids"]
    assert torch.equal(rows, whole)
    assert not bool((rows == mask).any())
    assert bool((rows[:, 0] == data.tokenizer.cls_token_id).all())
    cut = EncoderDynamics._cut({"input_ids": rows}, 6)["input_ids"]
    assert torch.equal(cut, torch.cat([whole[:, :5], whole[:, -1:]], 1))


def test_short_term_is_what_the_functions_say(data, observed):
    model, table = observed
    whole = sentences(data)
    for length in (6, 12, 20):
        ids = torch.cat([whole[:, : length - 1], whole[:, -1:]], 1)
        f = EncoderMap(model, {"input_ids": ids}, dtype=torch.float64)
        x = f.start({"input_ids": ids})
        d = iterate(f, x, 100, {"d": deviation}).observables["d"]
        offset = (d < 1e-5).int().argmax(0)
        assert bool((offset > 0).all())
        np.testing.assert_array_equal(values(table, "sentence_offset", length=length), offset)
        mean = pytest.approx(offset.double().mean().item())
        assert values(table, "synchronization_offset", length=length) == mean
        assert values(table, "synchronized_share", length=length) == [1.0]
        if length == 12:
            np.testing.assert_allclose(values(table, "deviation"), d.mean(1), rtol=1e-9, atol=1e-5)
            states = [x]
            for _ in range(60):
                states.append(f(states[-1]))
            for t in (0, 20, 60):
                flat = states[t].detach().flatten(1).numpy()
                centred = flat - flat.mean(0)
                spectrum = np.linalg.eigvalsh(centred @ centred.T)
                share = spectrum / spectrum.sum()
                expected = pytest.approx(1 / (share**2).sum(), rel=1e-6)
                assert values(table, "effective_dimension", t=t) == expected


def test_dimension_of_more_sentences_than_are_followed(data, observed, tmp_path):
    model, whole = observed
    few = observer(data, tmp_path, short_sentences=3, dimension_sentences=7, long_steps=0).observe(model, 5)
    expected = values(whole, "effective_dimension")
    np.testing.assert_allclose(values(few, "effective_dimension"), expected, rtol=1e-6)
    np.testing.assert_allclose(values(few, "share_of_ceiling"), values(few, "effective_dimension") / 6)
    assert len(values(few, "sentence_offset", length=12)) == 3


@pytest.mark.slow
def test_transverse_exponent_with_the_steps_in_which_differences_turn(data, observed, tmp_path):
    """Over all steps by a setting; without the first 200, orbit by orbit, it is in the test of the long term."""
    model, _ = observed
    few = {"short_steps": 20, "dimension_times": (0,), "long_steps": 100, "check_steps": 10}
    table = observer(data, tmp_path, **few, transverse_skip=0).observe(model, 5)
    ids = sentences(data)[:4]
    ids = torch.cat([ids[:, :11], ids[:, -1:]], 1)
    f = EncoderMap(model, {"input_ids": ids}, dtype=torch.float64)
    x = f.start({"input_ids": ids}).mean(1, keepdim=True).expand(-1, 12, -1)
    for _ in range(200):
        x = f(x)
    eager = EncoderMap(model, {"input_ids": ids}, dtype=torch.float64, attention="eager")
    expected = transverse_exponents(eager, x.mean(1), 10, 200, 0)
    assert values(table, "transverse_exponent") == pytest.approx(float(expected.mean()), rel=1e-6)


def test_second_opinion_of_what_was_followed():
    rates, x, seen = torch.tensor([3.55, 4.0, 3.9], dtype=torch.float64), 0.3, []
    for _ in range(400):
        x = rates * x * (1 - x)
        seen.append(x)
    observed = torch.stack(seen)
    observed[300:, 2] = torch.nan  # it recurred, and was no longer followed
    rows = [
        ({**place}, value["sentence_zero_one"])
        for place, value in zero_one_rows(observed, ["cycle", "chaotic", "cycle"], 10)
    ]
    assert {(place["sentence"], place["kind"]) for place, _ in rows} == {(0, "cycle"), (1, "chaotic")}
    last = {place["sentence"]: k for place, k in rows if place["t"] == 4000}
    assert abs(last[0]) < 0.2
    assert last[1] > 0.9
    assert not list(zero_one_rows(observed[:99, :2], ["cycle", "chaotic"], 10))  # too few values


def test_long_term_is_what_the_functions_say(data, observed):
    model, table = observed
    ids = sentences(data)
    ids = torch.cat([ids[:, :11], ids[:, -1:]], 1)
    f = EncoderMap(model, {"input_ids": ids}, dtype=torch.float64)
    reduced = synchronized_map(f)
    run = long_run(f, f.start({"input_ids": ids}), 10, 400, reduced=reduced, end_recurrent=True, batch_size=3)
    ends = transient_length(run.exponents, 10, 20, run.recurred_at)
    np.testing.assert_array_equal(values(table, "sentence_transient_length"), ends.length)
    np.testing.assert_allclose(values(table, "sentence_exponent"), ends.mean_exponent, rtol=1e-9)
    for i, end in enumerate(run.ended_at.where(run.ended_at >= 0, 400).tolist()):
        assert float(run.observed[end // 10 - 1, i]) == float(run.final[i, 0])
        assert bool(run.observed[: end // 10, i].isfinite().all())
        assert bool(run.observed[end // 10 :, i].isnan().all())
    mean = run.exponents.nanmean(1)
    followed = int(run.ended_at.where(run.ended_at >= 0, 400).min()) // 10
    first = int(run.switched_at.max()) // 10
    found = table[(table["quantity"] == "local_exponent") & (table["term"] == "long")].set_index("t")["value"]
    there = [t for t in found.index if first <= t // 10 < followed]
    assert there
    np.testing.assert_allclose(found[there], mean[[t // 10 for t in there]], rtol=1e-9)
    chaotic = (ends.length > 0).double().mean()
    assert values(table, "chaotic_share") == [float(chaotic)]
    assert values(table, "orbit_share").sum() == pytest.approx(1.0)
    how = {"tau": 10, "earlier": run.exponents, "perturbation": run.delta}
    kinds = orbit_kind(reduced, run.final, 0, tolerance=1e-5, max_period=8, **how)
    np.testing.assert_allclose(values(table, "sentence_orbit_exponent"), kinds.exponent, rtol=1e-9)
    assert table.loc[table["quantity"] == "sentence_orbit_exponent", "kind"].tolist() == kinds.kinds
    apart = transverse_exponents(
        EncoderMap(model, {"input_ids": ids}, dtype=torch.float64, attention="eager"), kinds.final, 10, 400
    )[20:].mean(0)
    np.testing.assert_allclose(values(table, "sentence_orbit_transverse_exponent"), apart, rtol=1e-6)
    both = torch.maximum(kinds.exponent, apart)
    assert values(table, "full_lyapunov_exponent") == [pytest.approx(float(both.mean()), rel=1e-6)]
    shares = (kinds.length > 0, kinds.transient_undetermined)
    for quantity, share in zip(("transient_share", "undetermined_transient_share"), shares, strict=True):
        assert values(table, quantity) == [float(share.double().mean())]
    for width in (10, 20, 40):
        assert len(values(table, "transient_length", width=width)) == 1
    assert values(table, "transverse_exponent") < 0
    assert values(table, "full_map_exponent") == pytest.approx(values(table, "reduced_map_exponent"), abs=0.1)


def test_example_sentence(observed):
    _, table = observed
    weights = table[table["quantity"] == "attention"]
    sums = weights.groupby(["t", "token"])["value"].sum()
    np.testing.assert_allclose(sums, 1.0, rtol=1e-6)
    assert set(weights["t"]) == {0, 50, 100}
    assert len(values(table, "first_element", token=0)) == 101
    late = weights[weights["t"] == 100]["value"].to_numpy()
    np.testing.assert_allclose(late, 1 / 12, atol=1e-6)  # uniform once synchronized
    components = [values(table, "principal_component", component=c) for c in (1, 2, 3)]
    assert [len(c) for c in components] == [1001] * 3
    assert components[0].var() >= components[1].var() >= components[2].var()


def test_observations_repeat_and_ignore_global_precision(data, tmp_path, observed):
    model, table = observed
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            again = observer(data, tmp_path).observe(model, 5)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    np.testing.assert_array_equal(again["value"], table["value"])


def test_precision_that_does_not_resolve_synchronization_is_said(data, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        table = observer(data, tmp_path, threshold=1e-16, long_steps=200).observe(module(), 7)
    assert values(table, "deviation_floor") > 1e-16
    assert "This precision does not resolve synchronization" in caplog.text
    assert values(table, "transverse_exponent") < 0
    assert "synchronization_offset" not in set(table["quantity"])
    assert len(values(table, "mean_exponent")) == 1


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(x)


def test_unstable_synchronization_is_said(data, tmp_path, caplog):
    model = module()
    layer = model.encoder.encoder.albert_layer_groups[0].albert_layers[0]
    layer.activation = Sine()
    with torch.no_grad():  # chaotic tokens that hardly see each other
        layer.attention.dense.weight.mul_(0.01)
        layer.ffn.weight.normal_(std=3.0)
        layer.ffn_output.weight.normal_(std=3.0)
    with caplog.at_level(logging.WARNING):
        table = observer(data, tmp_path, long_steps=200).observe(model, 7)
    assert values(table, "transverse_exponent") > 0
    assert "Synchronization is unstable in this model" in caplog.text
    assert "synchronization_offset" not in set(table["quantity"])
    assert len(values(table, "mean_exponent")) == 1
    assert values(table, "orbit_share").sum() == pytest.approx(1.0)


def test_what_is_refused(data, tmp_path):
    assert_refused(
        lambda **changes: EncoderDynamics(**grouped(**{**SMALL, **changes})),
        ({"short_tau": 7}, "short_term.steps must be a multiple of tau=7, got 100"),
        ({"long_tau": 30}, "long_term.steps must be a multiple"),
        ({"check_steps": 15}, "long_term.check_steps must be a multiple"),
        ({"dimension_times": (0, 170)}, "increase within 0 … 100, got 0, 170"),
        ({"tolerance": float("nan")}, "tolerance is nan"),
        ({"short_step": 5}, "has no argument 'short_step', did you mean 'short_term'"),
    )
    assert_refused(
        lambda **changes: observer(data, tmp_path, **changes),
        ({"lengths": (30,)}, "expected 7 sentences of 30 tokens"),
        ({"sentences": 900}, "900 sentences of 20 tokens"),
    )
    assert_refused(
        observer(data, tmp_path).check_module,
        (module(max_position_embeddings=16), "sentences of at most 16 tokens, .* got 20: remove"),
        (nn.Linear(2, 2), "models of transformers"),
    )
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "vocab_size": 200}
    observer(data, tmp_path).check_module(BertModel(BertConfig(**sizes)))
