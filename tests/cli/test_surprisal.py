"""``lmdyn surprisal``: tables of a text, by a run, a checkpoint, a folder; and what is refused."""

import io
import json

import pandas as pd
import pytest
import torch
from transformers import AlbertConfig, AlbertForMaskedLM, BertTokenizerFast, GPT2Config, GPT2LMHeadModel

from lmdyn.cli.__main__ import main
from lmdyn.cli.surprisal_tables import write_surprisals
from lmdyn.datamodules.corpora.tokenization import load_tokenizer, tokenizer_digest
from lmdyn.models import PretrainedLM
from tests.analysis.words.test_surprisal import TEXTS, albert_like
from tests.cli.tiny_run import at_steps, tiny_run, trained
from tests.helpers.foreign_tokenizers import byte_level


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("\n".join(["", *TEXTS, " ", ""]), encoding="utf-8")
    tokenizer = byte_level(TEXTS, eos_token="<|endoftext|>")
    tokenizer.save_pretrained("gpt")
    torch.manual_seed(0)
    GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_embd=8, n_layer=1, n_head=1, n_positions=64)
    ).save_pretrained("gpt")
    return tmp_path


def test_of_a_folder(here, capsys, caplog):
    main(["surprisal", "gpt", "text.txt"])
    pieces, words = (pd.read_parquet(f"text.surprisal/{n}.parquet") for n in ("pieces", "words"))
    assert words["line"].unique().tolist() == [2, 3, 4, 5]  # as an editor numbers them
    assert words["word"].tolist() == " ".join(TEXTS).split()
    assert list(words.columns) == [
        "line", "word_index", "word", "pieces", "log_probability", "surprisal", "rank", "entropy"
    ]  # fmt: skip
    model = PretrainedLM("gpt").eval()
    ids = torch.tensor([[0, *model.tokenizer(TEXTS[0])["input_ids"]]])
    with torch.no_grad():
        loss = model.model(input_ids=ids, labels=ids).loss
    assert -pieces["log_probability"][pieces["line"] == 2].mean() == pytest.approx(float(loss), abs=1e-5)
    settings = json.loads((here / "text.surprisal" / "settings.json").read_text())
    assert settings["model"] == "gpt"
    assert settings["pseudo"] == "piece"
    with pytest.raises(SystemExit):
        main(["surprisal", "gpt", "text.txt"])
    assert "text.surprisal already contains surprisals: give another --out" in capsys.readouterr().err


def test_of_standard_input(here, monkeypatch):
    for name, raw in {"plain": "Élan sat\n", "mark": "\ufeffÉlan sat\r\n", "latin": "\udcc9lan"}.items():
        given = io.BytesIO(raw.encode("utf-8", "surrogateescape"))
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(given, encoding="latin-1"))  # the terminal's
        if name == "latin":
            with pytest.raises(ValueError, match="standard input is not UTF-8"):
                write_surprisals("gpt", "-", here / name)
            continue
        main(["surprisal", "gpt", "-", "--out", name])
        assert pd.read_parquet(f"{name}/words.parquet")["word"].tolist() == ["Élan", "sat"]
    plain, mark = (pd.read_parquet(f"{name}/pieces.parquet") for name in ("plain", "mark"))
    pd.testing.assert_frame_equal(plain, mark)


def test_each_word_of_a_line_has_a_row(here, capsys):
    vocabulary = here / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cats", "sat"]))
    BertTokenizerFast(vocab=str(vocabulary)).save_pretrained("cleaning")
    (here / "text.txt").write_text("\u200b\ncats \u200b sat\n\u200b \u200b\nsat\n", encoding="utf-8")
    main(["surprisal", "gpt", "text.txt", "--tokenizer", "cleaning"])
    words = pd.read_parquet("text.surprisal/words.parquet")
    assert words["line"].tolist() == [1, 2, 2, 2, 3, 3, 4]
    assert words["word_index"].dtype == "int64"
    assert words["word_index"].tolist() == [0, 0, 1, 2, 0, 1, 0]
    assert words["pieces"].tolist() == [0, 1, 0, 1, 0, 0, 1]
    without = words["pieces"] == 0
    assert words.loc[without, ["log_probability", "surprisal", "rank", "entropy"]].isna().all(axis=None)
    assert words.loc[~without, ["log_probability", "surprisal", "rank", "entropy"]].notna().all(axis=None)
    assert "4 of 7 words have no piece of their own" in capsys.readouterr().err


def test_the_settings_say_what_was_found(here):
    tokenizer = load_tokenizer("gpt")
    (here / "copy").mkdir()
    tokenizer.save_pretrained("copy")
    for name, words, expected in (
        ("first", [], ("causal", "<|endoftext|>", 64, tokenizer.name_or_path)),
        ("other", ["--tokenizer", "copy", "--start=", "--context=8"], ("causal", "", 8, "copy")),
    ):
        main(["surprisal", "gpt", "text.txt", f"--out={name}", *words])
        found = json.loads((here / name / "settings.json").read_text())
        assert tuple(found[key] for key in ("objective", "start", "context", "tokenizer")) == expected
        assert found["tokenizer_digest"] == tokenizer_digest(tokenizer)


def test_of_a_run_and_of_its_checkpoints(here):
    folder = trained(here, tiny_run(here, at_steps("ScheduledCheckpoint", 1, 2), max_steps=2))
    (here / "text.txt").write_text("the dog\n")
    for name, model in (
        ("run", ""),
        ("last", "checkpoints/step=000000002.ckpt"),
        ("first", "checkpoints/step=000000001.ckpt"),
    ):
        main(["surprisal", str(folder / model), "text.txt", "--out", name])
    run, last, first = (pd.read_parquet(f"{n}/words.parquet")["surprisal"] for n in ("run", "last", "first"))
    assert run.equals(last)
    assert not run.equals(first)


def test_of_published_weights_of_albert(here, capsys):
    """They have no pooler and no head for pairs of sentences, though their configuration names them."""
    tokenizer = albert_like()
    config = AlbertConfig(
        vocab_size=len(tokenizer), embedding_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    saved = AlbertForMaskedLM(config)
    saved.save_pretrained("albert")
    tokenizer.save_pretrained("albert")
    file = here / "albert" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": ["AlbertForPreTraining"]}))
    main(["surprisal", "albert", "text.txt", "--pseudo", "rest_of_word"])
    assert pd.read_parquet("text.surprisal/words.parquet")["surprisal"].notna().all()
    assert "albert has no weights of pooler, sop_classifier" in capsys.readouterr().err
    module = PretrainedLM("albert").eval()
    ids = torch.tensor([[2, 7, 8, 3]])
    torch.testing.assert_close(module(ids).logits, saved.eval()(ids).logits)


def test_predict_of_a_pretrained_model(here):
    module = PretrainedLM("gpt").eval()
    ids = torch.tensor([[5, 6, 7]])
    labels = torch.tensor([[6, -100, 8]])
    with torch.no_grad():
        found = module.predict_step({"input_ids": ids, "labels": labels}, 0)
        log_p = module(ids).logits[0].log_softmax(-1)
    assert found[0, 0] == pytest.approx(-float(log_p[0, 6]))
    assert found[0, 1].isnan()


def test_what_is_refused(here, capsys):
    (here / "latin.txt").write_bytes("Élan".encode("latin-1"))
    (here / "empty.txt").write_text("\n \n")
    (here / "lone.ckpt").write_text("")
    GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=1)).save_pretrained("bare")
    for args, message in (
        ("gpt none.txt", "file none.txt does not exist: give a file, or -"),
        ("gpt latin.txt", "latin.txt is not UTF-8"),
        ("gpt empty.txt", "empty.txt contains no text"),
        ("gpt/x.ckpt text.txt", "checkpoint gpt/x.ckpt does not exist"),
        ("lone.ckpt text.txt", "no config.yaml in the folders above"),
        ("bare text.txt", "bare has no tokenizer next to it: give --tokenizer FOLDER"),
        ("gpt text.txt --pseudo word", "invalid choice: 'word'"),
    ):
        with pytest.raises(SystemExit):
            main(["surprisal", *args.split()])
        assert message in capsys.readouterr().err
