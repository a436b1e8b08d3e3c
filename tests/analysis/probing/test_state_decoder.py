"""The module's own decoder on its own states, and copies of it that are trained on others."""

import copy

import pytest
import torch
import transformers as hf
from torch import nn
from transformers.modeling_outputs import MaskedLMOutput

from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.probing.state_decoder import RetrainedDecoder, StateDecoder, States, retrain_decoders
from lmdyn.analysis.probing.tower_heads import HeadTraining
from lmdyn.models import MaskedLanguageModel

SIZES = {
    "vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 20,
    "max_position_embeddings": 20,
}  # fmt: skip
BATCH = {"input_ids": torch.arange(14).view(2, 7) + 1}
POSITIONS = torch.arange(14).view(2, 7) % 3 == 0


def model(cls, config, **changes):
    torch.manual_seed(0)
    return cls(config(**{**SIZES, **changes})).eval()


MODELS = [
    (hf.AlbertForMaskedLM, hf.AlbertConfig, {"embedding_size": 8}),
    (hf.BertForMaskedLM, hf.BertConfig, {}),
    (hf.DebertaV2ForMaskedLM, hf.DebertaV2Config, {}),  # its layers answer tuples
]


@pytest.mark.parametrize(("cls", "config", "changes"), MODELS)
def test_the_last_state_gives_the_modules_own_logits(cls, config, changes):
    module = model(cls, config, **changes)
    own = module(**BATCH).logits[POSITIONS]
    decoder = StateDecoder(module)
    last = module.base_model(**BATCH).last_hidden_state
    for _ in range(2):  # the first call still runs the layers
        assert torch.equal(decoder.logits(BATCH, last, POSITIONS), own)
    other = decoder.logits(BATCH, last.roll(1, -1), POSITIONS)
    assert not torch.allclose(other, own)
    assert torch.equal(module(**BATCH).logits[POSITIONS], own)  # and it is as it was
    assert not any("forward" in m.__dict__ for m in module.modules())


def test_layers_that_were_wrapped_stay_so_also_after_an_error():
    module = model(hf.BertForMaskedLM, hf.BertConfig)
    layer = module.bert.encoder.layer[0]
    wrapped = layer.forward
    layer.forward = wrapped
    with pytest.raises(RuntimeError):
        StateDecoder(module).logits(BATCH, torch.zeros(2, 7, 5), POSITIONS)
    assert layer.__dict__["forward"] is wrapped
    assert not any("forward" in m.__dict__ for m in module.modules() if m is not layer)


def test_states_of_every_time_are_decoded_as_a_model_of_that_depth_would():
    module = model(hf.AlbertForMaskedLM, hf.AlbertConfig, embedding_size=8)
    decoder, f = StateDecoder(module), EncoderMap(module, BATCH)
    x = f.start(BATCH)
    for t in range(6):
        found = decoder.logits(BATCH, x, POSITIONS)
        module.config.num_hidden_layers = t
        torch.testing.assert_close(found, module(**BATCH).logits[POSITIONS], atol=1e-5, rtol=1e-5)
        module.config.num_hidden_layers = 3
        x = f(x)


@pytest.mark.parametrize("family", ["albert", "bert"])
def test_our_own_model_is_asked_at_these_positions_only(family):
    module, state = own_model(family), torch.randn(2, 7, 16)
    found = StateDecoder(module).logits(BATCH, state, POSITIONS)
    torch.testing.assert_close(found, module._token_logits(state)[POSITIONS])


def test_electra_answers_by_another_encoder():
    module = own_model("electra")
    with pytest.raises(ValueError, match="only the generator"):
        StateDecoder(module).logits(BATCH, torch.randn(2, 7, 16), POSITIONS)


@pytest.mark.parametrize(("cls", "config", "changes"), MODELS[:2])
def test_pooled_output(cls, config, changes):
    encoder = type(model(cls, config, **changes).base_model)(config(**{**SIZES, **changes})).eval()
    output = encoder(**BATCH)
    decoder = StateDecoder(encoder)
    assert torch.equal(decoder.pooled(BATCH, output.last_hidden_state), output.pooler_output)
    without = model(cls, config, **changes).base_model  # a masked language model has no pooler
    state = torch.randn(2, 7, 16)
    assert torch.equal(StateDecoder(without).pooled(BATCH, state), state[:, 0])


# ------------------------------------------------------------------------------------------ retraining


HOW = HeadTraining(updates=12, learning_rate=0.01)


def own_model(family="albert"):
    torch.manual_seed(0)
    config = {k: v for k, v in SIZES.items() if k != "vocab_size"}
    if family == "albert":
        config["embedding_size"] = 8
    return MaskedLanguageModel(family, config=config, vocab_size=30).eval()


def states(number=12, rows=2, seed=1):
    """Batches of two times; the second tells the label, with noise."""
    g = torch.Generator().manual_seed(seed)
    vectors = torch.randn(30, 16, generator=g)
    made = []
    for _ in range(number):
        labels = torch.randint(30, (int(POSITIONS.sum()),), generator=g)
        first, second = torch.randn(2, 2, 7, 16, generator=g)
        second[POSITIONS] = vectors[labels] + 0.3 * second[POSITIONS]
        made.append(States(BATCH, POSITIONS, labels, {"0": first, "1": second}))
    return made


@pytest.mark.parametrize(("cls", "config", "changes"), MODELS)
def test_a_copy_starts_as_the_modules_decoder(cls, config, changes):
    module = model(cls, config, **changes)
    read = states(1)[0]
    decoder = StateDecoder(module)
    head = RetrainedDecoder(decoder, read)
    for state in read.states.values():
        assert torch.equal(head(BATCH, state, POSITIONS), decoder.logits(BATCH, state, POSITIONS))
    with torch.no_grad():  # and what it is trained to, the module does not see
        before = decoder.logits(BATCH, read.states["1"], POSITIONS)
        for p in head.parameters():
            p.add_(1)
        assert not torch.allclose(head(BATCH, read.states["1"], POSITIONS), before)
        assert torch.equal(decoder.logits(BATCH, read.states["1"], POSITIONS), before)


def test_training_is_that_of_a_copied_decoder():
    """Against PyTorch's own AdamW on a deep copy of the head, at the labelled positions alone."""
    module = own_model()
    before = copy.deepcopy(module.state_dict())
    heads, losses = retrain_decoders(states(), StateDecoder(module), HOW)
    for t in ("0", "1"):
        plain = copy.deepcopy(module.model.predictions)
        plain.decoder.weight = nn.Parameter(plain.decoder.weight.detach().clone())
        parameters = list(plain.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": HOW.weight_decay},
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=1.0, betas=HOW.betas)
        for update, read in enumerate(states()):
            loss = nn.functional.cross_entropy(plain(read.states[t][POSITIONS]), read.labels)
            optimizer.zero_grad()
            loss.backward()
            for group in optimizer.param_groups:
                group["lr"] = HOW.rate(update)
            optimizer.step()
        read = states()[0]
        expected = plain(read.states[t][POSITIONS]).detach()
        torch.testing.assert_close(heads[t](BATCH, read.states[t], POSITIONS), expected, atol=2e-4, rtol=0)
        assert losses["01".index(t)].item() == pytest.approx(loss.item(), abs=1e-4)
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in module.parameters())
    assert not any(p.requires_grad for head in heads.values() for p in head.parameters())


def test_a_state_that_tells_more_is_read_better():
    how = HeadTraining(updates=150, learning_rate=0.01)
    _, losses = retrain_decoders(states(150), StateDecoder(own_model()), how)
    assert losses[1] < 2 < 3 < losses[0]


def test_a_time_that_diverged_leaves_the_other_decoders_alone():
    whole, _ = retrain_decoders(states(), StateDecoder(own_model()), HOW)
    broken = [r._replace(states={**r.states, "0": r.states["0"] * torch.nan}) for r in states()]
    found, losses = retrain_decoders(broken, StateDecoder(own_model()), HOW)
    assert losses.isnan().tolist() == [True, False]
    for one, other in zip(whole["1"].parameters(), found["1"].parameters(), strict=True):
        assert torch.equal(one, other)


class Bare(nn.Module):
    """The state itself is its answer."""

    def __init__(self):
        super().__init__()
        self.bert = hf.BertForMaskedLM(hf.BertConfig(**SIZES)).bert

    def forward(self, input_ids):
        return MaskedLMOutput(logits=self.bert(input_ids=input_ids).last_hidden_state)


def test_a_decoder_without_parameters_cannot_be_retrained():
    with pytest.raises(ValueError, match="no parameter to retrain"):
        RetrainedDecoder(StateDecoder(Bare().eval()), states(1)[0])
