"""Repositories of a stand-in hub: layouts, names, columns and missing parts of published ones, with little in them."""

import csv
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from shutil import copy
from typing import Any

import pyarrow.parquet as pq
import torch
from datasets import ClassLabel, Dataset, Features, Value
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AlbertConfig, AlbertForMaskedLM, AutoTokenizer, PreTrainedTokenizerFast

from tests.helpers.hub import Hub


def sentencepiece_like(text: Sequence[str], vocab_size: int = 600) -> PreTrainedTokenizerFast:
    """A tokenizer as ALBERT's: pieces of a Unigram model of raw text, lower case."""
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(text, trainer)
    ids = [(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_input_names=["input_ids", "token_type_ids", "attention_mask"], model_max_length=512,
    )  # fmt: skip


def publish_albert(hub: Hub, name: str, text: Sequence[str]) -> None:
    """Weights as albert-*-v2: of ``AlbertForMaskedLM``, without pooler and head for pairs of sentences."""
    folder = hub.folder("models", name)
    tokenizer = sentencepiece_like(text)
    torch.manual_seed(0)
    config = AlbertConfig(
        vocab_size=len(tokenizer), embedding_size=8, hidden_size=16, intermediate_size=32, num_hidden_layers=3,
        num_attention_heads=2, max_position_embeddings=512, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    AlbertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def publish_tokenizers(hub: Hub, vocabularies: Path) -> None:
    """The real word pieces of ALBERT (v1), BERT (uncased) and ELECTRA, beside a config.json, without weights.

    Args:
        hub: where to.
        vocabularies: the folder ``vocab`` of ``LMDYN_DATA``.
    """
    for name, family, file in (
        ("albert/albert-base-v1", "albert", "albert_spiece.model"),
        ("google-bert/bert-base-uncased", "bert", "bert-base-uncased-vocab.txt"),
        ("google/electra-base-discriminator", "electra", "bert-base-uncased-vocab.txt"),
    ):
        folder = hub.folder("models", name)
        copy(vocabularies / file, folder / {"albert": "spiece.model"}.get(family, "vocab.txt"))
        (folder / "config.json").write_text(json.dumps({"model_type": family}))
        settings = {"model_max_length": 512} | ({} if family == "albert" else {"do_lower_case": True})
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        AutoTokenizer.from_pretrained(folder).backend_tokenizer.save(str(folder / "tokenizer.json"))


# Text ---------------------------------------------------------------------------------------------------------


def publish_wikipedia(hub: Hub, documents: Sequence[str]) -> None:
    """``wikimedia/wikipedia``, ``20231101.en``: id, url, title, text; of its 41 files the first and the last."""
    folder = hub.folder("datasets", "wikimedia/wikipedia")
    half = len(documents) // 2
    for i, part in enumerate((documents[:half], documents[half:])):
        names = [str(12 + i * half + k) for k in range(len(part))]
        urls = [f"https://en.wikipedia.org/wiki/{n}" for n in names]
        columns = {"id": names, "url": urls, "title": names, "text": list(part)}
        _write(folder / "20231101.en" / f"train-{40 * i:05d}-of-00041.parquet", columns)
    _card(folder, {"20231101.en": ["train"]})


def _converted(hub: Hub, name: str, texts: Sequence[str]) -> None:
    """Texts in the branch that the hub converts to; main has a script only."""
    (hub.folder("datasets", name) / f"{name.partition('/')[2]}.py").write_text("# it runs no longer\n")
    folder = hub.folder("datasets", name, "refs/convert/parquet")
    _write(folder / "plain_text" / "train" / "0000.parquet", {"text": list(texts)})


def publish_openwebtext(hub: Hub, documents: Sequence[str]) -> None:
    """``Skylion007/openwebtext``: text."""
    _converted(hub, "Skylion007/openwebtext", documents)


def publish_books(hub: Hub, documents: Sequence[str]) -> None:
    """``bookcorpus/bookcorpus``: a sentence a row."""
    sentences = [f"{s.strip().lower()} ." for text in documents for s in text.split(".") if s.strip()]
    _converted(hub, "bookcorpus/bookcorpus", sentences)


def publish_gutenberg(hub: Hub, documents: Sequence[str]) -> None:
    """``manu/project_gutenberg``: whole books, a split a language."""
    folder = hub.folder("datasets", "manu/project_gutenberg")
    books = ["".join(documents[i::3]) for i in range(3)]
    path = folder / "data" / "en-00000-of-00052-5c2b3fd5e60f0124.parquet"
    _write(path, {"id": [f"{i}-0" for i in range(len(books))], "text": books})
    _card(folder, {"default": ["en"]}, "data/{split}-*")


def publish_wikitext(hub: Hub, files: Mapping[str, Path]) -> None:
    """``Salesforce/wikitext``, ``wikitext-103-raw-v1``: a line a row, without ``<unk>``.

    Args:
        hub: where to.
        files: of train, validation and test, in WikiText's format.
    """
    folder = hub.folder("datasets", "Salesforce/wikitext")
    for split, file in files.items():
        lines = file.read_text(encoding="utf-8").replace("<unk>", "Smith").split("\n")
        rows = [f"{line}\n" if line.strip() else "" for line in lines]
        parts = 2 if split == "train" else 1
        for i in range(parts):
            part = rows[i * len(rows) // parts : (i + 1) * len(rows) // parts]
            path = folder / "wikitext-103-raw-v1" / f"{split}-{i:05d}-of-{parts:05d}.parquet"
            _write(path, {"text": part})
    _card(folder, {"wikitext-103-raw-v1": list(files)})


# Tasks --------------------------------------------------------------------------------------------------------

_ONE = ("sentence",)
_PAIR = ("sentence1", "sentence2")
_NLI = ("entailment", "not_entailment")
_GLUE: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "cola": (_ONE, ("unacceptable", "acceptable")),
    "sst2": (_ONE, ("negative", "positive")),
    "mrpc": (_PAIR, ("not_equivalent", "equivalent")),
    "qqp": (("question1", "question2"), ("not_duplicate", "duplicate")),
    "stsb": (_PAIR, ()),
    "mnli": (("premise", "hypothesis"), ("entailment", "neutral", "contradiction")),
    "qnli": (("question", "sentence"), _NLI),
    "rte": (_PAIR, _NLI),
}
"""Columns of text of ``nyu-mll/glue``, and names of the labels."""


def publish_glue(hub: Hub, data: Path, tasks: Sequence[str] = tuple(_GLUE), rows: int = 120) -> None:
    """``nyu-mll/glue``: STS-B with all its rows, as many as there are matters, and a few made from it of the others.

    Args:
        hub: where to.
        data: the folder ``glue`` of ``LMDYN_DATA``.
        tasks: names of configurations.
        rows: of each split of the others.
    """
    folder = hub.folder("datasets", "nyu-mll/glue")
    made: dict[str, list[str]] = {}
    for task in tasks:
        columns, names = _GLUE[task]
        parts = ("_matched", "_mismatched") if task == "mnli" else ("",)
        label = ClassLabel(names=list(names)) if names else Value("float32")
        features = Features(
            {**dict.fromkeys(columns, Value("string")), "label": label, "idx": Value("int32")}
        )
        held_out = (("validation", "dev"), ("test", "test"))
        files = {"train": "train", **{f"{split}{part}": file for split, file in held_out for part in parts}}
        for split, file in files.items():
            with (data / "STS-B" / f"{file}.tsv").open(encoding="utf-8") as lines:
                read = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
                pairs = list(read if not names else islice(read, rows))
            scores = [float(row.get("score") or -1) for row in pairs]
            table: dict[str, list[Any]] = {
                column: [row[given] for row in pairs] for column, given in zip(columns, _PAIR, strict=False)
            }
            # labels of test sets are not published: -1
            n = len(names)
            classes = [-1 if score < 0 else min(n - 1, int(score * n / 5)) for score in scores]
            table |= {"label": classes if names else scores, "idx": list(range(len(pairs)))}
            path = folder / task / f"{split}-00000-of-00001.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            Dataset.from_dict(table, features=features).to_parquet(path)
        made[task] = list(files)
    _card(folder, made)


def publish_squad(hub: Hub, documents: Sequence[str], rows: int = 60) -> None:
    """``rajpurkar/squad_v2``: id, title, context, question, answers; some questions have none."""
    folder = hub.folder("datasets", "rajpurkar/squad_v2")
    for split in ("train", "validation"):
        table: dict[str, list[Any]] = {name: [] for name in ("id", "title", "context", "question", "answers")}
        for i in range(rows):
            context = " ".join(documents[i % len(documents)].split()[:40])
            answer = context.split()[i % 30]
            known = {"text": [answer], "answer_start": [context.index(answer)]}
            values = (f"{i:024x}", f"title_{i}", context, f"what is said of number {i}?")
            answers = known if i % 3 else {"text": [], "answer_start": []}
            for name, value in zip(table, (*values, answers), strict=True):
                table[name].append(value)
        _write(folder / "squad_v2" / f"{split}-00000-of-00001.parquet", table)
    _card(folder, {"squad_v2": ["train", "validation"]})


def _write(path: Path, columns: dict[str, list[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(Dataset.from_dict(columns).data.table, path)


def _card(folder: Path, configs: dict[str, list[str]], files: str = "{name}/{split}-*") -> None:
    """README.md, whose header says which files are which split."""
    entries = []
    for name, splits in configs.items():
        paths = [{"split": split, "path": files.format(name=name, split=split)} for split in splits]
        entries.append({"config_name": name, "data_files": paths})
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(entries)}\n---\n")
