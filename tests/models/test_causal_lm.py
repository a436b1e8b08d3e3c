"""The causal transformer and its tagger: transformers' own logits, what is built from data, and what is refused."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

from lmdyn.datamodules import GrammarCorpus
from lmdyn.models import CausalLanguageModel, CausalTagger
from tests.helpers.modules import quiet_trainer
from tests.helpers.refusals import assert_refused

SIZES = {"n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 16}
LLAMA = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 16,
         "tie_word_embeddings": False}  # fmt: skip
V = 20


def batch():
    ids = torch.randint(0, V, (3, 8), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(8) < torch.tensor([8, 5, 7])[:, None]).long()
    labels = ids.roll(-1, 1).masked_fill(mask == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "target_upos": labels % 4}


def test_logits_and_loss_are_those_of_transformers():
    module, b = CausalLanguageModel("gpt2", SIZES, vocab_size=V).eval(), batch()
    theirs = GPT2LMHeadModel(GPT2Config(vocab_size=V, **SIZES)).eval()
    theirs.transformer.load_state_dict(module.model.state_dict())
    expected = theirs(b["input_ids"], attention_mask=b["attention_mask"]).logits
    torch.testing.assert_close(module(b["input_ids"], b["attention_mask"]).logits, expected)
    loss = torch.nn.functional.cross_entropy(expected.flatten(0, 1), b["labels"].flatten())
    _, labels, losses = module.evaluate(b)
    torch.testing.assert_close(losses.sum() / (labels != -100).sum(), loss)
    assert module.decoder.weight is module.model.wte.weight


def test_another_family_whose_output_layer_has_weights_of_its_own():
    module, b = CausalLanguageModel("llama", LLAMA, vocab_size=V).eval(), batch()
    theirs = LlamaForCausalLM(module.model.config).eval()
    theirs.model.load_state_dict(module.model.state_dict())
    theirs.lm_head.load_state_dict(module.decoder.state_dict())
    expected = theirs(b["input_ids"], attention_mask=b["attention_mask"]).logits
    torch.testing.assert_close(module(b["input_ids"], b["attention_mask"]).logits, expected)
    assert module.decoder.weight is not module.model.embed_tokens.weight


def test_a_tagger_does_not_start_as_the_language_model_of_its_seed():
    torch.manual_seed(0)
    model = CausalLanguageModel("gpt2", SIZES, vocab_size=V)
    torch.manual_seed(0)
    again = CausalLanguageModel("gpt2", SIZES, vocab_size=V)
    torch.manual_seed(0)
    tagger = CausalTagger("upos", config=SIZES, vocab_size=V, num_labels=4)
    weights = [m.model.h[0].attn.c_attn.weight for m in (model, again, tagger)]
    assert torch.equal(*weights[:2])
    assert abs(float(torch.corrcoef(torch.stack([w.detach().flatten() for w in weights[::2]]))[0, 1])) < 0.2


@pytest.mark.parametrize("cls", [CausalLanguageModel, CausalTagger])
def test_trains_on_a_corpus_whose_vocabulary_it_takes(cls, tmp_path):
    of = {"warmup_steps": 2} if cls is CausalLanguageModel else {"task": "upos", "target": "current"}
    module = cls(**of, config={**SIZES, "n_positions": 40})
    data = GrammarCorpus(2000, 500, 500, layers=["upos"], batch_size=4, sequence_length=10)
    trainer = quiet_trainer(tmp_path, max_steps=4, limit_val_batches=2, enable_checkpointing=False)
    trainer.fit(module, data)
    assert module.vocab_size == module.hparams["vocab_size"] == len(data.tokenizer)
    metrics = trainer.validate(module, data, verbose=False)[0]
    assert float(metrics["val_loss"]) > 0
    if isinstance(module, CausalTagger):
        assert module.hparams["num_labels"] == len(data.label_names["upos"]) == module.decoder.out_features
        assert 0 < float(metrics["val_majority"]) < 1
        assert 0 <= float(metrics["val_accuracy"]) <= 1


def test_what_is_refused():
    assert_refused(
        lambda **arguments: CausalLanguageModel(**arguments, vocab_size=V),
        ({"family": "no_such_family"}, "expected a family of transformers .* got 'no_such_family'"),
        ({"config": {"layers": 3}}, "gpt2 has no layers, only"),
        ({"config": {"vocab_size": 9}}, "pass vocab_size as an argument"),
    )
    module = CausalLanguageModel("gpt2", SIZES, vocab_size=V)
    assert_refused(module, (torch.zeros(1, 17, dtype=torch.long), "longer than the model's 16 positions"))
    assert_refused(lambda **batch: module.evaluate(batch), ({"input_ids": batch()["input_ids"]}, "`labels`"))
    with pytest.raises(ValueError, match="expected `target_xpos`"):
        CausalTagger("xpos", config=SIZES, vocab_size=V, num_labels=2).evaluate(batch())
