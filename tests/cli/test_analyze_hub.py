"""Replay over checkpoints of Hugging Face's format: folders of the Trainer, hub revisions; the audit of weights."""

import json
import shutil
from pathlib import Path

import lightning as L
import pandas as pd
import pytest
import torch
import transformers as T
import yaml
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader

from lmdyn.analysis.inspection.forward import token_losses
from lmdyn.cli.__main__ import main
from lmdyn.cli.analyze import analyze
from lmdyn.cli.replay.weights_record import SeenWeights
from lmdyn.models.pretrained import PretrainedLM
from lmdyn.runs.checkpoint_files import build_module, find_checkpoints, newest_checkpoint, read_checkpoint
from lmdyn.runs.hub_checkpoints import HubCheckpoints, StoredNames, read_stored
from tests.cli.tiny_run import at_steps, tiny_run, trained

SIZES = {
    "vocab_size": 12, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8,
}  # fmt: skip
MODELS = {
    "gpt2": (T.GPT2LMHeadModel, T.GPT2Config(vocab_size=12, n_embd=8, n_layer=1, n_head=1, n_positions=16)),
    "gpt_neox": (T.GPTNeoXForCausalLM, T.GPTNeoXConfig(**SIZES, max_position_embeddings=16)),
    "bert": (T.BertForMaskedLM, T.BertConfig(**SIZES)),
    "albert": (T.AlbertForPreTraining, T.AlbertConfig(**SIZES, embedding_size=8)),
}
STEPS = (0, 10, 20, 40)
PLAIN = {"bands": [], "layers": [], "log_figures": False}


class Sentences(L.LightningDataModule):
    """A few sentences in the tokenizer's ids."""

    tokenizer = None

    def val_dataloader(self):
        ids = torch.tensor(self.tokenizer(["a b c d", "d c b a", "b b c c"])["input_ids"])
        return DataLoader([{"input_ids": row, "labels": row.roll(-1)} for row in ids], batch_size=2)


class TrainSentences(Sentences):
    """The same, with the tokenizer of the fixtures, to train on."""

    def __init__(self):
        super().__init__()
        self.tokenizer = tokenizer()

    def train_dataloader(self):
        return self.val_dataloader()


def tokenizer():
    backend = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate(["?", "a", "b", "c", "d"])}, unk_token="?")
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return T.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?")


def write_series(folder, kind, steps=STEPS, name="checkpoint-{}"):
    """Checkpoints of a random walk of weights."""
    cls, config = MODELS[kind]
    torch.manual_seed(0)
    model = cls(config)
    for step in steps:
        model.save_pretrained(folder / name.format(step))
        tokenizer().save_pretrained(folder / name.format(step))
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.3 * torch.randn_like(p))
    return folder


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    folder = tmp_path_factory.mktemp("series")
    for kind in MODELS:
        write_series(folder / kind, kind)
    return folder


@pytest.fixture
def observers(tmp_path):
    path = tmp_path / "observers.yaml"
    # aligned: a masked model could copy what is read; here only that numbers are equal counts
    arguments = {"probe": {"class_path": f"{__name__}.Sentences"}, "labels": "aligned", **PLAIN}
    curves = {"class_path": "LearningCurves", "init_args": arguments}
    path.write_text(yaml.safe_dump({"trainer": {"callbacks": [curves]}}))
    return path


def losses(out):
    table = pd.read_parquet(Path(out) / "observations" / "learning_curves")
    return table[table["quantity"] == "loss"].set_index("step")["value"].to_dict()


@pytest.mark.parametrize(
    ("name", "steps", "glob", "expected"),
    [
        ("chck_{}M", (2, 10), "", {"words_seen": {2_000_000: 2_000_000, 10_000_000: 10_000_000}}),
        (
            "stage2-step{}-tokens3B",
            (10, 20),
            "stage*",
            {"tokens": {10: 3_000_000_000, 20: 3_000_000_000}, "training_stage": {10: 2, 20: 2}},
        ),
    ],
)
def test_amounts_in_names_are_those_of_the_observations(tmp_path, observers, name, steps, glob, expected):
    folder, out = write_series(tmp_path / "lm", "gpt2", steps, name), tmp_path / "out"
    subject = [str(folder), *(["--checkpoints", str(folder / glob)] if glob else [])]
    main(["analyze", *subject, "--config", str(observers), "--out", str(out)])
    table = pd.read_parquet(out / "observations" / "learning_curves")
    assert {column: table.groupby("step")[column].first().to_dict() for column in expected} == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_a_folder_of_the_trainer(kind, series, observers, tmp_path, warnings_of):
    main(["analyze", str(series / kind), "--config", str(observers), "--out", str(tmp_path / "out")])
    found = losses(tmp_path / "out")
    data = Sentences()
    data.tokenizer = tokenizer()
    for step in STEPS:  # transformers itself
        model = MODELS[kind][0].from_pretrained(series / kind / f"checkpoint-{step}").eval()
        with torch.no_grad():
            pairs = [(model(input_ids=b["input_ids"]), b["labels"]) for b in data.val_dataloader()]
        sums = [token_losses(o.get("prediction_logits", o.get("logits")), labels) for o, labels in pairs]
        assert found[step] == pytest.approx(torch.cat(sums).mean().item(), rel=1e-5)
    assert len(set(found.values())) == len(STEPS)
    assert warnings_of == []
    assert not any((tmp_path / "out").glob(".analyze*"))
    audit = pd.read_parquet(tmp_path / "out" / "weights_audit.parquet")
    assert audit["step"].tolist() == list(STEPS)
    assert audit["flag"].tolist() == [""] * 4
    assert audit["digest"].nunique() == 4
    weights = [read_checkpoint(series / kind / f"checkpoint-{s}")["state_dict"] for s in STEPS]
    for i, name in ((1, "distance_to_previous"), (3, "distance_to_first")):
        other = weights[i - 1 if i == 1 else 0]
        once = {t.data_ptr(): k for k, t in other.items()}.values()  # tied weights
        exact = sum((weights[i][k].double() - other[k].double()).square().sum().item() for k in once) ** 0.5
        assert audit[name][i] == pytest.approx(exact, rel=0.06)


def test_what_is_there_is_neither_observed_nor_read_again(series, observers, tmp_path, monkeypatch):
    folder = shutil.copytree(series / "gpt2", tmp_path / "gpt2")
    out = tmp_path / "out"
    arguments = {"configs": [observers], "out": out}
    assert analyze(folder, shard=(1, 2), **arguments) == 4
    assert pd.read_parquet(out / "weights_audit.parquet")["step"].tolist() == list(STEPS)
    read = []
    monkeypatch.setattr(
        "lmdyn.cli.replay.read_ahead.read_stored",
        lambda path, fits: read.append(path) or read_stored(path, fits),
    )
    assert analyze(folder, **arguments) == 0
    assert read == []
    # the control: a checkpoint that was written anew is
    model = T.GPT2LMHeadModel.from_pretrained(folder / "checkpoint-20")
    model.save_pretrained(folder / "checkpoint-20")
    assert analyze(folder, **arguments) == 0
    assert [p.name for p in read] == ["checkpoint-20"]
    (out / "weights_audit" / "000000010.parquet").write_bytes(b"cut short")
    analyze(folder, **arguments)
    assert [p.name for p in read] == ["checkpoint-20", "checkpoint-10"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", MODELS)
def test_weights_are_read_from_their_file_as_transformers_reads_them(kind, dtype, series, tmp_path):
    folder = tmp_path / "model"
    model = MODELS[kind][0].from_pretrained(series / kind / "checkpoint-20").to(dtype)
    model.save_pretrained(folder, max_shard_size="2KB")
    slow = read_checkpoint(folder)
    first = series / kind / "checkpoint-0"
    fast = read_stored(folder, StoredNames.find(first, read_checkpoint(first)["state_dict"]))
    assert list(slow["state_dict"]) == list(fast["state_dict"])
    for name, tensor in slow["state_dict"].items():
        assert torch.equal(tensor, fast["state_dict"][name])
        assert tensor.dtype == fast["state_dict"][name].dtype == torch.float32
    assert SeenWeights.of(slow["state_dict"]).digest == SeenWeights.of(fast["state_dict"]).digest
    # tied weights once
    assert torch.equal(SeenWeights.of(slow["state_dict"]).sketch, SeenWeights.of(fast["state_dict"]).sketch)
    assert {k: v for k, v in slow.items() if k != "state_dict"} == {
        k: v for k, v in fast.items() if k != "state_dict"
    }


def test_files_that_hold_anything_else_are_left_to_transformers(series, tmp_path):
    state = read_checkpoint(series / "gpt2" / "checkpoint-0")["state_dict"]
    names = StoredNames.find(series / "gpt2" / "checkpoint-0", state)
    assert names.names["model.lm_head.weight"] == "transformer.wte.weight"  # tied
    assert StoredNames.find(series / "bert" / "checkpoint-0", state) is None
    assert StoredNames.find(series / "gpt2" / "checkpoint-20", state) is None  # other numbers
    assert StoredNames.find(tmp_path, state) is None  # no such files
    assert read_stored(series / "bert" / "checkpoint-0", names) is None
    folder = shutil.copytree(series / "gpt2" / "checkpoint-0", tmp_path / "old")
    weights = load_file(folder / "model.safetensors")
    for change in (
        {name.removeprefix("transformer."): t for name, t in weights.items()},  # as older versions named them
        weights | {"more": torch.zeros(1)},
        {name: t for name, t in weights.items() if "ln_f" not in name},
        weights | {"transformer.ln_f.bias": torch.zeros(3)},
    ):
        save_file(change, folder / "model.safetensors")
        assert read_stored(folder, names) is None
    # which of them is which cannot be told
    twins = {name: torch.zeros_like(t) for name, t in weights.items()}
    save_file({f"x.{name}": t for name, t in twins.items()}, folder / "model.safetensors")
    assert StoredNames.find(folder, {name: torch.zeros_like(t) for name, t in state.items()}) is None
    (folder / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(ValueError, match=r"old cannot be read"):
        read_stored(folder, names)


def test_observers_may_share_the_validation_set_of_a_datamodule(series, tmp_path):
    curves = {"class_path": "LearningCurves", "init_args": PLAIN}
    config = {"trainer": {"callbacks": [curves]},
              "data": {"class_path": f"{__name__}.Sentences"}}  # fmt: skip
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    pattern = str(series / "gpt2" / "checkpoint-[12]0")
    analyze(series / "gpt2", checkpoints=pattern, configs=[tmp_path / "c.yaml"], out=tmp_path / "out")
    assert sorted(losses(tmp_path / "out")) == [10, 20]


@pytest.mark.slow
def test_references_read_such_checkpoints_too(series, tmp_path):
    path = newest_checkpoint(str(series / "albert"))
    assert path.name == "checkpoint-40"
    assert newest_checkpoint(str(path)) == path
    module = build_module(read_checkpoint(path), path)
    assert isinstance(module, PretrainedLM)
    assert list(find_checkpoints(str(path))) == [40]  # of itself
    similarity = {"class_path": "Similarity", "init_args": {
        "reference": {"class_path": "lmdyn.callbacks.observing.reference.Previous"},
        "probe": {"class_path": f"{__name__}.Sentences"},
        "sites": {"layer": "model.albert.encoder.albert_layer_groups.0.albert_layers.0"}}}  # fmt: skip
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": [similarity]}}))
    analyze(series / "albert", configs=[tmp_path / "c.yaml"], out=tmp_path / "out")
    table = pd.read_parquet(next((tmp_path / "out" / "observations").iterdir()))
    assert sorted(table["step"].unique()) == [10, 20, 40]


@pytest.mark.slow
def test_a_text_and_names_of_observers_need_no_yaml(series, tmp_path, capsys):
    """The text is encoded as that of inspect's yaml; a single model, and run.json, too."""
    text, model = tmp_path / "text.txt", series / "gpt2"
    text.write_text("a b c d\nd c b a\nb b c c\n" * 20)
    words = ["--observe", "LearningCurves", "--data", str(text), "--logger", "none"]
    for folder, out in ((model, "named"), (model / "checkpoint-10", "one")):
        main(["analyze", str(folder), *words, "--out", str(tmp_path / out)])
    main(["inspect", str(model / "checkpoint-40"), "--data", str(text), "--write", str(tmp_path / "my.yaml")])
    page = " ".join(capsys.readouterr().out.split())
    rows = ["analyze", str(model), "--config", str(tmp_path / "my.yaml"), "--only", "LearningCurves"]
    main([*rows, "--out", str(tmp_path / "yaml"), "--logger", "none"])
    assert losses(tmp_path / "named") == losses(tmp_path / "yaml")
    assert losses(tmp_path / "one") == {10: losses(tmp_path / "named")[10]}
    assert f"of the text {text}; observers read 239 tokens" in page
    about = json.loads((tmp_path / "named" / "run.json").read_text())
    assert about["model"]["configuration"]["n_embd"] == 8
    assert about["data"]["probe"]["class"] == "TextCorpus"
    assert about["seed"] is None  # analyze's own is none of its training
    assert not about.keys() & {"commit", "device"}
    bare = shutil.copytree(model / "checkpoint-10", tmp_path / "bare")
    for path in bare.glob("tokenizer*"):
        path.unlink()
    for args, said in (
        (["analyze", str(model), *words[:2]], "give a folder for the observations with --out"),
        (
            ["analyze", str(model), *words[:2], "--out", str(tmp_path / "x")],
            "no data to observe: give --data FILE",
        ),
        (
            ["analyze", str(bare), *words, "--out", str(tmp_path / "x")],
            "the folder of the weights has no tokenizer",
        ),
        (
            ["inspect", str(bare), "--data", str(text), "--write", str(tmp_path / "x.yaml")],
            "the folder of the weights has no tokenizer",
        ),
        (["check", "--config", str(tmp_path / "my.yaml")], "required: model: give --config FILE"),
        (["fit", "--config", str(tmp_path / "my.yaml")], "required: model: give --config FILE"),
    ):
        with pytest.raises(SystemExit):
            main(args)
        assert said in capsys.readouterr().err, args


# ------------------------------------------------------------------ hub models, which tests/cli/test_hub.py observes


def test_steps_of_revisions():
    def fetch(name, revision):
        return Path(name) / (revision or "main")

    def made(revisions, name="org/lm", refs=()):
        return HubCheckpoints(name, revisions, fetch, lambda _: list(refs))

    assert list(made("step10, step2,3=main")) == [2, 3, 10]
    assert made("3=main")[3] == Path("org/lm/main")
    many = made("0k,20k,2000k", "google/multiberts-seed_0-step_{}")
    assert list(many) == [0, 20_000, 2_000_000]
    assert many[20_000] == Path("google/multiberts-seed_0-step_20k/main")
    assert many.stamp(20_000) == "google/multiberts-seed_0-step_20k@main"
    assert list(made("all", refs=["main", "step5", "step1000-tokens2B"])) == [5, 1000]
    for revisions, name, said in (
        ("", "org/lm", "is empty"),
        ("main", "org/lm", "has no step: write STEP=main"),
        ("stage1-step5,stage2-step5", "org/lm", "both have step 5: .* analyze each stage"),
        ("stage*", "org/lm", "no revision of org/lm with a step matches"),
        ("all", "org/lm_{}", "means several models: list the revisions"),
    ):
        with pytest.raises(ValueError, match=said):
            made(revisions, name, ["main", "step5"])


# --------------------------------------------------------------------------------------------------- refusals


def test_refusals(series, observers, tmp_path, warnings_of):
    out = {"configs": [observers], "out": tmp_path / "out"}
    gpt2, named = series / "gpt2", tmp_path / "named"
    shutil.copytree(gpt2 / "checkpoint-10", named / "step_10")
    for subject, given, said in (
        (gpt2, {"configs": [observers]}, "with --out"),
        (gpt2, {"out": tmp_path / "out"}, "no observer is configured"),
        ("nobody/lm", out, "hub model with --revisions"),
        (named, out, "For model folders with other names, add --checkpoints"),
        (gpt2, {**out, "revisions": "all"}, "--revisions is for hub models, not for"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=said):
            analyze(subject, **given)
    mixed = tmp_path / "mixed"
    last = mixed / "checkpoint-20"
    shutil.copytree(gpt2 / "checkpoint-10", mixed / "checkpoint-10")
    shutil.copytree(series / "bert" / "checkpoint-20", last)
    for change, said in (
        (lambda: None, "checkpoint-20 does not fit PretrainedLM: missing in"),
        ((last / "config.json").unlink, "checkpoint-20 is not a model of transformers"),
        (lambda: last.rename(mixed / "checkpoint-final"), "has no step"),
    ):
        change()
        with pytest.raises((ValueError, FileNotFoundError), match=said):
            analyze(mixed, **out)
    shutil.rmtree(mixed / "checkpoint-final")
    (mixed / "checkpoint-10" / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="the probe set requires the run's tokenizer"):
        analyze(mixed, **out)
    assert "there is no tokenizer: expected one of" in warnings_of[-1]
    (mixed / "checkpoint-10" / "trainer_state.json").write_text("{")
    with pytest.raises(ValueError, match=r"trainer_state.json cannot be read"):
        read_checkpoint(mixed / "checkpoint-10")


# ------------------------------------------------------------------------------------------- runs of our own


def test_a_pretrained_model_trained_on_is_replayed_as_it_was_observed(series, tmp_path):
    """A run of ours over PretrainedLM: live equals replayed, and its audit is of its own checkpoints."""
    curves = at_steps("LearningCurves", 0, 2, 4, labels="aligned", **PLAIN)
    config = tiny_run(tmp_path, at_steps("ScheduledCheckpoint", 0, 2, 4), curves, limit_val_batches=1)
    arguments = {"name": str(series / "bert" / "checkpoint-40")}
    config["model"] = {"class_path": "lmdyn.models.pretrained.PretrainedLM", "init_args": arguments}
    config["data"] = {"class_path": f"{__name__}.TrainSentences"}
    run = trained(tmp_path, config)
    main(["analyze", str(run), "--out", str(tmp_path / "again")])
    assert losses(tmp_path / "again") == losses(run)
    assert len(set(losses(run).values())) == 3
    audit = pd.read_parquet(tmp_path / "again" / "weights_audit.parquet")
    assert audit["step"].tolist() == [0, 2, 4]
    assert audit["flag"].tolist() == ["", "", ""]


def test_data_that_would_make_up_a_tokenizer_is_refused(series, tmp_path):
    folder = tmp_path / "without"
    for step in (10, 20):
        model = T.GPT2LMHeadModel.from_pretrained(series / "gpt2" / f"checkpoint-{step}")
        model.save_pretrained(folder / f"checkpoint-{step}")
    curves = {"class_path": "LearningCurves", "init_args": {"bands": [], "layers": []}}
    corpus = {"class_path": "GrammarCorpus", "init_args": {"n_train_tokens": 100, "n_validation_tokens": 100}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": [curves]}, "data": corpus}))
    with pytest.raises(ValueError, match="the weights has no tokenizer, and GrammarCorpus would create"):
        analyze(folder, configs=[tmp_path / "c.yaml"], out=tmp_path / "out")


def test_a_checkpoint_of_another_model_is_not_observed_as_the_first(series, observers, tmp_path, capsys):
    shutil.copytree(series / "gpt2", tmp_path / "two")
    path = tmp_path / "two" / f"checkpoint-{STEPS[-1]}" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "n_head": 2}))
    with pytest.raises(SystemExit):
        main(["analyze", str(tmp_path / "two"), "--config", str(observers), "--out", str(tmp_path / "out")])
    assert "n_head 2 instead of 1" in capsys.readouterr().err
    assert sorted(losses(tmp_path / "out")) == list(STEPS[:-1])
