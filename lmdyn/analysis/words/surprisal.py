"""How surprising a text is to a language model: log-probability, rank and entropy, by piece and by word."""

import bisect
import logging
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from lmdyn.analysis.inspection.activations import observing
from lmdyn.analysis.inspection.forward import Forward, device_of
from lmdyn.analysis.inspection.label_convention import model_reading
from lmdyn.analysis.inspection.predictions import logits_at
from lmdyn.analysis.inspection.transformer import is_encoder_decoder

__all__ = ["PseudoLikelihood", "surprisals", "word_surprisals"]

log = logging.getLogger(__name__)

PseudoLikelihood = Literal["piece", "rest_of_word"]
"""What is hidden from a masked model where a piece is asked for: the piece, or with it the rest of its word."""

_PIECES = [
    "text",
    "word_index",
    "word",
    "piece_index",
    "piece",
    "log_probability",
    "surprisal",
    "rank",
    "entropy",
]


@dataclass(frozen=True)
class _Encoded:
    """A text in pieces."""

    ids: list[int]
    words: list[int]  # of each piece
    spelled: list[str]  # the text's words
    before: list[int]  # special tokens
    after: list[int]


@dataclass(frozen=True)
class _Row:
    """Input of the model, and what it is asked for."""

    text: int
    input_ids: list[int]
    at: list[int]  # places of the input whose logits are read
    asked: list[int]  # pieces of the text


def surprisals(
    module: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    objective: Literal["causal", "masked"] | None = None,
    pseudo: PseudoLikelihood = "piece",
    start: str | None = None,
    context: int | None = None,
    batch_tokens: int = 1024,
    forward: Forward | None = None,
) -> pd.DataFrame:
    """How surprising each piece of some texts is to a language model.

    A causal model gives log p(piece | what comes before); the first piece follows what starts a text (``start``), and
    is NaN where there is nothing. A masked model gives the pseudo-log-likelihood: each piece is masked alone, with all
    the rest of the text in view (Salazar et al. 2020), or together with the rest of its word, which otherwise gives it
    away (``rest_of_word``: Kauf & Ivanova 2023). The two kinds of numbers cannot be compared.

    Of texts longer than the model's context, a causal model sees for each piece at least half a context before it, a
    masked one a context around it.

    Args:
        module: the model; ``logits`` in the tokenizer's vocabulary, of the next token or of the masked one.
        tokenizer: a fast one.
        texts: each by itself, as it is written; words are what white space separates. White space at the end is left
            out. Pieces of white space at the beginning, or of a second space, are of the word after it.
        objective: None measures whether the logits depend on later tokens.
        pseudo: what is masked.
        start: the token before the first piece of a causal model's text; None takes what the tokenizer itself puts
            before a text, else its ``bos_token``, else its ``eos_token``, else its ``cls_token``; an empty text none.
        context: most tokens of an input; None takes what configuration and tokenizer say, and the table of positions
            where some are not used (RoBERTa's begin after the padding's).
        batch_tokens: most tokens of a batch.
        forward: dotted path to ``(module, batch) -> output`` for modules that are not called in Hugging Face's names.

    Returns:
        A row a piece, in the order of the texts: ``text``, ``word_index``, ``word``, ``piece_index``, ``piece``,
        ``log_probability`` (nats), ``surprisal`` (bits), ``rank`` (1 is the likeliest piece), ``entropy`` (nats) of
        the model's prediction. Its ``attrs`` hold ``objective``, ``start`` and ``context`` as they were found: a string
        (None of masked models) and a number (None without limit).

        A word of which the tokenizer leaves no character, or whose characters are all in a piece that begins in another
        word, has no row; a warning counts them.

    Raises:
        ValueError: no text with a piece in it, a tokenizer of another vocabulary, an encoder-decoder, a masked model
            whose tokenizer has no mask, a ``start`` that is no token.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import PreTrainedTokenizerFast
        >>> words = Tokenizer(models.WordLevel({"<s>": 0, "cats": 1, "sat": 2}, unk_token="<s>"))
        >>> words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>")
        >>> model = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 3))
        >>> surprisals(model, tokenizer, ["cats sat"])["word"].tolist()
        ['cats', 'sat']
    """
    if pseudo not in ("piece", "rest_of_word"):
        raise ValueError(f"pseudo is {pseudo!r}: expected 'piece' or 'rest_of_word'")
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens must be at least 1, got {batch_tokens}")
    if is_encoder_decoder(module):
        raise ValueError("surprisals are of causal and masked models, and this is an encoder-decoder")
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"{type(tokenizer).__name__} tells no places of pieces: a fast tokenizer is needed")
    encoded = [_encode(tokenizer, text) for text in texts]
    ids = [i for text in encoded for i in text.ids]
    if not ids:
        raise ValueError(f"none of {len(texts)} texts has a word in it")
    device = device_of(module)
    with observing(module), torch.no_grad():
        objective = objective or _objective(module, tokenizer, ids, forward)
        unread = {"causal": ("pseudo", pseudo != "piece"), "masked": ("start", start is not None)}[objective]
        if unread[1]:
            log.warning("the model is %s: `%s` has no effect", objective, unread[0])
        before: list[int] = []
        context = context or _context(module, tokenizer)
        if context is not None and context < 4:
            raise ValueError(f"context must be at least 4 tokens, got {context}")
        if objective == "causal":
            before = _start(tokenizer, start, next(text.before for text in encoded if text.ids))
            rows = _causal_rows(encoded, before, context)
        else:
            rows = _masked_rows(encoded, _mask(tokenizer), context, pseudo)
        found = [np.full((len(text.ids), 3), np.nan) for text in encoded]
        for batch in _batches(rows, batch_tokens):
            for row, values in zip(batch, _ask(module, batch, encoded, device, forward), strict=True):
                found[row.text][row.asked] = values
    _warn_of_unknown(tokenizer, ids)
    _warn_of_words_without_pieces(encoded)
    table = _table(tokenizer, encoded, found)
    read_from = "".join(tokenizer.convert_ids_to_tokens(before)) if objective == "causal" else None
    table.attrs = {"objective": objective, "start": read_from, "context": context}
    return table


def word_surprisals(pieces: pd.DataFrame, texts: Sequence[str] | None = None) -> pd.DataFrame:
    """The words of :func:`surprisals`' pieces.

    Args:
        pieces: what :func:`surprisals` returns.
        texts: what :func:`surprisals` was given, for rows of the words that have no piece of their own; None leaves
            these words out.

    Returns:
        A row a word: ``text``, ``word_index``, ``word``, ``pieces`` (how many), ``log_probability`` and ``surprisal``,
        summed over its pieces (NaN where one is), ``rank`` and ``entropy`` of its first piece. Of words without a piece
        ``pieces`` is 0 and the numbers are NaN.

    Raises:
        ValueError: texts that are not those of the pieces.

    Example:
        >>> columns = dict(text=0, word_index=[0, 0], word="cats", piece_index=[0, 1], piece=["cat", "s"])
        >>> values = dict(log_probability=[-2.0, -1.0], surprisal=[2.885, 1.443], rank=[3, 1], entropy=[1.0, 0.5])
        >>> word_surprisals(pd.DataFrame(columns | values))["log_probability"].tolist()
        [-3.0]
    """
    grouped = pieces.groupby(["text", "word_index"], sort=False)
    sums = grouped[["log_probability", "surprisal"]].sum(skipna=False)
    words = pd.concat(
        [
            grouped["word"].first(), grouped.size().rename("pieces"), sums,
            grouped[["rank", "entropy"]].nth(0).set_axis(sums.index),
        ],
        axis=1,
    )  # fmt: skip
    if texts is not None:
        spelled = {
            (number, i): word for number, text in enumerate(texts) for i, word in enumerate(text.split())
        }
        if [spelled.get(place) for place in words.index.tolist()] != words["word"].tolist():
            raise ValueError(
                "the texts do not have the words of the pieces: expected those that surprisals was given, got others"
            )
        words = words.reindex(pd.MultiIndex.from_tuples(spelled, names=words.index.names))
        words["word"] = list(spelled.values())
        words["pieces"] = words["pieces"].fillna(0).astype(np.int64)
    return words.reset_index()


# Texts ------------------------------------------------------------------------------------------------------


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> _Encoded:
    text = text.rstrip()  # what follows the last word is no part of it
    encoding = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
    special, ids = encoding["special_tokens_mask"], encoding["input_ids"]
    # specials that the tokenizer adds stand at the ends; one that the text itself names is a piece of the text
    first = next((i for i, s in enumerate(special) if not s), len(ids))
    last = len(ids) - next((i for i, s in enumerate(reversed(special)) if not s), 0)
    inner = list(zip(ids, encoding["offset_mapping"], strict=True))[first : max(first, last)]
    spans = [(m.start(), m.end()) for m in re.finditer(r"\S+", text)]
    ends = [end for _, end in spans]
    # a piece of white space alone belongs to the word after it
    words = [min(bisect.bisect_right(ends, begin), len(spans) - 1) for _, (begin, _) in inner]
    kept = [(i, w) for (i, _), w in zip(inner, words, strict=True) if w >= 0]
    return _Encoded(
        [i for i, _ in kept], [w for _, w in kept], [text[a:b] for a, b in spans], ids[:first], ids[max(first, last) :]
    )  # fmt: skip


def _objective(
    module: nn.Module, tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], forward: Forward | None
) -> Literal["causal", "masked"]:
    probe = [ids[i % len(ids)] for i in range(12)]
    batch = {"input_ids": torch.tensor([probe], device=device_of(module))}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    reading = model_reading(module, batch, forward)
    if reading == "bidirectional":
        return "masked"
    if reading == "unknown" and tokenizer.mask_token_id is not None:
        raise ValueError("whether the model is causal or masked cannot be measured: give `objective`")
    return "causal"


def _context(module: nn.Module, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The most tokens that configuration, table of positions and tokenizer allow, None where none says."""
    configs = [config for m in module.modules() if (config := getattr(m, "config", None)) is not None]
    names = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "block_size")
    said = [getattr(config, name, None) for config in configs for name in names]
    # RoBERTa's positions begin after the padding's: the first rows of its table are of no token
    tables = [
        m.num_embeddings - m.padding_idx - 1
        for name, m in module.named_modules()
        if "position" in name.rpartition(".")[2] and isinstance(m, nn.Embedding) and m.padding_idx is not None
    ]
    found = (*said, *tables, tokenizer.model_max_length)
    return min((n for n in found if isinstance(n, int) and 4 <= n < 10**9), default=None)


def _start(tokenizer: PreTrainedTokenizerBase, start: str | None, before: list[int]) -> list[int]:
    """What a causal model reads before a text; ``before`` is what the tokenizer puts there."""
    if start is None:
        if before:
            tokens = "".join(tokenizer.convert_ids_to_tokens(before))
            log.info("each text begins after %s, as the tokenizer writes it (`start`)", tokens)
            return before
        start = tokenizer.bos_token or tokenizer.eos_token or tokenizer.cls_token or ""
        if start:
            log.info("each text begins after %s (`start`)", start)
        else:
            log.warning(
                "the tokenizer puts no token before a text, and has no bos_token, eos_token or cls_token: the first "
                "piece of each text has no probability (give `start`)"
            )
    if not start:
        return []
    token = tokenizer.convert_tokens_to_ids(start)
    if not isinstance(token, int) or (token == tokenizer.unk_token_id and start != tokenizer.unk_token):
        raise ValueError(
            f"start is {start!r}, which is no token of the tokenizer: expected one, or '' for none"
        )
    return [token]


def _mask(tokenizer: PreTrainedTokenizerBase) -> int:
    if tokenizer.mask_token_id is None:
        raise ValueError(
            "the model reads what comes after a token too, and its tokenizer has no mask_token to hide one behind"
        )
    return int(tokenizer.mask_token_id)


def _causal_rows(encoded: Sequence[_Encoded], start: list[int], context: int | None) -> Iterator[_Row]:
    for number, text in enumerate(encoded):
        sequence = [*start, *text.ids[:-1]] if text.ids else []
        length = len(sequence)
        first = 1 - len(
            start
        )  # the piece that the first place predicts; of several tokens the last one predicts
        begin, done = 0, max(0, -first)
        while done < length:
            end = length if context is None else min(length, begin + context)
            at = list(range(done - begin, end - begin))
            yield _Row(number, sequence[begin:end], at, [begin + i + first for i in at])
            done = end
            begin = end - (0 if context is None else context // 2)


def _masked_rows(
    encoded: Sequence[_Encoded], mask: int, context: int | None, pseudo: PseudoLikelihood
) -> Iterator[_Row]:
    for number, text in enumerate(encoded):
        room = len(text.ids) if context is None else context - len(text.before) - len(text.after)
        for i, word in enumerate(text.words):
            begin = max(0, min(i - room // 2, len(text.ids) - room))
            end = min(len(text.ids), begin + room)
            hidden = list(text.ids[begin:end])
            last = i
            while pseudo == "rest_of_word" and last + 1 < end and text.words[last + 1] == word:
                last += 1
            hidden[i - begin : last + 1 - begin] = [mask] * (last + 1 - i)
            at = i - begin + len(text.before)
            yield _Row(number, [*text.before, *hidden, *text.after], [at], [i])


# The model --------------------------------------------------------------------------------------------------


def _batches(rows: Iterator[_Row], batch_tokens: int) -> Iterator[list[_Row]]:
    """Rows of one length together: padding would be seen by models that take no attention mask."""
    waiting: dict[int, list[_Row]] = defaultdict(list)
    for row in rows:
        length = len(row.input_ids)
        waiting[length].append(row)
        if (len(waiting[length]) + 1) * length > batch_tokens:
            yield waiting.pop(length)
    yield from waiting.values()


def _ask(
    module: nn.Module,
    rows: Sequence[_Row],
    encoded: Sequence[_Encoded],
    device: torch.device,
    forward: Forward | None,
) -> list[npt.NDArray[np.float64]]:
    """Of each row (pieces asked, 3): log-probability, rank, entropy."""
    ids = torch.tensor([row.input_ids for row in rows], device=device)
    positions = torch.zeros_like(ids, dtype=torch.bool)
    for b, row in enumerate(rows):
        positions[b, row.at] = True
    batch: Mapping[str, Tensor] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    logits = logits_at(module, batch, positions, forward).float()
    targets = torch.tensor([encoded[row.text].ids[i] for row in rows for i in row.asked], device=device)
    if int(targets.max()) >= logits.shape[-1]:
        raise ValueError(
            f"the tokenizer has a piece {int(targets.max())}, the model predicts {logits.shape[-1]}: take its own one"
        )
    of_target = logits.gather(1, targets[:, None])
    log_p = logits.log_softmax(-1)
    entropy = torch.special.entr(log_p.exp()).sum(-1)
    rank = 1 + (logits > of_target).sum(-1)
    values = torch.stack(
        [log_p.gather(1, targets[:, None])[:, 0].double(), rank.double(), entropy.double()], dim=1
    )
    return [part.numpy() for part in values.cpu().split([len(row.asked) for row in rows])]


# The table --------------------------------------------------------------------------------------------------


def _warn_of_unknown(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> None:
    unknown = ids.count(tokenizer.unk_token_id) if tokenizer.unk_token_id is not None else 0
    if unknown:
        log.warning(
            "%d of %d pieces are unknown to the tokenizer (%s): theirs is the probability of that token",
            unknown, len(ids), tokenizer.unk_token,
        )  # fmt: skip


def _warn_of_words_without_pieces(encoded: Sequence[_Encoded]) -> None:
    total = sum(len(text.spelled) for text in encoded)
    without = total - sum(len(set(text.words)) for text in encoded)
    if without:
        log.warning(
            "%d of %d words have no piece of their own (the tokenizer deletes their characters, or has them in a piece "
            "of the word before) and so no number",
            without, total,
        )  # fmt: skip


def _table(
    tokenizer: PreTrainedTokenizerBase, encoded: Sequence[_Encoded], found: Sequence[npt.NDArray[np.float64]]
) -> pd.DataFrame:
    parts = []
    for number, (text, values) in enumerate(zip(encoded, found, strict=True)):
        part = pd.DataFrame(values, columns=["log_probability", "rank", "entropy"])
        part["text"], part["word_index"] = number, np.array(text.words, np.int64)
        part["word"] = [text.spelled[w] for w in text.words]
        part["piece_index"] = range(len(part))
        part["piece"] = tokenizer.convert_ids_to_tokens(text.ids)
        if text.ids:  # columns of no rows have no types
            parts.append(part)
    table = pd.concat(parts, ignore_index=True)
    table["surprisal"] = -table["log_probability"] / math.log(2)
    table["rank"] = table["rank"].astype("Int64")
    broken = int((~np.isfinite(table["entropy"].to_numpy(float)) & table["rank"].notna()).sum())
    if broken:
        log.warning("the logits of %d of %d pieces are not finite", broken, len(table))
    return table[_PIECES]
