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

    A causal model gives log p(piece | what comes before); the first piece follows a token that starts a text
    (``start``), and is NaN where there is none. A masked model gives the pseudo-log-likelihood: each piece is masked
    alone, with all the rest of the text in view (Salazar et al. 2020), or together with the rest of its word, which
    otherwise gives it away (``rest_of_word``: Kauf & Ivanova 2023). The two kinds of numbers cannot be compared.

    Of texts longer than the model's context, a causal model sees for each piece at least half a context before it, a
    masked one a context around it.

    Args:
        module: the model; ``logits`` in the tokenizer's vocabulary, of the next token or of the masked one.
        tokenizer: a fast one.
        texts: each by itself, as it is written; words are what white space separates.
        objective: None measures whether the logits depend on later tokens.
        pseudo: what is masked.
        start: the token before the first piece of a causal model's text; None takes the tokenizer's ``bos_token``, else
            its ``eos_token``, an empty text none.
        context: most tokens of an input; None takes what configuration and tokenizer say.
        batch_tokens: most tokens of a batch.
        forward: dotted path to ``(module, batch) -> output`` for modules that are not called in Hugging Face's names.

    Returns:
        A row a piece, in the order of the texts: ``text``, ``word_index``, ``word``, ``piece_index``, ``piece``,
        ``log_probability`` (nats), ``surprisal`` (bits), ``rank`` (1 is the likeliest piece), ``entropy`` (nats) of
        the model's prediction.

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
        context = context or _context(module, tokenizer)
        if context is not None and context < 4:
            raise ValueError(f"context must be at least 4 tokens, got {context}")
        if objective == "causal":
            rows = _causal_rows(encoded, _start(tokenizer, start), context)
        else:
            rows = _masked_rows(encoded, _mask(tokenizer), context, pseudo)
        found = [np.full((len(text.ids), 3), np.nan) for text in encoded]
        for batch in _batches(rows, batch_tokens):
            for row, values in zip(batch, _ask(module, batch, encoded, device, forward), strict=True):
                found[row.text][row.asked] = values
    _warn_of_unknown(tokenizer, ids)
    return _table(tokenizer, encoded, found)


def word_surprisals(pieces: pd.DataFrame) -> pd.DataFrame:
    """The words of :func:`surprisals`' pieces.

    Args:
        pieces: what :func:`surprisals` returns.

    Returns:
        A row a word: ``text``, ``word_index``, ``word``, ``pieces`` (how many), ``log_probability`` and ``surprisal``,
        summed over its pieces (NaN where one is), ``rank`` and ``entropy`` of its first piece.

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
    return words.reset_index()


# Texts ------------------------------------------------------------------------------------------------------


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> _Encoded:
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
    """The most tokens that configuration and tokenizer allow, None where neither says."""
    configs = [config for m in module.modules() if (config := getattr(m, "config", None)) is not None]
    names = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "block_size")
    said = [getattr(config, name, None) for config in configs for name in names]
    limits = [n for n in (*said, tokenizer.model_max_length) if isinstance(n, int) and 4 <= n < 10**9]
    # RoBERTa's positions begin after the padding's
    offset = (
        2
        if any(getattr(c, "model_type", "") in ("roberta", "xlm-roberta", "camembert") for c in configs)
        else 0
    )
    return min(limits) - offset if limits else None


def _start(tokenizer: PreTrainedTokenizerBase, start: str | None) -> list[int]:
    if start is None:
        start = tokenizer.bos_token or tokenizer.eos_token or ""
        if start:
            log.info("each text begins after %s (`start`)", start)
        else:
            log.warning(
                "the tokenizer has no token that starts a text: the first piece of each has no probability"
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
        first = 0 if start else 1  # the piece that the first place predicts
        begin, done = 0, 0
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


def _table(
    tokenizer: PreTrainedTokenizerBase, encoded: Sequence[_Encoded], found: Sequence[npt.NDArray[np.float64]]
) -> pd.DataFrame:
    parts = []
    for number, (text, values) in enumerate(zip(encoded, found, strict=True)):
        part = pd.DataFrame(values, columns=["log_probability", "rank", "entropy"])
        part["text"], part["word_index"] = number, text.words
        part["word"] = [text.spelled[w] for w in text.words]
        part["piece_index"] = range(len(part))
        part["piece"] = tokenizer.convert_ids_to_tokens(text.ids)
        parts.append(part)
    table = pd.concat(parts, ignore_index=True)
    table["surprisal"] = -table["log_probability"] / math.log(2)
    table["rank"] = table["rank"].astype("Int64")
    broken = int((~np.isfinite(table["entropy"].to_numpy(float)) & table["rank"].notna()).sum())
    if broken:
        log.warning("the logits of %d of %d pieces are not finite", broken, len(table))
    return table[_PIECES]
