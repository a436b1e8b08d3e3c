"""Tokenizers: word vocabularies, loading by name, and identification."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lmdyn.datamodules.corpora.sentence import Sentence
from lmdyn.datamodules.corpora.vocabulary import train_unigram, train_wordpieces
from lmdyn.datamodules.files.made_at_setup import MadeAtSetup, T
from lmdyn.datamodules.files.text_files import shown

Ids = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

_PAD, _UNK, _EOS = "<pad>", "<unk>", "<eos>"

_SPECIAL = (_PAD, _UNK, "[CLS]", "[SEP]", "[MASK]")
_LOWER = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()])

Punctuation = Literal["attached", "apart"]

_MOST_GROWTH = 1000
"""A text of a megabyte would become a gigabyte; published tokenizers have 1, or 2 for byte-level ones."""

_FREQUENT = 100
"""At most this many pieces that begin a word are as frequent as one word in thirty: 30 first letters, since their
shares sum to one, 30 of two letters, and so on. GPT-2's " ." is about the 300th; in tokenized text it is in the first
ten.
"""


def digest(value: object) -> str:
    """Return a hash (blake2b, 32 hexadecimal digits) of plain values: equal for equal content, on every machine.

    Example:
        >>> digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
        True
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


# ------------------------------------------------------------------------------------------ tokenizers


def word_tokenizer(counts: Mapping[str, int], min_count: int = 1) -> PreTrainedTokenizerFast:
    """Return a word-level tokenizer of the words that occur at least ``min_count`` times.

    It splits on white space only, and assigns one id to each word: ``U.S.`` and ``'t`` are not split and ``<unk>`` is
    the unknown word. ``<pad>`` is 0, ``<unk>`` 1 and ``<eos>`` 2; the words follow by descending count, ties in
    alphabetical order.

    Args:
        counts: occurrences of each word; special tokens among the words keep their own ids.
        min_count: rarer words become ``<unk>``.

    Example:
        >>> tokenizer = word_tokenizer({"the": 3, "U.S.": 2, "rare": 1}, min_count=2)
        >>> tokenizer(["the", "U.S.", "rare", "<unk>"], is_split_into_words=True)["input_ids"]
        [3, 4, 1, 1]
    """
    kept = [w for w, n in counts.items() if n >= min_count and w not in (_PAD, _UNK, _EOS)]
    words = [_PAD, _UNK, _EOS, *sorted(kept, key=lambda w: (-counts[w], w))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=_UNK))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # split_special_tokens: special tokens are treated as ordinary words, so that one inside a word does not split it
    return _fast(backend, eos_token=_EOS, split_special_tokens=True)


def _fast(backend: Tokenizer, **settings: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=_PAD,
        unk_token=_UNK,
        clean_up_tokenization_spaces=False,
        padding_side="right",
        **settings,
    )


def subword_tokenizer(
    kind: Literal["unigram", "wordpiece"], counts: Mapping[str, int], vocab_size: int = 30_000
) -> PreTrainedTokenizerFast:
    """Train a tokenizer of word pieces as in ALBERT (``unigram``) or BERT (``wordpiece``).

    Both lowercase and strip accents. ``unigram`` marks the start of words by ``▁`` and splits on white space only;
    ``wordpiece`` splits off punctuation and marks continuations of a word by ``##``. Special tokens are ``<pad>`` (0),
    ``<unk>``, ``[CLS]``, ``[SEP]`` and ``[MASK]``; a word ``<unk>`` of the text is the unknown token. The pieces
    follow in the order of :func:`~lmdyn.datamodules.corpora.vocabulary.train_unigram` or
    :func:`~lmdyn.datamodules.corpora.vocabulary.train_wordpieces`; equal arguments give equal files.

    Args:
        kind: ``unigram`` or ``wordpiece``.
        counts: occurrences of each word.
        vocab_size: number of pieces, including special tokens; a small text may yield fewer.

    Raises:
        ValueError: if the kind is unknown, there is no word, or ``vocab_size`` is below the number of characters in the
            text (``unigram``).

    Example:
        >>> tokenizer = subword_tokenizer("wordpiece", {"the": 9, "cats": 9, "sat": 9}, vocab_size=40)
        >>> tokenizer.tokenize("The cats")
        ['the', 'cats']
    """
    special = list(_SPECIAL)
    unigram = kind == "unigram"
    split = pre_tokenizers.Metaspace() if unigram else pre_tokenizers.BertPreTokenizer()
    units: Counter[str] = Counter()
    for word, count in counts.items():
        if word not in special:  # special tokens do not contribute letters
            for unit, _ in split.pre_tokenize_str(_LOWER.normalize_str(word)):
                units[unit] += count
    if not units:
        raise ValueError(f"lmdyn cannot train a {kind} vocabulary on a text without words: use another text")
    model: models.Model
    if unigram:
        scored = [(token, 0.0) for token in special] + train_unigram(units, vocab_size - len(special))
        model = models.Unigram(scored, unk_id=special.index(_UNK))
    else:
        pieces = [*special, *train_wordpieces(units, vocab_size - len(special))]
        index = {piece: i for i, piece in enumerate(pieces)}
        model = models.WordPiece(index, unk_token=_UNK, max_input_chars_per_word=100)
    backend = Tokenizer(model)
    backend.normalizer, backend.pre_tokenizer = _LOWER, split
    backend.decoder = decoders.Metaspace() if unigram else decoders.WordPiece()
    backend.add_special_tokens(special)
    cls = backend.token_to_id("[CLS]")
    sep = backend.token_to_id("[SEP]")
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", cls), ("[SEP]", sep)],
    )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return _fast(backend, cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]", model_input_names=names)


def trained_here(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Return whether a tokenizer is one of :func:`word_tokenizer` or :func:`subword_tokenizer`, also when loaded.

    Its text is read as words. Text for all other tokenizers reaches them as it is written.

    Example:
        >>> trained_here(word_tokenizer({"the": 2}))
        True
    """
    backend = tokenizer.backend_tokenizer
    for model, split, lower, first in (
        (models.WordLevel, pre_tokenizers.WhitespaceSplit, None, (_PAD, _UNK, _EOS)),
        (models.Unigram, pre_tokenizers.Metaspace, _LOWER, _SPECIAL),
        (models.WordPiece, pre_tokenizers.BertPreTokenizer, _LOWER, _SPECIAL),
    ):
        if isinstance(backend.model, model) and isinstance(backend.pre_tokenizer, split):
            same = repr(backend.normalizer) == repr(lower)
            return same and tuple(backend.id_to_token(i) for i in range(len(first))) == first
    return False


_ROLES = {
    "pad_token": (_PAD, "[PAD]", "<|pad|>"),
    "unk_token": (_UNK, "[UNK]"),
    "eos_token": (_EOS, "</s>", "<|endoftext|>"),
    "cls_token": ("[CLS]",),
    "sep_token": ("[SEP]",),
    "mask_token": ("[MASK]", "<mask>"),
}
"""Spellings by which the special tokens of a ``tokenizer.json`` are found."""


def load_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Load a tokenizer from a folder or hub name (``AutoTokenizer``), or from a ``tokenizer.json`` file.

    Raises:
        ValueError: if it cannot be read as a fast tokenizer, or if several of its tokens share an id.
    """
    path = Path(os.path.expandvars(name)).expanduser()
    if path.is_file() and path.name == "tokenizer.json" and (path.parent / "tokenizer_config.json").exists():
        path = path.parent
    try:
        if path.is_file():
            vocabulary = Tokenizer.from_file(str(path)).get_vocab()
            found = {role: next((f for f in form if f in vocabulary), None) for role, form in _ROLES.items()}
            tokenizer: Any = PreTrainedTokenizerFast(
                tokenizer_file=str(path), **{role: form for role, form in found.items() if form}
            )
        else:
            folder = str(path) if path.exists() else name
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise ValueError(f"expected a fast tokenizer, got a {type(tokenizer).__name__}")
        _check_ids(tokenizer, path if path.is_file() else path / "tokenizer.json")
        check_growth(tokenizer)
    except Exception as error:  # the loaders raise OSError, ValueError, and plain Exception from Rust
        raise ValueError(
            f"tokenizer {name!r} cannot be loaded ({' '.join(str(error).split())[:500]}): give a folder written by "
            "save_pretrained, a hub name or a tokenizer.json"
        ) from error
    return tokenizer


def _check_ids(tokenizer: PreTrainedTokenizerFast, file: Path) -> None:
    """Refuse a tokenizer with two tokens of one id, or a token with two ids, as in damaged files.

    Args:
        tokenizer: the loaded tokenizer.
        file: its ``tokenizer.json``, if it has one.
    """
    whole = json.loads(file.read_bytes()) if file.is_file() else {}
    listed = whole.get("model", {}).get("vocab")
    ids = listed if isinstance(listed, dict) else {}
    added = {token["content"]: token["id"] for token in whole.get("added_tokens", ())}
    tokens: dict[int, str] = {}
    for token, i in (*tokenizer.get_vocab().items(), *added.items()):
        if tokens.setdefault(i, token) != token:
            raise ValueError(f"damaged: {shown(tokens[i])} and {shown(token)} both have the id {i}")
        if token in added and ids.get(token, i) != added[token]:
            raise ValueError(f"damaged: {shown(token)} has the ids {ids.get(token, i)} and {added[token]}")


def check_growth(tokenizer: Any) -> None:
    """Refuse a tokenizer that may multiply the length of a text by more than a thousand before it splits it.

    Replacements are counted, and the doubling of bytes by each ``ByteLevel``, but not precompiled maps of characters.

    Args:
        tokenizer: a tokenizer, or None; only fast ones have such steps.

    Raises:
        ValueError: if it may.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = [getattr(backend, name, None) for name in ("normalizer", "pre_tokenizer")]
    growth = prod(_growth(json.loads(part.__getstate__())) for part in parts if part is not None)
    if growth > _MOST_GROWTH:
        raise ValueError(
            f"the tokenizer makes a text up to {growth:,.0f} times longer, expected at most {_MOST_GROWTH:,} times: "
            "remove the replacements from `normalizer` in tokenizer.json"
        )


def _growth(step: Mapping[str, Any]) -> float:
    """Return by how much a step before the splitting may multiply the length of a text."""
    if step["type"] == "Sequence":
        return prod(map(_growth, step.get("normalizers") or step["pretokenizers"]))
    if step["type"] == "Replace":
        return max(1.0, len(step["content"]) / max(1, len(step["pattern"].get("String", ""))))
    return {"ByteLevel": 2.0, "Prepend": max(1.0, len(step.get("prepend", "")))}.get(step["type"], 1.0)


def plain_backend(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """Return a copy of the Rust tokenizer without the padding and truncation that calls may have set."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
    return backend


# ------------------------------------------------------------------------------------------ text as written

_CONTEXT = 4096  # characters before and after a block that are encoded with it

_Pieces = tuple[Ids, Ids]
"""Ids of pieces, and the first character of each."""


def encode_blocks(backend: Tokenizer, blocks: Iterable[str]) -> Iterator[_Pieces]:
    r"""Encode a text block by block, with the pieces of the whole text, without special tokens.

    Each block is encoded together with 4,096 characters of the text on either side. Two neighbours therefore share
    8,192 characters around their bound. If their pieces are the same within 2,048 characters of it, the bound has no
    effect, and each block has the pieces that begin in it. Otherwise both, and further blocks, are encoded as one, up
    to the whole text if need be. Memory therefore holds a few blocks.

    Args:
        backend: the Rust tokenizer, without padding and truncation.
        blocks: the text, in parts of at least 8,192 characters; none is empty, and the last may be shorter.

    Yields:
        For each block, the ids (pieces,) of the pieces that begin in it, and the character (pieces,) of the block at
        which each begins.

    Example:
        >>> backend = plain_backend(word_tokenizer({"the": 2, "cat": 1}))
        >>> [(ids.tolist(), starts.tolist()) for ids, starts in encode_blocks(backend, ["the cat\n", " the"])]
        [([3, 4], [0, 4]), ([3], [1])]
    """
    stream = iter(blocks)
    following = next(stream, "")
    before, held = "", [""]
    ids = starts = np.empty(0, np.int64)
    while following:
        block, following = following, next(stream, "")
        context = (before + "".join(held))[-_CONTEXT:]
        new_ids, new_starts = _encode_within(backend, context, block, following)
        size = sum(map(len, held))
        if not size:
            held = []
        elif _near(ids, starts - size) == _near(new_ids, new_starts) != [[], []]:
            yield from _divided(held, ids, starts)
            before, held = context, []
        else:  # twice as much each time, so that the cost stays linear
            held.append(block)
            while following and sum(map(len, held)) < 2 * size:
                held.append(following)
                following = next(stream, "")
            ids, starts = _encode_within(backend, before, "".join(held), following)
            continue
        held.append(block)
        ids, starts = new_ids, new_starts
    yield from _divided(held, ids, starts)


def words_of(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Ids:
    """Return the word of each piece: that in which it begins, or the next one if it begins in white space.

    Args:
        starts: (pieces,) first character of each piece.
        ends: (words,) end of each word; pieces after the last word belong to it.

    Example:
        >>> words_of([0, 3, 4, 8], [3, 7]).tolist()
        [0, 1, 1, 1]
    """
    ends = np.asarray(ends)
    return np.minimum(np.searchsorted(ends, starts, side="right"), len(ends) - 1)


def _encode_within(backend: Tokenizer, before: str, block: str, following: str) -> _Pieces:
    encoding = backend.encode(before + block + following[:_CONTEXT], add_special_tokens=False)
    starts = np.array([start for start, _ in encoding.offsets], np.int64) - len(before)
    return np.array(encoding.ids, np.int64), starts


def _near(ids: Ids, starts: Ids) -> list[list[int]]:
    """Return the pieces near character 0."""
    near = np.abs(starts) <= _CONTEXT // 2
    return [ids[near].tolist(), starts[near].tolist()]


def _divided(blocks: Sequence[str], ids: Ids, starts: Ids) -> Iterator[_Pieces]:
    """Yield the pieces that begin in each of consecutive blocks."""
    begin = 0
    for block in filter(None, blocks):
        here = (begin <= starts) & (starts < begin + len(block))
        yield ids[here], starts[here] - begin
        begin += len(block)


class WordEncoder:
    """Encodes sentences that are given as words into the pieces of the text that the words form.

    In byte-level tokenizers (GPT-2, Pythia, OLMo-2, RoBERTa) and SentencePiece without a dummy prefix (Gemma), the
    first piece of a word includes the space before it, but lists of words have no spaces: ``["the", "capital"]`` would
    be read as ``thecapital``. For these, each word of a sentence except the first is encoded with a space before it.
    All others (WordPiece, words, SentencePiece with a dummy prefix) encode the words unchanged.

    Args:
        tokenizer: any fast tokenizer.

    Attributes:
        backend: the Rust tokenizer, without padding and truncation.
        own: whether the tokenizer is one of lmdyn's.
        before: the id of [CLS], an empty list if the tokenizer has none.
        after: the id of [SEP], an empty list if the tokenizer has none.
        spaced: whether words get a space.

    Example:
        >>> encoder = WordEncoder(word_tokenizer({"the": 2, "capital": 1}))
        >>> [encoding.tokens for encoding in encoder.encode([["the", "capital"]])], encoder.spaced
        ([['the', 'capital']], False)
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.backend = plain_backend(tokenizer)
        self.own = trained_here(tokenizer)
        self.before, self.after = (
            [] if i is None else [int(i)] for i in (tokenizer.cls_token_id, tokenizer.sep_token_id)
        )
        try:
            text = self.backend.encode("a a", add_special_tokens=False).ids
            plain, spaced = (
                self.backend.encode(words, is_pretokenized=True, add_special_tokens=False).ids
                for words in (["a", "a"], ["a", " a"])
            )
        except Exception:  # Rust raises plain exceptions: "a" is unknown, and there is no unknown token
            text = plain = spaced = []
        # a tokenizer that does not split at spaces reads "a a" as neither; for one of letters, a space is unknown
        unknown = tokenizer.unk_token_id
        self.spaced = plain != text and spaced == text and text.count(unknown) <= plain.count(unknown)

    def encode(self, sentences: Sequence[Sequence[str]]) -> list[Encoding]:
        """Return the encoding of each sentence, without special tokens: ``word_ids`` are indices into its words.

        Its ``offsets`` may count the space before a word; :meth:`offsets` returns those within the words.
        """
        space = " " if self.spaced else ""
        words = [[*s[:1], *(space + word for word in s[1:])] for s in sentences]
        return list(self.backend.encode_batch(words, is_pretokenized=True, add_special_tokens=False))

    def pieces(self, sentences: Sequence[Sentence]) -> list[tuple[list[int], list[int | None]]]:
        """Return the ids of each sentence by itself, and the word of each piece.

        The text of a sentence is encoded as it is written, except by lmdyn's own tokenizers, and if it is unknown.
        """
        if self.own or any(s.text is None for s in sentences):
            return [(e.ids, e.word_ids) for e in self.encode([s.words for s in sentences])]
        texts = [s.text or "" for s in sentences]
        encodings = self.backend.encode_batch([text.strip() for text in texts], add_special_tokens=False)
        blank = [len(text) - len(text.lstrip()) for text in texts]
        return [
            (e.ids, words_of([a + n for a, _ in e.offsets], [b for _, b in s.word_places()]).tolist())
            for s, e, n in zip(sentences, encodings, blank, strict=True)
        ]

    def offsets(self, encoding: Encoding) -> list[tuple[int, int]]:
        """Return start and end of each piece in the characters of its word, without the space before it."""
        # tokenizers that exclude spaces from pieces (trim_offsets) begin at 1, others at 0
        return [
            (max(0, start - 1), max(0, end - 1)) if word and self.spaced else (start, end)
            for word, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True)
        ]


def punctuation_of(tokenizer: PreTrainedTokenizerFast) -> Punctuation:
    """Determine from its pieces how full stops were written in the text on which a tokenizer was trained.

    ``attached``: directly after a word, as in raw text (``is Paris.``); ``apart``: as separate words, as in WikiText
    and in treebanks (``is Paris .``). The result is the form with fewer pieces, or without unknown ones. If both have
    the same number, the piece of a stop after a space is frequent if stops stand apart: in Unigram models likelier than
    the one without a space, in others among the first hundred that begin a word. ``attached`` if both forms have the
    same pieces, as in BERT.

    Example:
        >>> punctuation_of(word_tokenizer({"is": 2, "Paris": 1, ".": 3}))
        'apart'
    """
    encoder = WordEncoder(tokenizer)
    backend = encoder.backend
    apart, attached = encoder.encode([["a", "a", "."], ["a", "a."]])
    if apart.tokens == attached.tokens:
        return "attached"
    if not any("." in token for token in attached.tokens):  # of words: the attached form is unknown
        return "apart"
    if len(apart.ids) != len(attached.ids):
        return "apart" if len(apart.ids) < len(attached.ids) else "attached"
    model = json.loads(backend.to_str())["model"]
    if model["type"] == "Unigram":
        scores = dict(map(tuple, model["vocab"]))
        return "apart" if scores[apart.tokens[-1]] > scores[attached.tokens[-1]] else "attached"
    begins = apart.tokens[-1][0]  # Ġ or ▁
    pieces = sorted((i, piece) for piece, i in backend.get_vocab().items() if piece.startswith(begins))
    rank = [piece for _, piece in pieces].index(apart.tokens[-1])
    return "apart" if rank < _FREQUENT else "attached"


def tokenizer_digest(tokenizer: PreTrainedTokenizerFast) -> str:
    """Return a hash of a tokenizer's behaviour; equal after ``save_pretrained`` and ``from_pretrained``."""
    encoder = WordEncoder(tokenizer)
    backend = encoder.backend
    facts = [json.loads(backend.to_str()), backend.encode_special_tokens, dict(tokenizer.special_tokens_map)]
    # prevents the use of cached text that earlier versions encoded without spaces
    return digest([*facts, "spaces before words"] if encoder.spaced else facts)


def end_id(tokenizer: PreTrainedTokenizerFast) -> int:
    """Return the id of the token that ends a sentence: end of sequence, or the separator."""
    for candidate in (tokenizer.eos_token_id, tokenizer.sep_token_id):
        if candidate is not None:
            return int(candidate)
    raise ValueError(
        "eos: true requires a tokenizer with an eos_token or a sep_token, got one with "
        f"{', '.join(sorted(tokenizer.special_tokens_map)) or 'no special token'}: set eos: false, or add an eos_token"
    )


class TokenizerUser:
    """A datamodule whose tokenizer is named, or assigned before ``setup``: an observer assigns that of its run."""

    _tokenizer_name: str | None = None
    _tokenizer: PreTrainedTokenizerFast | None = None

    def forget(self) -> None:
        """Drop what was encoded with another tokenizer."""

    @property
    def has_tokenizer(self) -> bool:
        """Whether a tokenizer is named or assigned."""
        return self._tokenizer is not None or self._tokenizer_name is not None

    @property
    def pad_id(self) -> int:
        """The id of padding: 0 if the tokenizer has none."""
        return int(self.tokenizer.pad_token_id or 0)

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer; assign another one before ``setup`` to encode with it.

        Raises:
            RuntimeError: if none is named or assigned.
        """
        if self._tokenizer is None:
            if self._tokenizer_name is None:
                raise RuntimeError(f"{type(self).__name__} has no tokenizer: give or assign `tokenizer`")
            self._tokenizer = load_tokenizer(self._tokenizer_name)
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: PreTrainedTokenizerFast) -> None:
        if self._tokenizer is None or tokenizer_digest(self._tokenizer) != tokenizer_digest(tokenizer):
            self.forget()
        self._tokenizer = tokenizer


class EncodedAtSetup(TokenizerUser, MadeAtSetup[T]):
    """A datamodule that encodes everything in ``setup``, once, into memory: a subclass defines :meth:`make`."""

    def forget(self) -> None:
        """Encode again with another tokenizer."""
        self._made = None
