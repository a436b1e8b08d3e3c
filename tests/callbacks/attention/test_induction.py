"""Induction on models with weights set by hand, on a one-layer control, on any layout; ablation, bad input."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from lmdyn.analysis.attention.head_ablation import HeadPlace, ablated_heads
from lmdyn.analysis.attention.induction_scores import SCORES, uniform_attention
from lmdyn.analysis.attention.token_path import find_token_path
from lmdyn.callbacks import Induction, Run, select
from tests.helpers.architectures import ARCHITECTURES, VOCABULARY
from tests.helpers.attention_only import VOCABULARY as SMALL
from tests.helpers.attention_only import AttentionOnly, induction_model
from tests.helpers.refusals import assert_refused

BEGIN = 0


class Tokenizer:
    """One special token, which begins a text."""

    all_special_ids, bos_token_id = [BEGIN], BEGIN

    def __len__(self):
        return SMALL


def rows(vocabulary=SMALL, number=6, time=20, seed=1):
    ids = torch.randint(1, vocabulary, (number, time), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": ids[i : i + 2], "labels": ids[i : i + 2]} for i in range(0, number, 2)]


def attach(folder, probe=None, tokenizer=None, **settings):
    observer = Induction(**{"length": 8, "sequences": 20, "log_figures": False, **settings})
    observer.probe = rows() if probe is None else probe
    observer.attach(Run(folder, tokenizer=tokenizer))
    return observer


def value(table, quantity, **where):
    (found,) = select(table, quantity=quantity, **where)["value"]
    return found


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    observer = attach(tmp_path_factory.mktemp("run"), tokenizer=Tokenizer(), top=1, draws=20)
    return observer.observe(induction_model(), 0)


# ---------------------------------------------------------------- models of which the numbers are known


def test_a_model_set_by_hand_continues_by_induction(by_hand):
    """A previous-token head and an induction head score 1, and nothing else does."""
    for layer, head, name in ((1, 0, "previous_token"), (2, 0, "prefix_matching")):
        assert value(by_hand, name, site=f"layer{layer}", head=head) == pytest.approx(1, abs=1e-6)
        for other in set(SCORES) - {name}:
            assert value(by_hand, other, site=f"layer{layer}", head=head) == pytest.approx(0, abs=1e-6)
    for layer in (1, 2):  # heads without weights
        for name in SCORES:
            found = value(by_hand, name, site=f"layer{layer}", head=1)
            assert found == pytest.approx(uniform_attention(8, 1), rel=1e-5)
            assert value(by_hand, f"{name}_error", site=f"layer{layer}", head=1) == pytest.approx(0, abs=1e-6)
    copying = by_hand[by_hand["quantity"].eq("copying")]
    assert copying[["site", "head"]].to_numpy().tolist() == [["layer2", 0]]  # no other reaches the logits
    assert copying["value"].item() == pytest.approx(1)
    assert value(by_hand, "second_loss") < 1e-3
    assert value(by_hand, "first_loss") > math.log(SMALL) - 1
    difference = value(by_hand, "second_loss") - value(by_hand, "first_loss")
    assert value(by_hand, "second_minus_first") == pytest.approx(difference, abs=1e-12)


def test_ablation_of_the_induction_head_takes_the_gain_away(by_hand):
    best = value(by_hand, "second_loss_rise", ablated="best")
    assert best > math.log(SMALL) - 1
    draws = by_hand[by_hand["quantity"].eq("second_loss_rise") & by_hand["ablated"].eq("random")]
    assert draws["draw"].tolist() == [0, 1, 2]  # of 20: there are three other heads
    # of the three other heads, two do nothing; without the previous-token head there is no induction either
    assert set(draws["value"].abs() > 1) == {True, False}
    assert (draws["value"][draws["value"].abs() < 1] == 0).all()


def test_values_keep_what_is_constant():
    """A head that adds the same to every logit has no effect, and neither have its own outputs; zero has."""
    model = induction_model()
    with torch.no_grad():  # head 1 of the second layer adds the position of the first token to the stream
        second = model.layers[1].self_attn
        second.q_proj.weight[24:48, 28:] = 0
        second.v_proj.weight[24, 28:] = 1.0  # every position vector has one 1: constant
        second.o_proj.weight[:3, 24] = 0.8
        place = {"b": HeadPlace("layers.1.self_attn.o_proj", 2)}
        ids = rows(number=2)[0]["input_ids"]
        plain, values = model(ids), torch.eye(24)[:1].expand(2, 24)
        with ablated_heads(model, place, [("b", 0, 1)], {("b", 0): values}):
            by_value = model(ids)
        with ablated_heads(model, place, [("b", 0, 1)]):
            by_zero = model(ids)
    torch.testing.assert_close(by_value, plain)
    assert (by_zero - plain)[..., :3].abs().min() > 1


def test_one_layer_cannot_match_prefixes_by_content(tmp_path):
    """Without positions, attention depends on the two tokens, and the token after is any of the others.

    Whatever the weights are, the expected score is at most 1 / (length − 1): a bound that the two-layer model breaks.
    """
    length = 8
    bound = 1 / (length - 1)
    for seed in range(2):
        torch.manual_seed(seed)
        control = AttentionOnly(layers=1, positions=False)
        for p in control.parameters():
            nn.init.normal_(p, std=0.5)
        observer = attach(tmp_path / str(seed), length=length, sequences=60, vocab_size=SMALL)
        table = observer.observe(control.eval(), 0)
        for head in range(2):
            score = value(table, "prefix_matching", head=head)
            assert score < bound + 4 * value(table, "prefix_matching_error", head=head)
    table = attach(tmp_path / "two", length=length, tokenizer=Tokenizer()).observe(induction_model(), 0)
    assert value(table, "prefix_matching", site="layer2", head=0) > 6 * bound


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox", "bert"])
def test_without_queries_attention_is_uniform(tmp_path, name):
    """A model that reads later tokens has another floor."""
    model = ARCHITECTURES[name]()
    for path, p in model.named_parameters():
        if any(part in path for part in ("c_attn", "q_proj", "query")):
            nn.init.zeros_(p)
    table = attach(tmp_path, rows(VOCABULARY), vocab_size=VOCABULARY).observe(model, 0)
    found = table[table["quantity"].isin(SCORES)]["value"]
    assert len(found) == 2 * 4 * 3
    np.testing.assert_allclose(found, uniform_attention(8, causal=name != "bert"), rtol=1e-5)
    assert value(table, "uniform_attention") == pytest.approx(found.mean())


# ---------------------------------------------------------------- losses of the text


class Position(nn.Module):
    """Predicts each next token t + 1 of its own vocabulary ever more confidently: logits by position only."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, input_ids):
        logits = torch.zeros(*input_ids.shape, SMALL)
        following = input_ids % (SMALL - 1) + 1
        place = torch.arange(1.0, input_ids.shape[1] + 1)
        values = (self.scale * place).expand(input_ids.shape)
        return logits.scatter(2, following[..., None], values[..., None])


def cyclic(number=4, time=20):
    start = torch.arange(number)[:, None]
    return (start + torch.arange(time)) % (SMALL - 1) + 1


def test_losses_by_context_are_those_of_the_model(tmp_path):
    ids = cyclic()
    observer = attach(tmp_path, [{"input_ids": ids}], vocab_size=SMALL)
    table = observer.observe(Position(), 0)
    expected = {n: math.log(math.exp(0.3 * n) + SMALL - 1) - 0.3 * n for n in range(1, 20)}
    losses = select(table, quantity="position_loss", data="probe").set_index("position")["value"]
    assert losses.to_dict() == pytest.approx(expected, rel=1e-5)
    assert [observer.settings[name] for name in ("early", "late")] == [[1, 2], [18, 19]]
    early, late = ((expected[a] + expected[b]) / 2 for a, b in ((1, 2), (18, 19)))
    assert value(table, "early_loss") == pytest.approx(early, rel=1e-5)
    assert value(table, "late_minus_early") == pytest.approx(late - early, rel=1e-5)
    own = attach(tmp_path / "own", [{"input_ids": ids}], vocab_size=SMALL, early=[5, 5], late=[10, 10])
    assert value(own.observe(Position(), 0), "late_loss") == pytest.approx(expected[10], rel=1e-5)


def test_padding_is_no_context_and_rows_are_compared_with_themselves(tmp_path):
    """Padding on the left; a short row has no late tokens, so it does not count in the early loss either."""
    ids, mask = cyclic(3), torch.ones(3, 20, dtype=torch.long)
    whole = attach(tmp_path / "whole", [{"input_ids": ids[:2]}], vocab_size=SMALL).observe(Position(), 0)
    mask[2, 12:] = 0
    padded = [{"input_ids": ids, "attention_mask": mask}]
    observer = attach(tmp_path / "padded", padded, vocab_size=SMALL, early=[1, 2], late=[18, 19])
    table = observer.observe(Position(), 0)
    for name in ("early_loss", "late_loss"):
        assert value(table, name) == pytest.approx(value(whole, name), rel=1e-6)
    left = torch.cat([torch.zeros(1, 4, dtype=torch.long), cyclic(1)], 1)
    mask = torch.cat([torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 20, dtype=torch.long)], 1)
    padded = [{"input_ids": left, "attention_mask": mask}]
    table = attach(tmp_path / "left", padded, vocab_size=SMALL).observe(Position(), 0)
    losses = table[table["quantity"].eq("position_loss") & table["data"].eq("probe")]
    assert losses["position"].tolist() == list(range(1, 20))


def test_rows_too_short_for_a_late_loss_are_said(tmp_path, caplog):
    for time in (1, 2):
        probe = [{"input_ids": cyclic(4, time)}]
        with caplog.at_level("INFO"):
            table = attach(tmp_path / str(time), probe, vocab_size=SMALL).observe(Position(), 0)
        assert not table["quantity"].isin(["early_loss", "late_loss", "late_loss_rise"]).any()
        assert f"no late loss: the late context [{max(1, time - 1)}" in caplog.text
        assert table["value"].notna().all()


# ---------------------------------------------------------------- any module


CAUSAL = {
    *SCORES, *(f"{name}_error" for name in SCORES), "uniform_attention", "copying", "first_loss", "second_loss",
    "second_minus_first", "second_minus_first_error", "early_loss", "late_loss", "late_minus_early", "position_loss",
    "second_loss_rise", "late_loss_rise",
}  # fmt: skip
HEADS = {"copying", "uniform_attention", "second_loss_rise", "late_loss_rise"} | {
    n for n in CAUSAL if n.startswith(SCORES)
}
ATTENTION = {"uniform_attention"} | {n for n in CAUSAL if n.startswith(SCORES)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt2", CAUSAL), ("llama", CAUSAL), ("opt", CAUSAL), ("looped_llama", CAUSAL),
        ("nanogpt", CAUSAL), ("own_lstm", CAUSAL - HEADS),
        ("bert", ATTENTION), ("albert", ATTENTION), ("t5", ATTENTION), ("recurrent_depth", CAUSAL - {"copying"}),
    ],
)  # fmt: skip
def test_any_architecture_has_what_is_meaningful(tmp_path, name, expected):
    observer = attach(tmp_path, rows(VOCABULARY), vocab_size=VOCABULARY)
    table = observer.observe(ARCHITECTURES[name](), 0)
    assert set(table["quantity"]) == expected
    assert np.isfinite(table["value"]).all()
    assert not table.duplicated([c for c in table if c not in ("step", "tokens", "value")]).any()
    if name in ("albert", "looped_llama"):
        sites = set(table[table["quantity"].eq("prefix_matching")]["site"])
        assert len(sites) == 2
        assert all(site[-2:] in ("@0", "@1") for site in sites)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "opt", "llama", "nanogpt_slow", "looped_llama"])
def test_ablating_all_heads_is_a_model_without_attention(tmp_path, name):
    """Against a second way: the attention modules' output projections with weights of zero."""
    model = ARCHITECTURES[name]()
    observer = attach(tmp_path, rows(VOCABULARY), sequences=4, vocab_size=VOCABULARY)
    observer.bind(model)
    places = observer._read.places
    ids = rows(VOCABULARY)[0]["input_ids"]
    every = [(s, run, head) for s, p in places.items() for run in range(p.runs) for head in range(p.heads)]

    def logits():
        with torch.no_grad():
            output = model(ids, ids) if name == "nanogpt_slow" else model(ids)
        return output[0] if isinstance(output, tuple) else output.logits

    plain = logits()
    with ablated_heads(model, places, every):
        ablated = logits()
    assert torch.equal(logits(), plain)  # nothing is left behind
    modules = dict(model.named_modules(remove_duplicate=False))
    with torch.no_grad():
        for place in places.values():
            modules[place.path].weight.zero_()
    assert not torch.allclose(plain, ablated)
    torch.testing.assert_close(ablated, logits())


def test_one_run_of_a_shared_layer_is_ablated_alone():
    model = ARCHITECTURES["looped_llama"]()
    place = {"layer": HeadPlace("model.layers.0.self_attn.o_proj", 4, runs=2)}
    ids = rows(VOCABULARY)[0]["input_ids"]
    with torch.no_grad():
        outputs = []
        for heads in ([("layer", 0, 1)], [("layer", 1, 1)], [("layer", 0, 1), ("layer", 1, 1)]):
            with ablated_heads(model, place, heads):
                outputs += [model(ids).logits, model(ids).logits]
    assert all(torch.equal(outputs[i], outputs[i + 1]) for i in (0, 2, 4))
    assert not torch.allclose(outputs[0], outputs[2])
    assert not torch.allclose(outputs[0], outputs[4])


class Reads(nn.Module):
    """Uses the weight of a layer that it does not call."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return x @ self.layer.weight


def test_heads_that_cannot_be_ablated_are_errors():
    def ablate(model, given, path, heads, head):
        with ablated_heads(model, {"a": HeadPlace(path, heads)}, [head]):
            model(given)

    gpt2, path, ids = ARCHITECTURES["gpt2"](), "transformer.h.0.attn.c_proj", torch.tensor([[1, 2]])
    for head in (("a", 0, 4), ("a", 1, 0), ("b", 0, 0)):
        with pytest.raises(ValueError, match="count heads and runs from 0"):
            ablate(gpt2, ids, path, 4, head)
    with pytest.raises(RuntimeError, match="did not call"):
        ablate(Reads(), torch.ones(1, 4), "layer", 2, ("a", 0, 0))


def test_factors_of_token_vectors_are_followed():
    """OPT with narrower token vectors; against the product of the whole tables."""
    from transformers import OPTConfig, OPTForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16}
    config = OPTConfig(vocab_size=30, **sizes, word_embed_proj_dim=8, max_position_embeddings=32)
    model = OPTForCausalLM(config).eval()
    batch = {"input_ids": torch.tensor([[4, 5, 6]])}
    path = find_token_path(model, batch, 16)
    decoder = model.model.decoder
    embedding = decoder.embed_tokens.weight @ decoder.project_in.weight.T
    unembedding = model.lm_head.weight @ decoder.project_out.weight
    expected = (embedding.T @ unembedding).detach().double()
    torch.testing.assert_close(path(), expected, rtol=1e-4, atol=1e-6)
    assert not isinstance(find_token_path(ARCHITECTURES["gpt2"](), batch, 32), str)
    assert "have 8 dimensions, but the blocks have 12" in find_token_path(model, batch, 12)
    assert isinstance(find_token_path(ARCHITECTURES["bert"](), batch, 32), str)
    assert callable(find_token_path(ARCHITECTURES["own_lstm"](), batch, 32))


# ---------------------------------------------------------------- bad input


GPT = {"probe": rows(VOCABULARY), "vocab_size": VOCABULARY}


def test_refusals(tmp_path):
    def observe(name="gpt2", **settings):
        attach(tmp_path, **{**GPT, **settings}).observe(ARCHITECTURES[name](), 0)

    assert_refused(
        observe,
        ({"early": [5, 4]}, r"early is \[5, 4\]: expected a first and a last"),
        ({"vocab_size": 5}, "8 different tokens, got 5: lower"),
        ({"probe": [{"labels": torch.zeros(2, 3)}]}, "expected batches with `input_ids`, got labels: set"),
        ({"length": 40}, r"repeated tokens of at most 64 tokens, .* got 80: lower `length`"),
        ({"name": "torch_transformer", "length": 40}, r"could not read rows of 80 tokens.*, lower `length`"),
    )


def test_a_tagger_has_no_loss_of_next_tokens(tmp_path, caplog):
    model = ARCHITECTURES["gpt2"]()
    model.lm_head = nn.Linear(32, 5)
    probe = [{"input_ids": b["input_ids"], "labels": b["input_ids"] % 5} for b in rows(VOCABULARY)]
    table = attach(tmp_path, probe, vocab_size=VOCABULARY, labels="aligned").observe(model, 0)
    assert set(table["quantity"]) == ATTENTION
    assert "logits of all 256 tokens, got (2, 16, 5)" in caplog.text


def test_another_module_at_a_later_step_has_its_own_numbers(tmp_path):
    """Copying is read from the weights of the module that is observed, not of the one that was met first."""
    settings = {**GPT, "sequences": 4, "top": 0}
    first, second = ARCHITECTURES["gpt2"](), ARCHITECTURES["gpt2"]()
    with torch.no_grad():
        for p in second.parameters():
            p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    alone = attach(tmp_path / "alone", **settings).observe(second, 1)
    after = attach(tmp_path / "after", **settings)
    before = after.observe(first, 1)
    pd.testing.assert_frame_equal(after.observe(second, 1), alone)
    assert not before.equals(alone)
