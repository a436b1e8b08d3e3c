"""Tokenizers of the kinds that others train, on indented code."""

import inspect
import textwrap
from functools import cache

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

CODE = inspect.getsource(textwrap)  # indented, with doubled spaces in prose
PROSE = "\n    The  cat\tsat .\r\n\r\n = A Title = \n\n  x = 1\n\n\n = = Part = =\nthe  dog ? The cat\u00a0! \n\n\n"
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The kind of pattern by which the tokenizers of Llama 3 and OLMo 2 split."""


class NumberedWords:
    """Word i is ``w<i>``."""

    def __init__(self, size, special):
        self.size, self.all_special_ids = size, special

    def __len__(self):
        return self.size

    def convert_ids_to_tokens(self, ids):
        return [f"w{i}" for i in ids]


def byte_level(texts, vocab_size=300, **special):
    """A byte-level tokenizer of a few texts; special tokens by their names, in the order of their ids."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special.values()),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(texts * 5, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


@cache
def trained(kind):
    """A tokenizer of a kind that others use, trained on indented code."""
    if kind == "wordpiece":  # BERT's: white space has no effect
        backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(
            vocab_size=400, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False
        )
        backend.train_from_iterator([CODE], trainer)
        cls, sep = (backend.token_to_id(token) for token in ("[CLS]", "[SEP]"))
        backend.post_processor = processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls))
        return PreTrainedTokenizerFast(
            tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
            mask_token="[MASK]",
        )  # fmt: skip
    special = ["<|endoftext|>", "<pad>", "<cls>", "<sep>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend = Tokenizer(models.BPE(byte_fallback=True))
    if kind == "llama 2":  # no words at all: the text is one sequence of pieces, after a dummy prefix
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        backend.decoder = decoders.Metaspace()
        special += [f"<0x{i:02X}>" for i in range(256)]
        alphabet = []
    elif kind == "llama 3":
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(SPLIT), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        backend.decoder = decoders.ByteLevel()
    else:  # gpt-2; pythia's leaves spaces out of the places of pieces
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        if kind == "pythia":
            backend.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CODE.splitlines(keepends=True), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|endoftext|>", pad_token="<pad>", cls_token="<cls>",
        sep_token="<sep>",
    )  # fmt: skip


KINDS = ["gpt-2", "pythia", "llama 3", "llama 2", "wordpiece"]
