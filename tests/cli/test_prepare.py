import pytest
from transformers import AutoTokenizer

from lmdyn.cli.command_parser import run_command
from lmdyn.cli.commands import prepare

SMALL = [
    "--model=LSTMLanguageModel", "--trainer.accelerator=cpu", "--trainer.logger=false",
    "--data=GrammarCorpus", "--data.n_train_tokens=500", "--data.n_validation_tokens=100", "--data.n_test_tokens=100",
]  # fmt: skip


@pytest.mark.parametrize("option", [lambda f: ["--tokenizer", f], lambda f: [f"--tokenizer={f}"]])
def test_encodes_and_saves_the_tokenizer(tmp_path, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "saved"
    # between the other arguments, which keep their order
    run_command(
        "prepare", prepare, [*SMALL, *option(str(folder)), "--data.cache_dir", str(tmp_path / "cache")]
    )
    assert len(list((tmp_path / "cache").glob("text-*"))) == 1
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<pad>", "<unk>", "<eos>"]
    folder.rename(tmp_path / "other")
    run_command("prepare", prepare, [*SMALL, "--data.cache_dir", str(tmp_path / "cache")])
    assert not folder.exists()


def test_data_without_a_tokenizer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    boring = "lightning.pytorch.demos.boring_classes.Boring"
    with pytest.raises(ValueError, match="BoringDataModule has no tokenizer: omit --tokenizer"):
        run_command(
            "prepare", prepare, [f"--model={boring}Model", f"--data={boring}DataModule", "--tokenizer", "t"]
        )
    assert not (tmp_path / "t").exists()


def test_a_file_is_no_folder_for_a_tokenizer(tmp_path):
    (tmp_path / "t").write_text("mine")
    with pytest.raises(ValueError, match="is a file: give an existing or a new folder"):
        run_command("prepare", prepare, [*SMALL, "--tokenizer", str(tmp_path / "t")])
    assert (tmp_path / "t").read_text() == "mine"
