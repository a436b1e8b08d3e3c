"""PretrainedLM: transformers' own logits, positions to predict, training, and what it refuses."""

import json
import shutil

import pytest
import torch
import torch.nn.functional as F
import transformers
from lightning.pytorch import Trainer
from safetensors import safe_open
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from transformers import BertConfig, BertModel, ElectraConfig, ElectraForPreTraining, PreTrainedTokenizerFast

from lmdyn.analysis.inspection.forward import call_module
from lmdyn.analysis.inspection.transformer import encoder_of, layer_sites
from lmdyn.models.pretrained import PretrainedLM
from tests.helpers.refusals import assert_refused

HEADS = {"num_hidden_layers": 2, "num_attention_heads": 2}
SIZES = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 32, **HEADS}
NARROW, SHORT = {**SIZES, "embedding_size": 8}, {**SIZES, "max_position_embeddings": 40}
GPT2 = {"vocab_size": 30, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40}
MODELS = {
    "gpt2": ("GPT2", "LMHeadModel", GPT2),
    "gpt_neox": ("GPTNeoX", "ForCausalLM", SHORT),
    "bert": ("Bert", "ForMaskedLM", SIZES),
    "bert_pretraining": ("Bert", "ForPreTraining", SIZES),
    "albert": ("Albert", "ForMaskedLM", NARROW),
    "albert_pretraining": ("Albert", "ForPreTraining", NARROW),
    "roberta": ("Roberta", "ForMaskedLM", {**SHORT, "type_vocab_size": 1}),
    "electra_generator": ("Electra", "ForMaskedLM", NARROW),
    "mobilebert": (
        "MobileBert",
        "ForMaskedLM",
        {**NARROW, "intra_bottleneck_size": 16, "true_hidden_size": 16},
    ),
}
READ = [kind for kind in MODELS if kind != "mobilebert"]


def saved(kind, folder):
    """A model with weights far from their initial size, and its folder."""
    family, head, sizes = MODELS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**sizes)
    model = getattr(transformers, f"{family}{head}")(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    model.save_pretrained(folder)
    return model


def batch(seed=0):
    g = torch.Generator().manual_seed(seed)
    mask = torch.ones(3, 7, dtype=torch.int64)
    mask[1, 5:] = 0
    labels = torch.randint(0, 30, (3, 7), generator=g)
    labels[:, ::2] = -100
    labels[1, 5:] = -100
    return {"input_ids": torch.randint(3, 30, (3, 7), generator=g), "attention_mask": mask, "labels": labels}


@pytest.mark.parametrize("kind", READ)
def test_logits_are_those_of_transformers(kind, tmp_path):
    own = saved(kind, tmp_path)
    module = PretrainedLM(str(tmp_path)).eval()
    assert module.objective == ("causal" if kind.startswith("gpt") else "masked")
    assert type(module.model) is type(own)
    inputs = {k: v for k, v in batch().items() if k != "labels"}
    with torch.no_grad():
        theirs = own(**inputs)
        theirs = theirs.get("prediction_logits", theirs.get("logits"))
        torch.testing.assert_close(module(**inputs).logits, theirs, atol=1e-6, rtol=0)
        if not kind.startswith("gpt"):  # the control: the mask is handed on
            assert not torch.allclose(module(inputs["input_ids"]).logits[1], theirs[1], atol=1e-3)
    assert encoder_of(module) is module.encoder is module.model.base_model
    assert len(layer_sites(module)) == (1 if "albert" in kind else 2)


@pytest.mark.parametrize("kind", READ)
def test_positions_to_predict_are_rows_of_all(kind, tmp_path):
    saved(kind, tmp_path)
    module = PretrainedLM(str(tmp_path)).eval()
    inputs = {k: v for k, v in batch().items() if k != "labels"}
    predict = batch()["labels"] != -100
    rows = []
    head = module.model.get_output_embeddings()
    hook = head.register_forward_hook(lambda m, a, out: rows.append(out.shape))
    with torch.no_grad():
        some = module(**inputs, predict=predict).logits
        hook.remove()
        torch.testing.assert_close(some, module(**inputs).logits[predict], atol=1e-5, rtol=1e-5)
        assert module(**inputs, predict=torch.zeros(3, 7, dtype=torch.bool)).logits.shape == (0, 30)
    assert rows == [(int(predict.sum()), 30)]  # no more was projected
    assert not head._forward_pre_hooks


def test_a_head_that_is_not_called_projects_all_and_answers_the_same(tmp_path):
    """MobileBERT multiplies by the weights of its decoder."""
    saved("mobilebert", tmp_path)
    module = PretrainedLM(str(tmp_path)).eval()
    predict = batch()["labels"] != -100
    with torch.no_grad():
        some = module(batch()["input_ids"], predict=predict).logits
        torch.testing.assert_close(some, module(batch()["input_ids"]).logits[predict])


def test_token_types_reach_those_that_have_them(tmp_path):
    ids, types = batch()["input_ids"], torch.tensor([[0, 0, 0, 1, 1, 1, 1]]).expand(3, 7)
    for kind, reads in (("bert", True), ("albert", True), ("roberta", False), ("gpt2", False)):
        saved(kind, tmp_path / kind)
        module = PretrainedLM(str(tmp_path / kind)).eval()
        with torch.no_grad():
            same = torch.equal(module(ids).logits, module(ids, token_type_ids=types).logits)
        assert same != reads, kind


def test_half_precision_is_loaded_as_float32_and_without_a_shift(tmp_path):
    own = saved("gpt_neox", tmp_path)
    own.half().save_pretrained(tmp_path)
    module = PretrainedLM(str(tmp_path))
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    assert module.training
    assert all(m.training for m in module.modules())
    ids = torch.randint(3, 30, (2, 9))
    labels = F.pad(ids[:, 1:], (0, 1), value=-100)
    module.eval()
    loss = module.evaluate({"input_ids": ids, "labels": labels})[2].mean()
    torch.testing.assert_close(loss, own.float()(ids, labels=ids).loss)  # theirs shifts inside


@pytest.mark.parametrize("kind", ["gpt2", "albert_pretraining"])
def test_training_lowers_the_loss_and_reloads(kind, tmp_path):
    saved(kind, tmp_path)
    module = PretrainedLM(str(tmp_path), optimizer=lambda params: torch.optim.AdamW(params, lr=1e-2))
    loader = DataLoader([{k: v[0] for k, v in batch(0).items()}] * 8, batch_size=4)
    trainer = Trainer(
        accelerator="cpu", max_epochs=6, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, inference_mode=False,
    )  # fmt: skip
    before = trainer.validate(module, loader, verbose=False)[0]["val_loss"]
    trainer.fit(module, loader, loader)
    assert float(trainer.callback_metrics["val_loss"]) < 0.5 * before
    # the mean over labelled tokens of all that was seen: all batches hold the same example
    losses = module.eval().evaluate(batch(0))[2][:3]
    assert float(trainer.callback_metrics["val_loss"]) == pytest.approx(losses.mean().item(), abs=1e-4)
    trainer.save_checkpoint(tmp_path / "x.ckpt")
    again = PretrainedLM.load_from_checkpoint(tmp_path / "x.ckpt", weights_only=True)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))


def test_the_tokenizer_beside_the_weights(tmp_path):
    saved("bert", tmp_path)
    module = PretrainedLM(str(tmp_path))
    with pytest.raises(ValueError, match="there is no tokenizer: expected one of"):
        _ = module.tokenizer
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]").save_pretrained(tmp_path)
    assert PretrainedLM(str(tmp_path)).tokenizer("a b")["input_ids"] == [1, 0]


# --------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("offline", [True, False])
def test_a_hub_name_that_cannot_be_reached(offline, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    if offline:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    else:  # as without a network

        def fail(*args, **kwargs):
            raise ConnectionError("Name or service not known")

        monkeypatch.setattr("lmdyn.models.pretrained.snapshot_download", fail)
    message = r"at revision 'step3' is no folder here.+\(.+hf download nobody/no-lm --revision step3"
    with pytest.raises(ValueError, match=message) as error:
        PretrainedLM("nobody/no-lm", revision="step3")
    assert "\n" not in str(error.value)


def test_a_hub_model_in_the_local_cache(tmp_path, monkeypatch):
    """What was fetched once is there without a network."""
    cache = tmp_path / "models--nobody--lm"
    commit = "0" * 40
    own = saved("gpt2", cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "step3").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    module = PretrainedLM("nobody/lm", revision="step3")
    assert torch.equal(module.model.transformer.wte.weight, own.transformer.wte.weight)
    with pytest.raises(ValueError, match="at revision 'main' is no folder here"):
        PretrainedLM("nobody/lm")


def test_an_encoder_decoder_is_observed_and_not_trained(tmp_path):
    sizes = {"vocab_size": 30, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    own = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).eval()
    own.save_pretrained(tmp_path)
    module = PretrainedLM(str(tmp_path)).eval()
    assert module.objective == "encoder_decoder"
    batch = {"input_ids": torch.tensor([[3, 4, 5]]), "decoder_input_ids": torch.tensor([[0, 6]])}
    torch.testing.assert_close(module(**batch).logits, own(**batch).logits)
    row = {"input_ids": torch.tensor([[3, 4, 5]]), "labels": torch.tensor([[4, 5, 1]])}
    assert call_module(module, row).logits.shape == (1, 1, 30)  # none that LearningCurves takes for the row's
    for call in (module.training_loss, module.evaluate):  # rows have other labels than the decoder's
        with pytest.raises(ValueError, match="no losses of encoder-decoders: use MinimalPairs"):
            call({**batch, "labels": torch.tensor([[3, 4, 5]])})
    transformers.T5ForSequenceClassification(own.config).save_pretrained(tmp_path / "classifier")
    with pytest.raises(ValueError, match="is a T5ForSequenceClassification, which may be"):
        PretrainedLM(str(tmp_path / "classifier"))
    bert = BertConfig(**SIZES)
    both = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(bert, bert)
    transformers.EncoderDecoderModel(both).save_pretrained(tmp_path / "two")
    assert PretrainedLM(str(tmp_path / "two")).vocab_size == bert.vocab_size


def test_what_is_no_language_model_is_refused(tmp_path):
    BertModel(BertConfig(**SIZES)).save_pretrained(tmp_path / "encoder")
    ElectraForPreTraining(ElectraConfig(**SIZES)).save_pretrained(tmp_path / "discriminator")
    saved("bert", tmp_path / "cut")
    (tmp_path / "cut" / "model.safetensors").write_bytes(b"cut short")
    encoder = str(tmp_path / "encoder")
    assert_refused(
        PretrainedLM,
        ({"name": str(tmp_path), "revision": "step3"}, "is a folder and has no revision 'step3'"),
        (str(tmp_path), "is not a model of transformers"),
        (encoder, "is a BertModel, which may be causal or masked: set the objective"),
        (
            {"name": encoder, "objective": "masked"},
            "lacks .* weights of BertForMaskedLM, such as .*cls.predictions",
        ),
        (str(tmp_path / "discriminator"), "predicts no tokens"),
        (str(tmp_path / "cut"), "AutoModelForMaskedLM cannot load"),
    )


def test_pickled_code_is_not_run(tmp_path):
    """A .bin is unpickled as weights only."""
    own = saved("bert", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(own.state_dict(), tmp_path / "pytorch_model.bin")
    PretrainedLM(str(tmp_path))

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "harm"), "w"))

    torch.save({"x": Evil()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="cannot load"):
        PretrainedLM(str(tmp_path))
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"architectures": [["BertForMaskedLM"]]}, "may be causal or masked"),
        (
            {"attn_implementation": "somebody/kernel"},
            "names the attention somebody/kernel, which is code from the hub",
        ),
        (
            {"_attn_implementation": "somebody/kernel"},
            "names the attention somebody/kernel, which is code from the hub",
        ),
        ({"num_hidden_layers": 2**32}, "would have 4294967296 layers, expected at most"),
        ({"num_hidden_layers": 9999}, "would have 9999 layers, expected at most"),
        ({"hidden_size": 10**6}, r"would have [\d,]+ GB of weights, but the machine has"),
        ({"num_hidden_layers": 0}, r"has weights of more layers .*layer.*the 0 layers"),
        ({"num_hidden_layers": 1}, r"has weights of more layers .*layer\.1\..*the 1 layers"),
        ({"num_hidden_layers": 3}, r"lacks .* weights of BertForMaskedLM, such as .*layer\.2\."),
        ({"hidden_dropout_prob": [[]]}, "is not a model of transformers"),
    ],
)
def test_a_damaged_configuration(tmp_path, changed, message):
    saved("bert", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    with pytest.raises(ValueError, match=message) as found:
        PretrainedLM(str(tmp_path))
    assert str(tmp_path) in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("place", ["../outside.safetensors", "/outside.safetensors", "model.safetensors"])
def test_weights_are_those_of_the_folder(tmp_path, place):
    saved("bert", tmp_path / "model")
    shutil.copy(tmp_path / "model" / "model.safetensors", tmp_path / "outside.safetensors")
    with safe_open(tmp_path / "outside.safetensors", "pt") as file:
        index = {"metadata": {}, "weight_map": dict.fromkeys(file.keys(), place)}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    if place == "model.safetensors":
        PretrainedLM(str(tmp_path / "model"))
    else:
        (tmp_path / "model" / "model.safetensors").unlink()
        with pytest.raises(ValueError, match="outside the folder"):
            PretrainedLM(str(tmp_path / "model"))


def test_published_weights_of_albert(tmp_path, caplog):
    """They have no pooler and no head for pairs of sentences, though their configuration names them."""
    model = saved("albert", tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": ["AlbertForPreTraining"]}))
    module = PretrainedLM(str(tmp_path)).eval()
    assert "has no weights of pooler, sop_classifier" in caplog.text
    ids = torch.tensor([[2, 7, 8, 3]])
    torch.testing.assert_close(module(ids).logits, model(ids).logits)
