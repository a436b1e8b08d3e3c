"""Repositories of a stand-in hub: layouts, names, columns and missing parts of published ones, with little in them."""

import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AlbertConfig, AlbertForMaskedLM, PreTrainedTokenizerFast

from tests.helpers.hub import Hub

__all__ = [
    "publish_albert",
    "publish_glue",
    "publish_wikipedia",
    "publish_wikitext",
    "raw_articles",
    "sentencepiece_like",
]


def raw_articles() -> list[str]:
    """Raw text: articles of ``LMDYN_DATA``'s WikiText-2, with the marks of its tokenization taken out."""
    text = Path(os.environ["LMDYN_DATA"], "wikitext-2", "valid.txt").read_text(encoding="utf-8")
    for mark, plain in (
        (" @-@ ", "-"),
        (" @,@ ", ","),
        (" @.@ ", "."),
        (" ,", ","),
        (" .", "."),
        (" <unk>", " Smith"),
    ):
        text = text.replace(mark, plain)
    return [f"{part.strip()}\n" for part in text.split("\n = ") if len(part) > 200]


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


def publish_wikipedia(hub: Hub, documents: Sequence[str]) -> None:
    """``wikimedia/wikipedia``, ``20231101.en``: two parquet files with id, url, title, text."""
    folder = hub.folder("datasets", "wikimedia/wikipedia")
    half = len(documents) // 2
    for i, part in enumerate((documents[:half], documents[half:])):
        names = [str(12 + i * half + k) for k in range(len(part))]
        columns = {
            "id": names,
            "url": [f"https://en.wikipedia.org/wiki/{n}" for n in names],
            "title": names,
            "text": list(part),
        }
        _write(folder / "20231101.en" / f"train-{i:05d}-of-00002.parquet", columns)
    _card(folder, {"20231101.en": ["train"]})


def publish_wikitext(hub: Hub, documents: Sequence[str]) -> None:
    """``Salesforce/wikitext``, ``wikitext-2-raw-v1``: a line a row, in three splits."""
    folder = hub.folder("datasets", "Salesforce/wikitext")
    third = len(documents) // 3
    for i, split in enumerate(("train", "validation", "test")):
        lines = [
            line for part in documents[i * third : (i + 1) * third] for line in part.splitlines(keepends=True)
        ]
        _write(folder / "wikitext-2-raw-v1" / f"{split}-00000-of-00001.parquet", {"text": lines})
    _card(folder, {"wikitext-2-raw-v1": ["train", "validation", "test"]})


_FEATURES = {
    "stsb": pa.schema(
        [("sentence1", pa.string()), ("sentence2", pa.string()), ("label", pa.float32()), ("idx", pa.int32())]
    )
}


def publish_glue(hub: Hub, data: Path) -> None:
    """``nyu-mll/glue``, of its tasks STS-B, with all its rows: as many as there are matters.

    Args:
        hub: where to.
        data: the folder ``glue`` of ``LMDYN_DATA``.
    """
    folder = hub.folder("datasets", "nyu-mll/glue")
    for split, file in (("train", "train"), ("validation", "dev"), ("test", "test")):
        with (data / "STS-B" / f"{file}.tsv").open(encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
        columns = {
            "sentence1": [row["sentence1"] for row in rows],
            "sentence2": [row["sentence2"] for row in rows],
            "label": [float(row.get("score") or -1) for row in rows],
            "idx": list(range(len(rows))),
        }
        _write(folder / "stsb" / f"{split}-00000-of-00001.parquet", columns, _FEATURES["stsb"])
    _card(folder, {"stsb": ["train", "validation", "test"]})


def _write(path: Path, columns: dict[str, list[Any]], schema: pa.Schema | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns, schema=schema), path)


def _card(folder: Path, configs: dict[str, list[str]]) -> None:
    """README.md, whose header says which files are which split."""
    entries = [
        {
            "config_name": name,
            "data_files": [{"split": split, "path": f"{name}/{split}-*"} for split in splits],
        }
        for name, splits in configs.items()
    ]
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(entries)}\n---\n")
