"""``--data_seed`` is the order of data of whatever datamodule; a run has one writer."""

import pytest
import yaml

from lmdyn.cli.__main__ import main
from lmdyn.cli.fit import LmdynCLI
from lmdyn.runs.folder_lock import FolderLock
from tests.cli.tiny_run import tiny_run

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
    path = tmp_path / "in.yaml"
    path.write_text(yaml.safe_dump(tiny_run(tmp_path, max_steps=1)), encoding="utf-8")
    first = FolderLock(tmp_path / "run")
    first.acquire()
    with pytest.raises(SystemExit):
        main(["fit", "--config", str(path)])
    assert "run is in use by process" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    first.release()
    main(["fit", "--config", str(path), "--data_seed", "1"])
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert saved["data"]["init_args"]["order_seed"] == 1
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".lock")]
