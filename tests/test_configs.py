"""Every shipped yaml parses, makes its classes, and trains where its data can be had."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from transformers import AlbertConfig, AlbertForPreTraining

import lmdyn.callbacks
from lmdyn.callbacks import Observer, ScheduledCheckpoint
from lmdyn.callbacks.training.lightning_internals import callbacks_of
from lmdyn.cli.fit import LmdynCLI
from lmdyn.datamodules.grammar.grammar import Grammar
from tests.helpers.excerpts import excerpt_data

ROOT = Path(__file__).parents[1]
PROFILES = sorted((ROOT / "configs").rglob("config.yaml"))  # Snakemake's settings, see test_workflows.py
PUBLISHED = sorted((ROOT / "configs" / "published").glob("*.yaml"))  # see tests/cli/test_published.py
PUBLISHED += sorted((ROOT / "configs" / "babylm").glob("*.yaml"))  # see tests/cli/test_babylm.py
CONFIGS = sorted(set((ROOT / "configs").rglob("*.yaml")) - {*PROFILES, *PUBLISHED})
OVERLAYS = [path for path in CONFIGS if "class_path" not in yaml.safe_load(path.read_text()).get("model", {})]
EXPERIMENTS = [path for path in CONFIGS if path not in OVERLAYS]
# what overlays are laid over that have no language model beside them
BASE = ROOT / "configs" / "quickstart.yaml"

ON_CPU = ["--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.strategy=auto"]
SMALL = [
    *ON_CPU, "--trainer.max_steps=2", "--trainer.limit_val_batches=1", "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
]  # fmt: skip
SMALL_LSTM = ["--model.init_args.embedding_size=4", "--model.init_args.hidden_size=4"]
OF_FOUR = {"hidden_size": 4, "intermediate_size": 4, "num_attention_heads": 2}
SMALL_TRANSFORMER = {**OF_FOUR, "num_hidden_layers": 2, "max_position_embeddings": 16}
SMALL_LLAMA = {**OF_FOUR, "num_key_value_heads": 2, "max_position_embeddings": 64}
SMALL_GPT2 = {"n_embd": 4, "n_layer": 1, "n_head": 2, "n_positions": 64}
OF_TOWERS = {**OF_FOUR, "num_layers": 1, "max_position_embeddings": 16}
SMALL_TOWERS = [f"--model.init_args.{name}={size}" for name, size in OF_TOWERS.items()]
SMALL_SPLITS = {"n_train_tokens": 6000, "n_validation_tokens": 1000, "n_test_tokens": 1000}
SMALL_SCAFFOLD = {
    "n_train_tokens": 2000, "n_validation_tokens": 400, "n_test_tokens": 400, "n_rules": 10, "n_outside": 1,
    "n_types": 100, "batch_size": 4,
}  # fmt: skip
SMALL_MASKED = {"sequence_length": 16, "batch_size": 4}
OF_CORPUS = {f"corpus.init_args.{k}": v for k, v in {**SMALL_SPLITS, "vocab_size": 300}.items()}
SMALL_DATA = {
    "GrammarCorpus": {**SMALL_SPLITS, "batch_size": 4},
    "ScaffoldCorpus": SMALL_SCAFFOLD,
    "PretrainingCorpus of GrammarCorpus": {**SMALL_MASKED, **OF_CORPUS},
    "PretrainingCorpus of TextCorpus": {**SMALL_MASKED, "corpus.init_args.vocab_size": 500},
}


def base_of(path: Path) -> Path:
    """What an overlay is laid over."""
    return path.with_name("lm.yaml") if path.with_name("lm.yaml").exists() else BASE


def files_of(path: Path) -> list[str]:
    """As the command of its header has them, where it trains with this overlay; else over its base."""
    command = re.search(r"lmdyn\.cli fit (.*?)(?:\n# \w+:|python -m)", path.read_text(), re.DOTALL)
    named = [ROOT / file for file in re.findall(r"--config (\S+)", command[1])] if command else []
    files = [path] if path not in OVERLAYS else named if path in named else [base_of(path), path]
    return [argument for file in files for argument in ("--config", str(file))]


def small(file: str, folder: Path) -> str:
    """A copy of a configuration for a tiny corpus: small samples, a short look, no figures."""
    document = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    for callbacks in document.get("trainer", {}).values():
        for callback in callbacks if isinstance(callbacks, list) else []:
            if issubclass(getattr(lmdyn.callbacks, callback["class_path"], object), Observer):
                callback.setdefault("init_args", {})["log_figures"] = False
            if callback["class_path"] in ("Sparsity", "LearningCurves", "Similarity", "LossChangeAllocation"):
                path = callback["class_path"] == "LossChangeAllocation"  # which looks at it in each update
                callback["init_args"]["max_tokens"] = 200 if path else 1000
            if callback["class_path"] == "Sparsity":
                callback["init_args"] |= {"class_min_count": 5, "matched_size": 5}
            if callback["class_path"] == "EncoderDynamics":
                callback["init_args"] |= {"lengths": [6, 10], "length": 10}
                callback["init_args"]["short_term"] |= {"steps": 50}
                callback["init_args"]["long_term"] |= {"steps": 200, "check_steps": 50}
    copy = folder / f"small-{Path(file).name}"
    copy.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(copy)


def small_files_of(path: Path, folder: Path) -> list[str]:
    return [file if file == "--config" else small(file, folder) for file in files_of(path)]


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def base_document(path: Path) -> dict[str, Any]:
    return document(base_of(path) if path in OVERLAYS else path)


def data_class(path: Path) -> str:
    data = base_document(path)["data"]
    inner = data["init_args"].get("corpus")
    return str(data["class_path"] if inner is None else f"{data['class_path']} of {inner['class_path']}")


def real_text(path: Path) -> bool:
    return "$LMDYN_DATA" in str(base_document(path)) or "${LMDYN_DATA}" in str(base_document(path))


def live(path: Path) -> bool:
    """Whether its profile observes runs as they are made, and keeps no weights."""
    profile = path.with_name("config.yaml")
    return profile in PROFILES and bool(document(profile)["config"].get("live", False))


def streamed(path: Path) -> bool:
    """Whether its text is on the hub."""
    return "stream" in base_document(path)["data"]["init_args"]


def from_the_hub(path: Path) -> bool:
    """Whether its text has to be downloaded, in a stream or as a whole."""
    data = base_document(path)["data"]["init_args"]
    return streamed(path) or "Salesforce/" in str(data.get("dataset", ""))


def small_arguments(path: Path) -> list[str]:
    """Arguments that make model and data of a configuration small."""
    arguments = [*SMALL]
    if base_document(path)["model"]["init_args"].get("pretrained") and path.name != "initial.yaml":
        pass  # the model that takes its place is small: in_place_of_the_hub
    elif base_document(path)["model"]["class_path"] == "MaskedLanguageModel":
        family = {**base_document(path), **document(path)}["model"]["init_args"]["family"]
        config = {**SMALL_TRANSFORMER, **({} if family == "bert" else {"embedding_size": 4})}
        arguments.append(f"--model.init_args.config={json.dumps(config)}")
    elif base_document(path)["model"]["class_path"] in ("CausalLanguageModel", "CausalTagger"):
        llama = base_document(path)["model"]["init_args"]["family"] == "llama"
        arguments.append(f"--model.init_args.config={json.dumps(SMALL_LLAMA if llama else SMALL_GPT2)}")
    elif base_document(path)["model"]["class_path"] == "LoopedLanguageModel":
        arguments += [f"--model.init_args.config={json.dumps(SMALL_LLAMA)}", "--model.init_args.depth=2"]
    elif base_document(path)["model"]["class_path"] == "TwoTowerLanguageModel":
        arguments += SMALL_TOWERS
    else:
        arguments += SMALL_LSTM
    return arguments + [f"--data.init_args.{k}={v}" for k, v in SMALL_DATA.get(data_class(path), {}).items()]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT / "configs"))


def plain(value: Any) -> Any:
    """A value with the types of everything in it, to compare."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value).__name__, [plain(v) for v in value]
    return type(value).__qualname__, value if isinstance(value, str | int | float | bool | None) else repr(
        value
    )


def made_of(value: Any) -> Any:
    """The settings of a datamodule, with those of the corpora, streams and sources in it."""
    if isinstance(value, Grammar):
        return None  # large, and a function of the corpus's hyperparameters
    if not type(value).__module__.startswith("lmdyn."):
        return plain(value)
    public = {k: made_of(v) for k, v in vars(value).items() if not k.startswith("_") and k != "trainer"}
    return type(value).__qualname__, plain(dict(getattr(value, "hparams", {}))), public


def of_callback(observer: Observer) -> dict[str, Any]:
    """The arguments of an observer but for its datamodules, which are described by what they were made with."""
    data = ("probe", "tasks")
    return {name: made_of(v) if name in data else v for name, v in observer.arguments.items()}


def settings(cli: LmdynCLI) -> dict[str, Any]:
    """What the instances were made with."""
    described = {type(o).__qualname__: plain(dict(o.hparams)) for o in (cli.model, cli.datamodule)}
    described["data"] = made_of(cli.datamodule)
    for callback in callbacks_of(cli.trainer):
        if isinstance(callback, Observer):
            described[callback.name] = plain(of_callback(callback)), made_of(callback.probe)
        elif hasattr(callback, "schedule"):
            described[str(callback.state_key)] = plain(vars(callback))
    return described


@pytest.fixture(scope="session")
def beginnings(tmp_path_factory):
    """The beginnings of the real corpora, where they are."""
    folder = tmp_path_factory.mktemp("data")
    if "LMDYN_DATA" in os.environ:
        whole = Path(os.environ["LMDYN_DATA"])
        excerpt_data(whole, folder)
        for path in whole.iterdir():
            if not (folder / path.name).exists():
                (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture
def in_tmp(tmp_path, monkeypatch, beginnings):
    """Runs go to a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMDYN_DATA", str(beginnings))
    return tmp_path


def in_place_of_the_hub(path: Path, folder: Path, vocab_size: int = 9) -> list[str]:
    """A model in a folder instead of the hub's, where a configuration begins with one that others trained."""
    if base_document(path)["model"]["init_args"].get("pretrained") is None or path.name == "initial.yaml":
        return []
    sizes = {"vocab_size": vocab_size, "embedding_size": 4, "hidden_size": 4, "intermediate_size": 4}
    AlbertForPreTraining(AlbertConfig(**sizes, num_attention_heads=1)).save_pretrained(
        folder / f"hub_{vocab_size}"
    )
    return [f"--model.init_args.pretrained={folder / f'hub_{vocab_size}'}"]


# experiments of these differ from an organism's by sizes: tests/cli/test_check.py, tests/test_paper_profiles.py
LARGE = {"paper", "wikitext2", "english", "scaffold"}


def classes(path: Path) -> str:
    """All that it names, with what it is laid over."""
    return str(sorted({*re.findall(r"'class_path': '(.*?)'", f"{base_document(path)}{document(path)}")}))


READ_AGAIN = {  # one of each set of classes
    classes(p): p for p in CONFIGS
    if not LARGE & {*p.parts, p.stem} or p.name == "paper.yaml" or ("paper" in p.parts and p in OVERLAYS)
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("path", READ_AGAIN.values(), ids=name)
def test_saved_configuration_gives_the_same_types_and_values(path, in_tmp):
    first = LmdynCLI([*files_of(path), *ON_CPU, *in_place_of_the_hub(path, in_tmp)], run=False)
    first.parser.save(first.config, in_tmp / "saved.yaml", skip_none=False, overwrite=True, multifile=False)
    again = LmdynCLI(["--config", str(in_tmp / "saved.yaml")], run=False)
    described = settings(first)
    assert settings(again) == described
    observers = [c for c in callbacks_of(first.trainer) if isinstance(c, Observer)]
    profile = path.with_name("config.yaml")
    assert bool(observers) == (profile not in PROFILES or live(path) or path.name.startswith("observers"))
    assert all(o.name in described for o in observers)


@pytest.mark.parametrize("model", ["LSTMLanguageModel", "MaskedLanguageModel", "TwoTowerLanguageModel"])
def test_default_optimizers_are_saved_and_read_again(model, in_tmp):
    sizes = ["--model.init_args.config={hidden_size: 8}"] if model == "MaskedLanguageModel" else []
    first = LmdynCLI(["--model", model, "--data", "GrammarCorpus", *sizes, *ON_CPU], run=False)
    first.parser.save(first.config, in_tmp / "saved.yaml", skip_none=False, overwrite=True, multifile=False)
    again = LmdynCLI(["--config", str(in_tmp / "saved.yaml")], run=False)
    weights = [torch.nn.Parameter(torch.zeros(1))]
    one, two = (cli.model.optimizer(weights) for cli in (first, again))
    assert (type(one), one.defaults) == (type(two), two.defaults)


def test_settings_can_differ(in_tmp):
    """The control of the comparison above."""
    first = LmdynCLI(files_of(BASE), run=False)
    other = LmdynCLI([*files_of(BASE), "--model.init_args.dropout=0"], run=False)
    assert settings(other) != settings(first)


def own_vocabulary(path: Path) -> list[str]:
    """A tokenizer of its own, where the chain of runs makes one for all."""
    files = [path, base_of(path)] if path in OVERLAYS else [path]
    return (
        ["--data.init_args.tokenizer=null"] if any("tokenizer: runs/" in f.read_text() for f in files) else []
    )


# others, whose text the grammar makes, are trained by tests/test_determinism.py
FOUND = [p for p in EXPERIMENTS if real_text(p) and not streamed(p)]
# one of each class of model and data
REAL = list({(base_document(p)["model"]["class_path"], data_class(p)): p for p in FOUND}.values())
WITHOUT_DATA = pytest.mark.skipif("LMDYN_DATA" not in os.environ, reason="LMDYN_DATA is not set")


@pytest.mark.slow
@pytest.mark.realdata
@WITHOUT_DATA
@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("path", REAL, ids=name)
def test_trains_and_observes(path, in_tmp):
    cli = LmdynCLI(["fit", *small_files_of(path, in_tmp), *small_arguments(path), *own_vocabulary(path)])
    check_run(cli, live(path))


def check_run(cli: LmdynCLI, live: bool, steps: int = 2) -> None:
    assert cli.trainer.global_step == steps
    assert all(torch.isfinite(p).all() for p in cli.model.parameters())
    run = Path(cli.trainer.log_dir or "")
    for observer in (c for c in callbacks_of(cli.trainer) if isinstance(c, Observer)):
        observations = pd.read_parquet(run / "observations" / observer.name)
        assert {0, *([steps] if observer.schedule.last else [])} <= set(observations["step"])
    written = {
        (
            callback.directory(cli.trainer).name,
            cli.trainer.global_step in callback.schedule or callback.schedule.last,
        )
        for callback in callbacks_of(cli.trainer)
        if isinstance(callback, ScheduledCheckpoint)
    }
    assert written or live
    for folder, last in written:  # an initial network is kept as it was before the first update
        assert (run / folder / f"step={steps if last else 0:09d}.ckpt").exists()
