"""Vocabularies of word pieces, trained on counted words: a function of counts and size, the same in any process.

The trainers of ``tokenizers`` for WordPiece and unigram models are not: they number pieces, break ties and add
floating-point numbers in the order of a hash map, which differs in every process. Its byte-pair encoding without a
prefix is deterministic, and so is SentencePiece on one thread.
"""

import io
from collections.abc import Iterator, Mapping

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

TRAINING_VERSION = 2
"""Raised whenever the same counts and size give different pieces: part of every cache key. 1: from ``tokenizers``."""

_CODES = 0xF0000  # private characters, which are neither split points nor special to any trainer
_CHUNK = 1000  # number of words given to a trainer at once


def train_wordpieces(counts: Mapping[str, int], size: int) -> list[str]:
    """Train byte-pair encoding with ``##`` before continuations of a word: the vocabulary of a WordPiece model.

    Letters that begin a word and letters that continue one are different symbols for ``tokenizers``' byte-pair
    encoding, which then requires no prefix, and is the same in every process: of equally frequent pairs it merges that
    of the earlier pieces.

    Args:
        counts: occurrences of each word.
        size: number of pieces; all letters are kept, even if they are more.

    Returns:
        The letters in alphabetical order, the letters that continue a word, and the merged pieces in the order of
        merging.

    Reference: Sennrich et al. 2016, algorithm 1.

    Example:
        >>> train_wordpieces({"aab": 2, "ab": 1}, 6)
        ['a', 'b', '##a', '##b', 'aa', 'aab']
    """
    later = sorted({letter for word in counts for letter in word[1:]})
    letters = [*sorted(set("".join(counts))), *("##" + letter for letter in later)]
    code = {letter: chr(_CODES + i) for i, letter in enumerate(letters)}
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=max(size, len(letters)), initial_alphabet=list(code.values()), show_progress=False
    )
    coded = {
        code[word[0]] + "".join(code["##" + letter] for letter in word[1:]): count
        for word, count in sorted(counts.items())
    }
    backend.train_from_iterator(_repeated(coded), trainer)
    numbered = sorted(backend.get_vocab().items(), key=lambda piece: piece[1])
    parts = ([letters[ord(symbol) - _CODES] for symbol in piece] for piece, _ in numbered)
    return [part[0] + "".join(letter.removeprefix("##") for letter in part[1:]) for part in parts]


def _repeated(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield each word as often as it occurs, in texts of bounded length."""
    for word, count in counts.items():
        for start in range(0, count, _CHUNK):
            yield " ".join([word] * min(_CHUNK, count - start))


def train_unigram(counts: Mapping[str, int], size: int) -> list[tuple[str, float]]:
    """Train the pieces of a unigram model and their log-probabilities, by SentencePiece.

    Args:
        counts: occurrences of each word, without white space.
        size: maximum number of pieces.

    Returns:
        (piece, natural logarithm of its probability), by descending probability. All letters are among them.

    Raises:
        ValueError: if there is no word, or there are more letters than ``size``.

    Reference: Kudo 2018, section 3.2.

    Example:
        >>> words = {"low": 5, "lower": 5, "lowest": 2, "newer": 5, "newest": 3}
        >>> "low" in dict(train_unigram(words, 12))
        True
    """
    letters = sorted(set("".join(counts)))
    if not 0 < len(letters) <= size:
        raise ValueError(
            f"the text has {len(letters)} different characters, expected 1 to {size}, one piece each: raise vocab_size"
        )
    # characters that SentencePiece reserves, drops, or reads as the end of a word
    odd = [letter for letter in letters if letter == "▅" or not letter.isprintable()]
    free = (chr(_CODES + i) for i in range(2 * len(letters)) if chr(_CODES + i) not in letters)
    code = dict(zip(odd, free, strict=False))
    letter_of = {symbol: letter for letter, symbol in code.items()}
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(
            f"{''.join(code.get(letter, letter) for letter in word)}\t{count}"
            for word, count in sorted(counts.items())
        ),
        input_format="tsv",
        model_writer=written,
        model_type="unigram",
        vocab_size=size + 1,  # includes the unknown piece
        hard_vocab_limit=False,
        character_coverage=1.0,
        normalization_rule_name="identity",  # words are already normalized, with their start marked
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_by_unicode_script=False,
        split_by_number=False,
        max_sentence_length=2**30,
        unk_id=0,
        unk_piece=chr(0x10FFFD),  # "<unk>" would be removed from the text
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        num_threads=1,  # sums are added in the order of threads
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    pieces = ((model.id_to_piece(i), model.get_score(i)) for i in range(1, model.vocab_size()))
    return [("".join(letter_of.get(symbol, symbol) for symbol in piece), score) for piece, score in pieces]
