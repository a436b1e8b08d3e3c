"""Depth heads: the module's own decoder on its own states, readouts against separate training and least squares."""

import pytest
import torch
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    DebertaV2Config,
    DebertaV2ForMaskedLM,
)

from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.probing.depth_heads import (
    ReadoutTraining,
    StateDecoder,
    prediction_sums,
    train_linear_readouts,
)
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
    (AlbertForMaskedLM, AlbertConfig, {"embedding_size": 8}),
    (BertForMaskedLM, BertConfig, {}),
    (DebertaV2ForMaskedLM, DebertaV2Config, {}),  # its layers answer tuples
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
    module = model(BertForMaskedLM, BertConfig)
    layer = module.bert.encoder.layer[0]
    wrapped = layer.forward
    layer.forward = wrapped
    with pytest.raises(RuntimeError):
        StateDecoder(module).logits(BATCH, torch.zeros(2, 7, 5), POSITIONS)
    assert layer.__dict__["forward"] is wrapped
    assert not any("forward" in m.__dict__ for m in module.modules() if m is not layer)


def test_states_of_every_time_are_decoded_as_a_model_of_that_depth_would():
    module = model(AlbertForMaskedLM, AlbertConfig, embedding_size=8)
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
    torch.manual_seed(0)
    config = {k: v for k, v in SIZES.items() if k != "vocab_size"}
    module = MaskedLanguageModel(family, config=config, vocab_size=30).eval()
    state = torch.randn(2, 7, 16)
    found = StateDecoder(module).logits(BATCH, state, POSITIONS)
    torch.testing.assert_close(found, module._token_logits(state)[POSITIONS])


def test_electra_answers_by_another_encoder():
    config = {k: v for k, v in SIZES.items() if k != "vocab_size"}
    module = MaskedLanguageModel("electra", config=config, vocab_size=30).eval()
    with pytest.raises(ValueError, match="the generator alone"):
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


def test_prediction_sums():
    torch.manual_seed(0)
    logits, labels = torch.randn(50, 7), torch.randint(7, (50,))
    right, loss = prediction_sums(logits, labels)
    assert right == sum(int(row.argmax() == y) for row, y in zip(logits, labels, strict=True))
    reference = nn.functional.cross_entropy(logits, labels, reduction="sum").double()
    torch.testing.assert_close(loss, reference, atol=1e-4, rtol=0)
    logits[3] = torch.nan
    lost, nan = prediction_sums(logits, torch.where(torch.arange(50) == 3, logits[3].argmax(), labels))
    assert lost <= right
    assert nan.isnan()
    assert (prediction_sums(logits[:0], labels[:0]) == 0).all()


# ------------------------------------------------------------------------------------------ linear readouts


def alone(features, targets, how):
    """One readout as nn.Linear."""
    layer = nn.Linear(features.shape[1], 1)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(layer.parameters(), lr=how.learning_rate)
    generator = torch.Generator().manual_seed(how.seed)
    for _ in range(how.epochs):
        for rows in torch.randperm(len(targets), generator=generator).split(how.batch_size):
            loss = nn.functional.mse_loss(layer(features[rows])[:, 0], targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return layer


def test_together_is_each_alone():
    torch.manual_seed(0)
    features, targets = torch.randn(3, 50, 6).double(), torch.randn(50).double()
    torch.set_default_dtype(torch.float64)
    try:
        how = ReadoutTraining(epochs=4, learning_rate=1e-2, batch_size=8, seed=3)
        found = train_linear_readouts(features, targets, how)
        for t in range(3):
            layer = alone(features[t], targets, how)
            torch.testing.assert_close(found.weight[t], layer.weight[0].detach(), atol=1e-10, rtol=0)
            torch.testing.assert_close(found(features)[t], layer(features[t])[:, 0].detach())
    finally:
        torch.set_default_dtype(torch.float32)
    other = train_linear_readouts(features, targets, ReadoutTraining(4, 1e-2, 8, seed=4))
    assert not torch.allclose(other.weight, found.weight, atol=1e-6)  # the order counts


def test_long_training_is_least_squares():
    torch.manual_seed(0)
    features, targets = torch.randn(2, 80, 4).double(), torch.randn(80).double()
    how = ReadoutTraining(epochs=1500, learning_rate=1e-2, batch_size=80)
    found = train_linear_readouts(features, targets, how)
    for t in range(2):
        with_bias = torch.cat([features[t], torch.ones(80, 1)], 1)
        solution = torch.linalg.lstsq(with_bias, targets[:, None]).solution[:, 0]
        torch.testing.assert_close(
            torch.cat([found.weight[t], found.bias[t : t + 1]]), solution, atol=1e-5, rtol=0
        )


def test_a_time_that_diverged_leaves_the_others_alone():
    torch.manual_seed(0)
    features, targets = torch.randn(3, 40, 4), torch.randn(40)
    broken = features.clone()
    broken[1, 7] = torch.nan
    how = ReadoutTraining(epochs=2)
    whole, found = (train_linear_readouts(x, targets, how) for x in (features, broken))
    assert found.weight[1].isnan().all()
    torch.testing.assert_close(found.weight[[0, 2]], whole.weight[[0, 2]])


def test_errors():
    for bad in ({"epochs": 0}, {"learning_rate": 0.0}, {"batch_size": 0}):
        with pytest.raises(ValueError, match="expected epochs and batch_size"):
            ReadoutTraining(**bad)
    with pytest.raises(ValueError, match="got 3 for 4"):
        train_linear_readouts(torch.zeros(1, 4, 2), torch.zeros(3), ReadoutTraining())
