"""Our wrapped models against transformers' own, on the same weights."""

import math
from unittest import mock

import pytest
import torch
from transformers import AlbertForPreTraining, BertForPreTraining, ElectraForMaskedLM, ElectraForPreTraining

from lmdyn.datamodules import GrammarCorpus, PretrainingCorpus
from lmdyn.models import LAMB, MaskedLanguageModel
from lmdyn.models.pretraining_tools import checkpoint_activations
from tests.helpers.modules import quiet_trainer
from tests.helpers.refusals import assert_refused
from tests.helpers.small_runs import PIECES

VOCAB = 50
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
CONFIGS = {
    "albert": {**SIZES, "embedding_size": 8, "classifier_dropout_prob": 0.0},
    "bert": {**SIZES, **DRY},
    "electra": {**SIZES, **DRY, "embedding_size": 8},
}
FAMILIES = pytest.mark.parametrize("family", CONFIGS)


def make(family):
    torch.manual_seed(0)
    return MaskedLanguageModel(family, CONFIGS[family], vocab_size=VOCAB, generator_size=0.5).eval()


def batch_of(padded=False, positions=False):
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(5, VOCAB, (4, 12), generator=g)
    masked = torch.rand(4, 12, generator=g) < 0.3
    labels = torch.where(masked, torch.randint(5, VOCAB, (4, 12), generator=g), -100)
    types = (torch.arange(12) > 5).long().expand(4, 12).contiguous()
    batch = {"input_ids": ids, "token_type_ids": types, "labels": labels}
    if padded:
        batch["attention_mask"] = (torch.arange(12) < torch.tensor([[12], [9], [5], [12]])).long()
        batch["labels"] = labels.masked_fill(batch["attention_mask"] == 0, -100)
    if positions:
        most = int((batch["labels"] != -100).sum(1).max()) + 2
        rows = [torch.nonzero(row != -100)[:, 0] for row in batch["labels"]]
        padding = [torch.full((most - len(row),), -100) for row in rows]
        batch["masked_positions"] = torch.stack([torch.cat(both) for both in zip(rows, padding, strict=True)])
    return batch


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", ["albert", "bert"])
def test_loss_and_logits_are_those_of_transformers(family, padded, positions):
    module, batch = make(family), batch_of(padded, positions)
    key = {"albert": "sentence_order_label", "bert": "next_sentence_label"}[family]
    batch[key] = torch.tensor([0, 1, 1, 0])
    keys = ("input_ids", "token_type_ids", "attention_mask", "labels", key)
    expected = module.model(**{k: batch[k] for k in keys if k in batch})
    inputs = {k: batch[k] for k in ("input_ids", "token_type_ids", "attention_mask") if k in batch}
    output = module(**inputs)
    torch.testing.assert_close(output.logits, expected.prediction_logits, rtol=0, atol=1e-6)
    pair = expected.sop_logits if family == "albert" else expected.seq_relationship_logits
    torch.testing.assert_close(output.pair_logits, pair, rtol=0, atol=1e-6)
    parts = module.losses(batch)
    torch.testing.assert_close(parts["mlm"] + parts["pair"], expected.loss, rtol=0, atol=1e-6)
    predict = batch["labels"] != -100
    some = module(**inputs, predict=predict).logits
    torch.testing.assert_close(some, output.logits[predict], rtol=0, atol=1e-6)
    without = {k: v for k, v in batch.items() if k != key}
    assert set(module.losses(without)) == {"mlm"}


@pytest.mark.parametrize("padded", [False, True])
def test_electra_is_transformers_generator_and_discriminator(padded):
    module, batch = make("electra"), batch_of(padded, positions=True)
    inputs = {k: batch[k] for k in ("input_ids", "token_type_ids", "attention_mask") if k in batch}
    generated = module.generator(**inputs, labels=batch["labels"])
    told = module.model(**inputs)
    output = module(**inputs)
    torch.testing.assert_close(output.logits, generated.logits, rtol=0, atol=1e-6)
    torch.testing.assert_close(output.discriminator_logits, told.logits, rtol=0, atol=1e-6)
    seen = {}

    def spy(corrupted, given):
        seen["corrupted"] = corrupted
        return type(module)._discriminate(module, corrupted, given)

    module._discriminate = spy
    parts = module.losses(batch)
    torch.testing.assert_close(parts["mlm"], generated.loss, rtol=0, atol=1e-6)
    masked = batch["labels"] != -100
    original = torch.where(masked, batch["labels"], batch["input_ids"])
    # where nothing was masked the text is the original, and what was masked shows the generator's samples
    assert torch.equal(seen["corrupted"][~masked], original[~masked])
    replaced = seen["corrupted"] != original
    assert replaced.any()
    expected = module.model(**{**inputs, "input_ids": seen["corrupted"]}, labels=replaced.long()).loss
    torch.testing.assert_close(parts["discriminator"], expected, rtol=0, atol=1e-6)


def test_electra_samples_from_the_generator():
    """Frequencies of the samples at one place, against the softmax of its logits."""
    module = make("electra")
    ids = torch.randint(5, VOCAB, (1, 6))
    batch = {"input_ids": ids.expand(4000, 6), "labels": torch.full((4000, 6), -100)}
    batch["labels"][:, 2] = 7
    probabilities = module(ids).logits[0, 2].mul(40).softmax(-1)
    drawn = []
    module._discriminate = lambda corrupted, given: drawn.append(corrupted) or torch.zeros(4000, 6)
    at = torch.full((4000, 1), 2)
    logits = module(ids).logits[:, 2:3].mul(40).expand(4000, 1, VOCAB)
    module._discriminator_loss(batch, logits, at)
    frequencies = torch.bincount(drawn[-1][:, 2], minlength=VOCAB) / 4000
    assert (frequencies - probabilities).abs().max() < 4 * (0.25 / 4000) ** 0.5
    assert (drawn[-1][:, [0, 1, 3, 4, 5]] == batch["input_ids"][:, [0, 1, 3, 4, 5]]).all()


@FAMILIES
def test_save_pretrained_both_ways(family, tmp_path):
    module = make(family)
    module.save_pretrained(tmp_path / "ours")
    batch = batch_of()
    ids = batch["input_ids"]
    again = MaskedLanguageModel(family, pretrained=str(tmp_path / "ours")).eval()
    assert again.vocab_size == VOCAB
    torch.testing.assert_close(again(ids).logits, module(ids).logits, rtol=0, atol=0)
    if family == "electra":
        generator = ElectraForMaskedLM.from_pretrained(tmp_path / "ours" / "generator").eval()
        torch.testing.assert_close(generator(ids).logits, module(ids).logits, rtol=0, atol=1e-6)
        discriminator = ElectraForPreTraining.from_pretrained(tmp_path / "ours" / "discriminator").eval()
        told = module(ids).discriminator_logits
        torch.testing.assert_close(discriminator(ids).logits, told, rtol=0, atol=1e-6)
        return
    cls = AlbertForPreTraining if family == "albert" else BertForPreTraining
    theirs = cls.from_pretrained(tmp_path / "ours").eval()
    torch.testing.assert_close(theirs(ids).prediction_logits, module(ids).logits, rtol=0, atol=1e-6)
    torch.manual_seed(5)
    other = cls(theirs.config).eval()
    other.save_pretrained(tmp_path / "theirs")
    mine = MaskedLanguageModel(family, pretrained=str(tmp_path / "theirs")).eval()
    torch.testing.assert_close(mine(ids).logits, other(ids).prediction_logits, rtol=0, atol=1e-6)
    assert not torch.equal(mine(ids).logits, module(ids).logits)


class TestInitialization:
    """One seed, four ways: weights that correspond."""

    @pytest.fixture(scope="class")
    @classmethod
    def drawn(cls):
        sizes = {"embedding_size": 64, "hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 2}
        found = {}
        for how in ("truncated_normal", "clipped_normal", "normal", "normal_everywhere"):
            torch.manual_seed(3)
            found[how] = MaskedLanguageModel("albert", config=sizes, vocab_size=500, initialization=how).model
        return found

    @staticmethod
    def weight(model):
        return model.albert.encoder.albert_layer_groups[0].albert_layers[0].ffn.weight.detach()

    def test_deviations(self, drawn):
        """Of a normal cut at two deviations 0.8796, clipped there 0.9594."""
        share = {how: self.weight(model).std().item() / 0.02 for how, model in drawn.items()}
        assert share["truncated_normal"] == pytest.approx(0.8796, abs=0.01)
        assert share["clipped_normal"] == pytest.approx(0.9594, abs=0.01)
        assert share["normal"] == pytest.approx(1.0, abs=0.01)

    def test_networks_of_one_seed_correspond(self, drawn):
        plain = self.weight(drawn["normal"])
        assert torch.equal(self.weight(drawn["clipped_normal"]), plain.clamp(-0.04, 0.04))
        assert torch.equal(self.weight(drawn["normal_everywhere"]), plain)
        assert plain.abs().max() > 0.04
        cut, inside = self.weight(drawn["truncated_normal"]), plain.abs() <= 0.04
        assert torch.equal(cut[inside], plain[inside])
        assert 0.03 < (~inside).float().mean() < 0.06
        assert (cut[~inside].abs() < 0.04).all()
        assert not torch.equal(cut.flip(0)[inside], plain[inside])

    def test_gains(self, drawn):
        norm = "albert.encoder.albert_layer_groups.0.albert_layers.0.full_layer_layer_norm.weight"
        gains = {how: model.get_parameter(norm) for how, model in drawn.items()}
        assert (gains["normal"] == 1).all()
        assert gains["normal_everywhere"].abs().max() < 0.12
        assert gains["normal_everywhere"].std() > 0.01


def test_bad_settings_are_refused():
    bert = {"family": "bert"}
    assert_refused(
        MaskedLanguageModel,
        (bert, "expected either `config` .* got neither"),
        ({**bert, "config": {}, "pretrained": "x"}, "expected either `config` .* got both"),
        ({**bert, "config": {"hiden_size": 3}, "vocab_size": 9}, "hiden_size"),
        ({**bert, "config": {"hidden_size": 3}, "vocab_size": 9}, "multiple"),
        ({**bert, "pretrained": "/nowhere/at/all"}, "is no folder here"),
        ({**bert, "config": {}, "warmup_steps": -1}, "warmup_steps"),
        ({**bert, "config": {"vocab_size": 9}}, "pass vocab_size as an argument"),
    )


@FAMILIES
def test_activation_checkpointing_changes_no_gradient(family):
    plain, saving = make(family), make(family)
    checkpoint_activations(saving.model)
    runs = []
    ends = "albert_layers.0.attention", "layer.0.attention"
    within = next(m for name, m in saving.model.named_modules() if name.endswith(ends))
    within.register_forward_pre_hook(lambda *_: runs.append(1))
    for module in (plain, saving):
        module.train()
        torch.manual_seed(1)
        sum(module.losses(batch_of()).values()).backward()
    forward = 3 if family == "albert" else 1  # runs of the module in a forward pass
    assert len(runs) == 2 * forward  # once more in the backward pass
    for a, b in zip(plain.parameters(), saving.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad)
    runs.clear()
    saving.eval()(batch_of()["input_ids"])
    assert len(runs) == forward


def test_rows_longer_than_the_model_are_refused():
    short = {**CONFIGS["albert"], "max_position_embeddings": 8}
    module = MaskedLanguageModel("albert", short, vocab_size=VOCAB)
    for call in (lambda: module(batch_of()["input_ids"]), lambda: module.losses(batch_of())):
        with pytest.raises(ValueError, match=r"12 tokens.*the model's 8 positions"):
            call()


def test_an_evaluation_of_electra_draws_from_no_generator_of_training():
    module, batch = make("electra"), batch_of()
    before = torch.get_rng_state()
    values = []
    for _ in range(2):
        module.evaluation_extra.reset()
        module.evaluation_step(batch)
        values.append(float(module.evaluation_extra.compute()))
    assert values[0] == values[1]
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:GPU available but not used")
@pytest.mark.parametrize(("family", "pairs"), [("albert", "order"), ("bert", "next"), ("electra", None)])
def test_validates_before_and_after_a_fit(family, pairs, tmp_path):
    corpus = GrammarCorpus(**PIECES, cache_dir=str(tmp_path))
    data = PretrainingCorpus(corpus, sequence_length=24, batch_size=8, pairs=pairs)
    torch.manual_seed(0)
    module = MaskedLanguageModel(
        family, CONFIGS[family], warmup_steps=2, optimizer=lambda params: LAMB(params, lr=0.02)
    )
    trainer = quiet_trainer(tmp_path, max_epochs=3, enable_checkpointing=False)
    before = trainer.validate(module, datamodule=data, verbose=False)[0]
    total, count, right = 0.0, 0, 0
    module.eval()
    with torch.no_grad():
        for batch in data.val_dataloader():
            logits = module(batch["input_ids"], token_type_ids=batch["token_type_ids"]).logits
            wanted = batch["labels"] != -100
            logits, labels = logits[wanted], batch["labels"][wanted]
            total += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
            count, right = count + len(labels), right + int((logits.argmax(-1) == labels).sum())
    assert before["val_loss"] == pytest.approx(total / count, abs=1e-5)
    assert before["val_accuracy"] == pytest.approx(right / count)
    module.train()
    trainer.fit(module, datamodule=data)  # the metrics of the evaluation before are no obstacle
    after = trainer.validate(module, datamodule=data, verbose=False)[0]
    assert after["val_loss"] < before["val_loss"] - 0.05
    extra = "val_discriminator_loss" if family == "electra" else "val_pair_accuracy"
    assert set(after) == {"val_loss", "val_perplexity", "val_accuracy", extra}
    # the schedule: two updates of warmup, then down to 0 at the last one
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)


def test_a_warmup_without_decay_needs_no_length_of_training():
    def rates(**arguments):
        model = MaskedLanguageModel("bert", CONFIGS["bert"], vocab_size=VOCAB, warmup_steps=2, **arguments)
        model._trainer = mock.Mock(estimated_stepping_batches=math.inf)
        scheduler = model.configure_optimizers()["lr_scheduler"]["scheduler"]
        return [scheduler.lr_lambdas[0](step) for step in range(4)]

    assert rates(decay_power=None) == [0.5, 1, 1, 1]
    with pytest.raises(ValueError, match="length of training is unknown"):
        rates(decay_power=1.0)
