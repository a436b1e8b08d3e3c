"""``--data_seed`` is the order of data of whatever datamodule; a run has one writer."""

import pytest
import yaml

from lmdyn.cli.__main__ import main
from lmdyn.cli.fit import LmdynCLI
from lmdyn.runs.folder_lock import FolderLock

MODEL = ["--model", "LSTMLanguageModel", "--model.init_args.embedding_size=8", "--model.init_args.hidden_size=8",
         "--trainer.accelerator=cpu"]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (["--data", "GrammarCorpus"], "order_seed"),
        (["--data", "PretrainingCorpus", "--data.init_args.corpus", "GrammarCorpus"], "seed"),
    ],
)
def test_it_is_the_argument_that_the_rule_names(data, name):
    cli = LmdynCLI([*MODEL, *data, "--data_seed", "7"], run=False)
    assert getattr(cli.datamodule, name) == 7
    assert cli.config.data.init_args[name] == 7  # what is saved
    without = LmdynCLI([*MODEL, *data], run=False)
    assert getattr(without.datamodule, name) != 7


def test_data_without_an_order():
    with pytest.raises(ValueError, match="LightningDataModule has neither order_seed nor seed"):
        LmdynCLI([*MODEL, "--data", "lightning.LightningDataModule", "--data_seed=7"], run=False)
    for words in (["--data_seed", "many"], ["--data_seed"], ["--data-seed=-1"]):
        with pytest.raises((SystemExit, ValueError)):
            LmdynCLI([*MODEL, "--data", "GrammarCorpus", *words], run=False)


def test_a_run_has_one_writer(tmp_path, capsys):
    config = {
        "trainer": {
            "accelerator": "cpu", "max_steps": 1, "limit_val_batches": 0, "enable_progress_bar": False,
            "enable_model_summary": False,
            "logger": {"class_path": "CSVLogger",
                       "init_args": {"save_dir": str(tmp_path), "name": "", "version": "run"}},
        },
        "model": {"class_path": "LSTMLanguageModel", "init_args": {"embedding_size": 8, "hidden_size": 8}},
        "data": {"class_path": "GrammarCorpus", "init_args": {
            "n_train_tokens": 1000, "n_validation_tokens": 200, "n_test_tokens": 50, "n_nouns": 40, "n_verbs": 30,
            "n_adjectives": 20, "n_adverbs": 10, "n_names": 20, "n_facts": 10, "batch_size": 8}},
    }  # fmt: skip
    path = tmp_path / "in.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    first = FolderLock(tmp_path / "run")
    first.acquire()
    with pytest.raises(SystemExit):
        main(["fit", "--config", str(path)])
    assert "run is written by process" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    first.release()
    main(["fit", "--config", str(path), "--data_seed", "1"])
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert saved["data"]["init_args"]["order_seed"] == 1
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".lock")]
