"""Two-tower models: what each kind of tower sees, and that the towers are what they would be alone."""

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from transformers import BertConfig, GPT2Config
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from lmdyn.models import TwoTowerLanguageModel
from lmdyn.models.learning_rate_schedules import decay_groups
from lmdyn.models.towers import side_by_side
from tests.helpers.refusals import assert_refused

TOWERS = ("elmo", "gpt", "bert")
VOCAB = 30


def model_of(tower: str, **kwargs) -> TwoTowerLanguageModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_layers": 2, "init_range": 0.5, "dropout": 0.0, "vocab_size": VOCAB}
    return TwoTowerLanguageModel(tower, **{**sizes, **kwargs}).double().eval()


def ids(batch: int = 3, length: int = 7) -> torch.Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(1))


def influence(model: TwoTowerLanguageModel) -> torch.Tensor:
    """(K, time, time) how strongly encoding i of each tower depends on word vector j, other rows being 0."""
    tokens = ids(1)
    captured: list[torch.Tensor] = []

    def keep(module, args, output):
        captured.append(output.requires_grad_())

    handle = model.embedding.register_forward_hook(keep)
    encodings = model.encode(tokens)
    handle.remove()
    found = []
    for encoding in encodings:
        rows = [
            torch.autograd.grad(encoding[0, i].pow(2).sum(), captured[0], retain_graph=True)[0][0]
            for i in range(tokens.shape[1])
        ]
        found.append(torch.stack([row.abs().sum(-1) for row in rows]))
    return torch.stack(found)


ALL = torch.ones(7, 7).bool()


@pytest.mark.parametrize(
    ("tower", "seen"), [("elmo", ~torch.eye(7).bool()), ("gpt", ALL.tril()), ("bert", ALL)]
)
def test_elmo_sees_all_but_the_token_itself_gpt_the_past_and_this_one_bert_the_row(tower, seen):
    assert ((influence(model_of(tower)) > 0) == seen).all()


@pytest.mark.parametrize("direction", ["forwards", "backwards"])
def test_each_direction_of_elmo_carries_information(direction):
    model = model_of("elmo")
    before = torch.stack(model.encode(ids()))
    with torch.no_grad():
        for lstm in getattr(model.towers, direction):
            for weight in lstm.parameters():
                weight.zero_()
    after = torch.stack(model.encode(ids()))
    assert not torch.isclose(after[:, :, 1:-1], before[:, :, 1:-1]).any(-1).all()
    first, last = (torch.isclose(after[:, :, end], after[:, :1, end]).all() for end in (0, -1))
    # where only biases are left to read, all rows answer the same: at one end of them, and not at the other
    assert (bool(first), bool(last)) == ((False, True) if direction == "forwards" else (True, False))


@pytest.mark.parametrize("tower", TOWERS)
def test_padding_changes_nothing(tower):
    model = model_of(tower)
    tokens, longer = ids(), torch.cat([ids(), torch.zeros(3, 4, dtype=torch.long)], 1)
    mask = (torch.arange(11) < 7).long().expand(3, -1)
    plain, padded = torch.stack(model.encode(tokens)), torch.stack(model.encode(longer, mask))
    torch.testing.assert_close(padded[:, :, :7], plain)
    other = longer.clone()
    other[:, 7:] = 5
    torch.testing.assert_close(torch.stack(model.encode(other, mask))[:, :, :7], plain)
    if tower != "gpt":  # the control: without a mask, padding is text
        assert not torch.allclose(torch.stack(model.encode(other))[:, :, :7], plain)


@pytest.mark.parametrize("tower", TOWERS)
@pytest.mark.parametrize("n_towers", [1, 2, 3])
def test_towers_do_not_see_each_other(tower, n_towers):
    model = model_of(tower, n_towers=n_towers)
    before = torch.stack(model.encode(ids()))
    with torch.no_grad():  # the last tower's vectors at its input projection
        model.input_projection.weight[-model.hidden_size :] *= -1
    after = torch.stack(model.encode(ids()))
    assert torch.equal(before[:-1], after[:-1])
    assert not torch.allclose(before[-1], after[-1])
    assert model(ids()).logits.shape == (3, 7, VOCAB)


@pytest.mark.parametrize("kind", ["gpt", "bert"])
def test_batched_blocks_are_transformers_blocks(kind):
    """Each tower of a batched block against the plain block with its weights."""
    if kind == "gpt":
        config = GPT2Config(n_embd=8, n_head=2, n_inner=20, resid_pdrop=0, attn_pdrop=0)
        make = lambda: GPT2Block(config, layer_idx=0)  # noqa: E731
    else:
        sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 20}
        config = BertConfig(**sizes, attention_probs_dropout_prob=0)
        make = lambda: BertLayer(config, layer_idx=0)  # noqa: E731
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    plain = [make().double().eval() for _ in range(2)]
    both = side_by_side(make(), 2, 0.02).double().eval()
    states = [block.state_dict() for block in plain]
    transposed = kind == "bert"  # nn.Linear keeps (out, in)
    with torch.no_grad():
        for name, parameter in both.named_parameters():
            for k, state in enumerate(states):
                value = torch.randn_like(state[name])
                state[name].copy_(value)  # in place: the plain block has it too
                value = value.T if transposed and value.ndim == 2 else value
                parameter[k].copy_(value.view_as(parameter[k]))
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    out = both(x.flatten(0, 1)).view_as(x)
    for k, block in enumerate(plain):
        torch.testing.assert_close(out[k], block(x[k]))
    assert not torch.allclose(out[0], plain[1](x[0]))


@pytest.mark.parametrize("tower", TOWERS)
def test_towers_start_alike_and_different(tower):
    model = model_of(tower)
    first, second = model.encode(ids())
    assert not torch.allclose(first, second)
    model = model_of(tower, init_range=0.02)
    weights = [p for name, p in model.towers.named_parameters() if name.endswith("weight") and p.ndim == 3]
    for weight in weights:
        if not weight.eq(1).all():  # norms
            deviations = weight.std((1, 2))
            torch.testing.assert_close(deviations[0], deviations[1], rtol=0.35, atol=0)


@pytest.mark.parametrize("tower", TOWERS)
@pytest.mark.parametrize("output", ["standard", "printed"])
def test_training_loss_is_that_of_all_logits(tower, output):
    model = model_of(tower, output=output)
    labels = ids().clone()
    labels[:, ::3] = -100
    batch = {"input_ids": ids(), "labels": labels}
    logits = model(batch["input_ids"]).logits
    if output == "printed":
        hidden = torch.cat(model.encode(batch["input_ids"]), -1)
        torch.testing.assert_close(logits, hidden @ model.embedding.weight.T)
    plain = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss = model.loss(batch)
    torch.testing.assert_close(loss, plain)
    positions = torch.tensor([[1, 2, 4, 5], [1, 2, -100, -100], [5, -100, -100, -100]])
    some = torch.full_like(labels, -100)
    for row, where in enumerate(positions):
        some[row, where[where >= 0]] = ids()[row, where[where >= 0]]
    few = F.cross_entropy(logits.flatten(0, 1), some.flatten())
    for extra in ({}, {"masked_positions": positions}):
        with torch.no_grad():
            loss = model.loss({"input_ids": ids(), "labels": some, **extra})
        torch.testing.assert_close(loss, few)
        surprisal = model.predict_step({"input_ids": ids(), "labels": some, **extra}, 0)
        assert (surprisal.isnan() == (some == -100)).all()
        torch.testing.assert_close(surprisal.nanmean(), few)
    for expected, inputs in ((plain, batch), (few, {"input_ids": ids(), "labels": some})):
        for extra in ({}, {"masked_positions": positions}) if expected is few else ({},):
            names, parameters = zip(*model.named_parameters(), strict=True)
            found = torch.autograd.grad(model.loss({**inputs, **extra}), parameters, allow_unused=True)
            own = torch.autograd.grad(expected, parameters, retain_graph=True)
            for name, a, b in zip(names, found, own, strict=True):
                assert a is not None, name  # nothing is unused: DDP would wait for it
                torch.testing.assert_close(a, b, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("tower", TOWERS)
def test_biases_and_norms_do_not_decay(tower):
    model = model_of(tower)
    decayed, others = ({id(p) for p in group["params"]} for group in decay_groups(model))
    named = dict(model.named_parameters())
    assert len(decayed) + len(others) == len(named)
    for name, parameter in named.items():
        norm = any(part in name.lower() for part in ("norm", "ln_", "head.0", "head.3"))
        assert (id(parameter) in others) == ("bias" in name or norm), name


def test_bad_arguments():
    assert_refused(
        lambda **arguments: TwoTowerLanguageModel(
            **{"tower": "bert", "hidden_size": 8, "vocab_size": 9, **arguments}
        ),
        ({"n_towers": 0}, "sizes of at least 1, got n_towers 0"),
        ({"intermediate_size": 0, "lstm_size": 0}, "got intermediate_size 0, lstm_size 0"),
        ({"num_attention_heads": 3}, "multiple of the number of attention"),
        ({"tower": "elmo", "lstm_size": 4}, "smaller than hidden_size"),
        ({"init_range": 0.0}, "init_range"),
        ({"warmup_steps": -1}, "warmup_steps"),
    )


def test_data_that_does_not_fit_is_refused():
    def configure(tower, objective, vocabulary=VOCAB):
        model = model_of(tower)
        model._trainer = mock.Mock(datamodule=mock.Mock(objective=objective, tokenizer=range(vocabulary)))
        model.configure_model()

    assert_refused(
        configure,
        ({"tower": "gpt", "objective": "cloze"}, "the data is for 'cloze'"),
        ({"tower": "elmo", "objective": "causal"}, "the data is for 'causal'"),
        ({"tower": "bert", "objective": "causal"}, "the data is for 'causal'"),
        ({"tower": "gpt", "objective": "causal", "vocabulary": VOCAB + 1}, f"{VOCAB + 1} token types"),
    )
    with pytest.raises(ValueError, match="max_position_embeddings"):  # rows longer than the table
        model_of("gpt", max_position_embeddings=5)(ids())
