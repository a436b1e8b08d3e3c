"""``lmdyn inspect``: the page tells what is, one line tells what is wrong, and the yaml that is written runs."""

import re
import shutil
import sys
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from transformers import BertConfig, BertModel

from lmdyn.callbacks.observing.run import snake_case
from lmdyn.cli.__main__ import main
from lmdyn.cli.inspect import inspect_model
from lmdyn.cli.inspecting.inspected_model import find_subject
from lmdyn.datamodules import GrammarCorpus
from lmdyn.datamodules.corpora.tokenization import subword_tokenizer
from tests.cli.tiny_run import tiny_run
from tests.helpers.architectures import ARCHITECTURES, VOCABULARY

CORPUS = {
    "n_train_tokens": 20_000, "n_validation_tokens": 4_000, "n_test_tokens": 2_000, "n_nouns": 60, "n_verbs": 40,
    "n_adjectives": 30, "n_adverbs": 10, "n_names": 20, "n_facts": 10,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models as they lie about: a user's file, folders of save_pretrained, text."""
    folder = tmp_path_factory.mktemp("inspect")
    shutil.copy(Path(__file__).with_name("inspected_own.py"), folder)
    corpus = GrammarCorpus(**CORPUS)
    tokenizer = subword_tokenizer("wordpiece", corpus.word_counts(), VOCABULARY)
    larger = subword_tokenizer("wordpiece", corpus.word_counts(), 2 * VOCABULARY)
    for name in ("llama", "bert", "t5", "albert"):
        ARCHITECTURES[name]().save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    shutil.copytree(folder / "llama", folder / "too_many")
    larger.save_pretrained(folder / "too_many")
    shutil.copytree(folder / "llama", folder / "trainer" / "checkpoint-10")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=9, **sizes)).save_pretrained(folder / "no_head")
    sentences = [" ".join(s.words) for d in corpus.documents("train") for s in d]
    (folder / "text.txt").write_text("\n".join(sentences[:250]), encoding="utf-8")
    (folder / "empty.txt").write_text("\n \n")
    (folder / "observers.yaml").write_text("trainer: {callbacks: [LearningCurves]}\n")
    (folder / "nothing").mkdir()
    shutil.copytree(folder / "llama", folder / "several" / "step_50")
    return folder


@pytest.fixture
def here(folder, tmp_path, monkeypatch):
    """The user's folder as the current one; what is written goes to tmp_path."""
    monkeypatch.chdir(folder)
    # no test looks at them
    monkeypatch.setattr("lmdyn.callbacks.observing.loggers.takes_images", lambda _: False)
    monkeypatch.syspath_prepend(str(folder))
    yield tmp_path
    sys.modules.pop("inspected_own", None)


SIZES = {
    "LSTMLanguageModel": "embedding_size=8 hidden_size=8",
    "MaskedLanguageModel": "family=albert config.hidden_size=16 config.num_attention_heads=2 "
    "config.num_hidden_layers=3 config.intermediate_size=16 config.embedding_size=8",
}


@pytest.fixture(scope="module")
def of_text(tmp_path_factory):
    """What is found of a model and the text, and the yaml that is written: once for all tests."""
    folder = tmp_path_factory.mktemp("written")

    @cache
    def inspected(name):
        path = folder / f"my_{name}.yaml"
        given = [f"--model.{argument}" for argument in SIZES.get(name, "").split()]
        return inspect_model(name, data="text.txt", arguments=given, write=path), path

    return inspected


def error_of(capsys, *args):
    with pytest.raises(SystemExit, match=r"1|2"):
        main(["inspect", *args])
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error:")]
    return line


PAIRS = "--data inspected_own.Pairs --data.rows=8"
WRONG = {
    "nothing": ("is neither a run folder (with a config.yaml) nor a model of transformers",),
    "several": ("checkpoint-*/): give a model, such as several/step_50",),
    "absent.yaml": ("absent.yaml does not exist",),
    "observers.yaml": ("observers.yaml: expected `model: {class_path: …, init_args: …}`, got trainer.",),
    "text.txt": ("is not a yaml with a model: give a model. For a text, add --data",),
    "org/absent": ("'org/absent' at revision 'main' is no folder here",),
    "inspected_own.Brokn": ("cannot import 'inspected_own.Brokn'", "did you mean 'Broken'?"),
    "inspected_own.Pairs": ("is a LightningDataModule: give a model, and then --data inspected_own.Pairs",),
    "inspected_own.by_function": ("inspected_own.by_function is not a model: expected a subclass",),
    "inspected_own.Needs": ("requires (depth, width: int): give --model.depth VALUE --model.width VALUE",),
    "inspected_own.GPT": ("requires (config: inspected_own.GPTConfig): give --model.config VALUE",),
    "inspected_own.Lit --model.n_layer x": ("n_layer",),
    "inspected_own.NoLogits": ("expected an output with `.logits`", "pass `forward:` to the observer"),
    "no_head": ("which may be causal or masked: set the objective",),
    "too_many": (f"the tokenizer has {2 * VOCABULARY} tok", f"{VOCABULARY} rows: use the"),
    "llama --data empty.txt": ("--data empty.txt is empty: expected a file with text",),
    "llama --data absent.txt": ("--data absent.txt: neither a file nor a package 'absent' exists",),
    "llama --data observers.yaml": ("--data observers.yaml has no `data:`",),
    "llama --data nothing": ("--data nothing is a folder: expected a text file",),
    "llama --data inspected_own.GPT": ("is not a LightningDataModule",),
    "inspected_own.Lit --data inspected_own.Pairs": ("requires (rows: int): give --data.rows VALUE",),
    "inspected_own.Lit --data inspected_own.Nothing": ("Nothing has no data to inspect: expected",),
    "inspected_own.Lit --model.vocab_size 20 --data text.txt": ("but an embedding of Lit has 20 rows",),
    "llama --write observers.yaml": ("the file already exists: give another name",),
    "t5 --data text.txt --write my.yaml": ("is an encoder-decoder: run observers by lmdyn analyze",),
    f"inspected_own.GPT --model.config.n_layer=1 {PAIRS} --write my.yaml": (
        "GPT is a plain nn.Module: wrap",
    ),
    f"inspected_own.OnlyForward {PAIRS} --write my.yaml": ("fit requires training_step and configure_optim",),
}


@pytest.mark.slow
@pytest.mark.parametrize("args", WRONG)
def test_what_is_wrong_is_one_line(args, here, capsys):
    line = error_of(capsys, *args.split())
    assert all(part in line for part in WRONG[args])
    assert not Path("my.yaml").exists()


def page_of(capsys, *args):
    capsys.readouterr()
    main(["inspect", *args])
    out, err = capsys.readouterr()
    return " ".join(out.split()), err


def verdicts(found):
    return {a.name: not a.findings for a in found.observers}


def test_a_function_that_calls_the_model(here, capsys):
    page, _ = page_of(capsys, *f"inspected_own.NoLogits --forward inspected_own.by_function {PAIRS}".split())
    assert "called inspected_own.by_function(module, batch) returns logits (4, 16, 200)" in page


@pytest.mark.slow
def test_weights_that_are_no_numbers_are_said(here, capsys):
    page, _ = page_of(capsys, "inspected_own.OnlyForward", *PAIRS.split())
    assert "weights" not in page.partition("Sites")[0]
    page, _ = page_of(capsys, "inspected_own.Broken", *PAIRS.split())
    assert "weights 2 are NaN or infinite, the first in net" in page


@pytest.mark.slow
def test_the_synthetic_corpus_suits_the_model(here):
    """Masked models get masks, causal ones the next words, in the model's own tokenizer; and nothing is written."""
    bert = inspect_model("bert")
    assert bert.data.entry["class_path"].endswith("PretrainingCorpus")
    assert bert.about["reads"].startswith("bidirectional")
    assert bert.about["labels"].startswith("aligned, as the data declares (objective: masked)")
    assert verdicts(bert)["AttentionPatterns"]
    assert not verdicts(bert)["Interdependence"]
    assert not list(here.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "data", "reads"),
    [
        ("MaskedLanguageModel", "PretrainingCorpus of the text text.txt", "bidirectional"),
        ("LSTMLanguageModel", "TextCorpus of the text text.txt", "causal"),
    ],
)
def test_a_class_whose_layers_are_the_datas(name, data, reads, here, of_text, without_report):
    """It is given the kind of rows that it takes, and layers for the vocabulary of these; fit takes the yaml."""
    found, path = of_text(name)
    assert found.about["data"].startswith(f"{data}; ")
    assert found.about["reads"].startswith(reads)
    assert found.subject.module.vocab_size == len(found.data.data.tokenizer)
    fit(path, 1, here)
    assert observed(here / path.stem / "version_0") == {snake_case(c) for c in in_yaml(path)[1:]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "about"),
    [
        ("llama", {"reads": "causal: ", "loops": "not looped: each of 2", "model": "transformers' LlamaForCausalLM"}),
        ("albert", {"reads": "bidirectional", "loops": "looped: model.albert.encoder.albert_layer_groups.0 runs 2"}),
        ("t5", {"reads": "encoder-decoder: the encoder reads all of input_ids, the decoder is causal"}),
    ],
)  # fmt: skip
def test_what_models_are_is_measured(name, about, here, of_text):
    found = inspect_model(name, data="text.txt") if name == "t5" else of_text(name)[0]
    for key, start in about.items():
        assert found.about[key].startswith(start)
    assert verdicts(found)["LearningCurves"]
    corpus = "PretrainingCorpus" if "bidir" in found.about["reads"] else "TextCorpus"
    assert re.fullmatch(rf"{corpus} of the text text.txt; observers read [\d,]+ tokens", found.about["data"])


def test_a_folder_of_the_trainer_is_its_last_checkpoint(here):
    assert find_subject("trainer", []).says == "transformers' LlamaForCausalLM, of trainer"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "LSTMLanguageModel"])
def test_all_of_a_text_is_observed(name, here, of_text):
    """By inspect, and by the command that takes the yaml: a tenth of it was, and of that 10,000 tokens."""
    found, path = of_text(name)
    data = found.data.data
    text = Path("text.txt").read_text(encoding="utf-8").lower().split()
    observed = sum(int((batch["labels"] != -100).sum()) for batch in data.val_dataloader())
    of_words = len(data.tokenizer(text, is_split_into_words=True, add_special_tokens=False)["input_ids"])
    ends = 0 if name == "llama" else data.encoded("validation").num_sentences  # end tokens
    assert observed == of_words + ends - 1
    assert "cut_articles" not in path.read_text()
    callbacks = yaml.safe_load(path.read_text())["trainer"]["callbacks"]
    assert not any("max_tokens" in c.get("init_args", {}) for c in callbacks)


def observed(folder):
    return {p.name for p in (folder / "observations").iterdir() if list(p.glob("*.parquet"))}


QUIET = "--trainer.enable_progress_bar=false"  # a thread of its own


def fit(path, steps, folder):
    own = f"--trainer.max_steps {steps} --trainer.logger.init_args.save_dir {folder}"
    main(f"fit --config {path} {own} {QUIET}".split())


def in_yaml(path):
    return [c["class_path"] for c in yaml.safe_load(path.read_text())["trainer"]["callbacks"]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_the_yaml_of_a_folder_replays(name, here, capsys, of_text):
    """What it holds are the observers that the page says run, and each of them makes its observation."""
    path = of_text(name)[1] if name == "llama" else here / "my.yaml"
    if name == "bert":
        _, err = page_of(capsys, name, "--write", str(path))
        assert f"lmdyn wrote {path}; next, run: lmdyn analyze {name} --config {path} --out runs/{name}" in err
    main(["analyze", name, "--config", str(path), "--out", str(here / "out")])
    assert observed(here / "out") == {snake_case(c) for c in in_yaml(path)}
    assert {"LearningCurves", "Sparsity", "Similarity"} <= set(in_yaml(path))
    curves = pd.read_parquet(here / "out" / "observations" / "learning_curves")
    assert curves["step"].unique().tolist() == [0]
    assert "# WorldKnowledge: " in path.read_text()  # comments say what does not run, with the reason


@pytest.mark.slow
def test_the_yaml_of_a_class_trains_and_its_run_replays(here, capsys, without_report):
    path = here / "lit.yaml"
    words = f"inspected_own.Lit --model.n_layer 3 --data text.txt --write {path}"
    _, err = page_of(capsys, *words.split())
    assert f"next, run: lmdyn fit --config {path}" in err
    written = yaml.safe_load(path.read_text())
    assert written["model"] == {"class_path": "inspected_own.Lit", "init_args": {"n_layer": 3}}
    assert written["data"]["init_args"]["vocab_size"] == 200  # pieces that the embedding has rows for
    fit(path, 1, here)
    run = here / "lit" / "version_0"
    assert observed(run) == {snake_case(c) for c in in_yaml(path) if c != "ScheduledCheckpoint"}
    # a yaml of the run holds what it did not observe yet
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["trainer"]["callbacks"] = [c for c in config["trainer"]["callbacks"] if "Similarity" not in str(c)]
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    shutil.rmtree(run / "observations" / "similarity")
    more = here / "more.yaml"
    found = inspect_model(str(run), write=more)
    assert found.subject.weights == f"of {run}/checkpoints/step=000000001.ckpt"
    there = [c for c in in_yaml(path)[1:] if c != "Similarity"]
    assert [a.name for a in found.observers if a.configured] == there
    state = torch.load(run / "checkpoints" / "step=000000001.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(state[n], t) for n, t in found.subject.module.state_dict().items())
    assert in_yaml(more) == ["Similarity"]
    main(["analyze", str(run), "--config", str(more)])
    assert len(list((run / "observations" / "similarity").glob("*.parquet"))) > 1


@pytest.mark.slow
def test_the_yaml_of_a_yaml_keeps_what_it_says(here, capsys, without_report):
    """Model, data and trainer are the user's, observers that run are added; what it configures is asked first."""
    mine = here / "mine.yaml"
    curves = {"class_path": "LearningCurves", "init_args": {"layers": ["topic"], "bands": []}}
    own = {"devices": 1, "logger": False, "default_root_dir": str(here / "run"), "limit_val_batches": 1.0}
    mine.write_text(
        yaml.safe_dump(tiny_run(here, curves, data={**CORPUS, "batch_size": 4}, max_steps=1, **own))
    )
    path = here / "more.yaml"
    page, _ = page_of(capsys, str(mine), "--write", str(path))
    assert "LearningCurves (configured) runs Loss" in page
    assert "loops recurrent over tokens (lstm.layers.0, lstm.layers.1); not looped in depth" in page
    before, after = yaml.safe_load(mine.read_text()), yaml.safe_load(path.read_text())
    assert after["model"] == before["model"]
    assert after["data"] == before["data"]
    assert after["trainer"].pop("callbacks")[0] == before["trainer"].pop("callbacks")[0]
    assert after["trainer"] == before["trainer"]
    assert "Sparsity" in in_yaml(path)
    main(["fit", "--config", str(path)])
    assert observed(here / "run") == {snake_case(c) for c in in_yaml(path)}
