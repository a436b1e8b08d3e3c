"""Tokenizers and models as transformers saves them."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import BertConfig, BertForMaskedLM

from lmdyn.datamodules.corpora.tokenization import load_tokenizer, subword_tokenizer, word_tokenizer
from lmdyn.models import PretrainedLM
from tests.helpers.mutants import BYTES, JSON, Reader

__all__ = ["readers"]

COUNTS = {"the": 9, "cat": 5, "sat": 4, "élan": 2, ".": 9}


def saved(what: Any, folder: Path) -> dict[str, bytes]:
    what.save_pretrained(str(folder))
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def read_tokenizer(folder: Path) -> list[Any]:
    tokenizer = load_tokenizer(str(folder))
    special = (tokenizer.pad_token, tokenizer.unk_token, tokenizer.eos_token, tokenizer.mask_token)
    return [sorted(tokenizer.get_vocab().items()), list(special)]


def _vocabulary(whole: Any, about: Any) -> list[Any]:
    """The model's tokens, those added to it, and last what the settings name beyond both."""
    tokens = whole["model"]["vocab"]
    found = dict(tokens) if isinstance(tokens, dict) else {piece: i for i, (piece, _) in enumerate(tokens)}
    for token in whole.get("added_tokens", []):
        assert found.setdefault(token["content"], token["id"]) == token["id"]
    for key, name in about.items():
        if key.endswith("_token") and isinstance(name, str) and name:
            found.setdefault(name, len(found))
    assert len(set(found.values())) == len(found)
    return sorted(found.items())


def naive_tokenizer(config: bytes) -> Callable[[bytes], Any]:
    def read(content: bytes) -> Any:
        about = json.loads(config)
        return [
            _vocabulary(json.loads(content), about),
            [about.get(f"{role}_token") for role in ("pad", "unk", "eos", "mask")],
        ]

    return read


def naive_tokenizer_config(backend: bytes) -> Callable[[bytes], Any]:
    return lambda content: naive_tokenizer(content)(backend)


def read_model(folder: Path) -> list[Any]:
    module = PretrainedLM(str(folder))
    assert not module.model.config.auto_map if hasattr(module.model.config, "auto_map") else True
    weights = {
        key: (tuple(t.shape), t.detach().contiguous().numpy().tobytes())
        for key, t in module.model.state_dict().items()
    }
    return sorted((key, *value) for key, value in weights.items() if "decoder" not in key)


def naive_safetensors(content: bytes) -> list[Any]:
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    data = content[8 + size :]
    entries = {key: entry for key, entry in header.items() if key != "__metadata__"}
    assert all(entry["dtype"] == "F32" for entry in entries.values())
    return sorted(
        (key, tuple(entry["shape"]), data[slice(*entry["data_offsets"])])
        for key, entry in entries.items()
        if "decoder" not in key
    )


def naive_config(weights: bytes) -> Callable[[bytes], Any]:
    """Whatever the configuration says, the weights are those of the file."""

    def read(content: bytes) -> Any:
        json.loads(content)
        return naive_safetensors(weights)

    return read


def readers(folder: Path) -> dict[str, Reader]:
    """All of them, with files made in an empty folder."""
    saved_ones = {
        "words": saved(word_tokenizer(COUNTS), folder / "words"),
        "pieces": saved(subword_tokenizer("wordpiece", COUNTS, 60), folder / "pieces"),
        "unigram": saved(subword_tokenizer("unigram", COUNTS, 40), folder / "unigram"),
    }
    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    bert = BertConfig(vocab_size=10, max_position_embeddings=8, **sizes)
    model = saved(BertForMaskedLM(bert), folder / "model")
    whole, about = "tokenizer.json", "tokenizer_config.json"
    place = r"(/{file}:\d+: |tokenizer '[^']*/\d+' )"

    def of_json(files: dict[str, bytes], file: str, read: Any, naive: Any, place: str) -> Reader:
        return Reader(
            file, files[file], read, naive, JSON, place, others={k: v for k, v in files.items() if k != file}
        )

    return {
        **{
            f"tokenizer, {name}": of_json(files, whole, read_tokenizer, naive_tokenizer(files[about]), place)
            for name, files in saved_ones.items()
        },
        "tokenizer, settings": of_json(
            saved_ones["words"], about, read_tokenizer, naive_tokenizer_config(saved_ones["words"][whole]), place
        ),
        "checkpoint, weights": Reader(
            "model.safetensors", model["model.safetensors"], read_model, naive_safetensors, BYTES, r"/\d+ ",
            others={"config.json": model["config.json"]},
        ),
        "checkpoint, configuration": of_json(
            model, "config.json", read_model, naive_config(model["model.safetensors"]), r"/\d+ "
        ),
    }  # fmt: skip
