import pytest
from transformers import AutoTokenizer

from lmdyn.cli.commands import prepare_command

SMALL = [
    "--model=LSTMLanguageModel", "--trainer.accelerator=cpu", "--trainer.logger=false",
    "--data=GrammarCorpus", "--data.n_train_tokens=500", "--data.n_validation_tokens=100", "--data.n_test_tokens=100",
]  # fmt: skip


@pytest.mark.parametrize("option", [lambda f: ["--tokenizer", f], lambda f: [f"--tokenizer={f}"]])
def test_encodes_and_saves_the_tokenizer(tmp_path, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "saved"
    # between the other arguments, which keep their order
    prepare_command([*SMALL, *option(str(folder)), "--data.cache_dir", str(tmp_path / "cache")])
    assert len(list((tmp_path / "cache").glob("text-*"))) == 1
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<pad>", "<unk>", "<eos>"]
    folder.rename(tmp_path / "other")
    prepare_command([*SMALL, "--data.cache_dir", str(tmp_path / "cache")])
    assert not folder.exists()


@pytest.mark.parametrize("args", [["--tokenizer"], ["--tokenizer", "--data=GrammarCorpus"]])
def test_a_folder_is_needed(args):
    with pytest.raises(ValueError, match=r"^--tokenizer requires a folder: --tokenizer DIR$"):
        prepare_command([*SMALL, *args])


def test_data_without_a_tokenizer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    boring = "lightning.pytorch.demos.boring_classes.Boring"
    with pytest.raises(ValueError, match="BoringDataModule has no tokenizer: omit --tokenizer"):
        prepare_command([f"--model={boring}Model", f"--data={boring}DataModule", "--tokenizer", "t"])
    assert not (tmp_path / "t").exists()


def test_help(capsys):
    prepare_command([])
    text = capsys.readouterr().out
    assert "usage: lmdyn prepare --config FILE" in text
    assert "--tokenizer DIR" in text
    with pytest.raises(SystemExit, match="0"):
        prepare_command(["--config", "x.yaml", "--help"])
    assert capsys.readouterr().out == text


def test_a_file_is_no_folder_for_a_tokenizer(tmp_path):
    (tmp_path / "t").write_text("mine")
    with pytest.raises(ValueError, match="is a file: expected a folder or a new name"):
        prepare_command([*SMALL, "--tokenizer", str(tmp_path / "t")])
    assert (tmp_path / "t").read_text() == "mine"
