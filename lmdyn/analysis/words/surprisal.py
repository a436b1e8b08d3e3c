"""How surprising a text is to a language model: log-probability, rank and entropy, by piece and by word."""

import bisect
import logging
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import observing
from lmdyn.analysis.inspection.forward import Forward, device_of
from lmdyn.analysis.inspection.label_convention import model_reading
from lmdyn.analysis.inspection.predictions import logits_at
from lmdyn.analysis.inspection.transformer import is_encoder_decoder

if TYPE_CHECKING:  # these take as long to import as torch
    import pandas
    import transformers

__all__ = ["PseudoLikelihood", "surprisals", "word_surprisals"]

log = logging.getLogger(__name__)

PseudoLikelihood = Literal["piece", "rest_of_word"]
"""What is masked when a masked model predicts a piece: the piece, or also the rest of its word."""


@dataclass(frozen=True)
class _Encoded:
    """A text in pieces."""

    ids: list[int]
    words: list[int]  # index of each piece's word
    spelled: list[str]  # the text's words
    before: list[int]  # special tokens
    after: list[int]


@dataclass(frozen=True)
class _Row:
    """Input of the model, and the pieces that it predicts."""

    text: int
    input_ids: list[int]
    at: list[int]  # positions of the input whose logits are read
    asked: list[int]  # the predicted pieces of the text


def surprisals(
    module: nn.Module,
    tokenizer: "transformers.PreTrainedTokenizerBase",
    texts: Sequence[str],
    *,
    objective: Literal["causal", "masked"] | None = None,
    pseudo: PseudoLikelihood = "piece",
    start: str | None = None,
    context: int | None = None,
    batch_tokens: int = 1024,
    forward: Forward | None = None,
) -> "pandas.DataFrame":
    """Compute how surprising each piece of one or more texts is to a language model.

    A causal model gives log p(piece | preceding pieces). The first piece follows the token that starts a text
    (``start``), and is NaN if there is none. A masked model gives the pseudo-log-likelihood: each piece is masked
    alone, with all the rest of the text visible (Salazar et al. 2020), or together with the rest of its word, which
    otherwise reveals it (``rest_of_word``: Kauf & Ivanova 2023). The two kinds of numbers cannot be compared.

    If a text is longer than the model's context, a causal model sees at least half a context before each piece, and a
    masked model sees a context around it.

    Args:
        module: the model; its ``logits`` are over the tokenizer's vocabulary, of the next token or of the masked one.
        tokenizer: a fast tokenizer.
        texts: each text is separate and passed as it is written; words are separated by white space. White space at
            the end is dropped. Pieces of white space at the beginning, or of a second space, belong to the word after
            them.
        objective: ``causal`` or ``masked``; None measures whether the logits depend on later tokens.
        pseudo: what is masked.
        start: the token before the first piece of a causal model's text. None uses the token that the tokenizer itself
            puts before a text, else its ``bos_token``, ``eos_token`` or ``cls_token``, in this order; an empty string
            uses none.
        context: maximum number of tokens of an input. None uses the limits of configuration and tokenizer, and of the
            position table if some of its rows are unused (RoBERTa's positions begin after the padding's).
        batch_tokens: maximum number of tokens of a batch.
        forward: dotted path to ``(module, batch) -> output`` for modules whose forward does not take Hugging Face's
            arguments.

    Returns:
        One row for each piece, in the order of the texts: ``text``, ``word_index``, ``word``, ``piece_index``,
        ``piece``, ``log_probability`` (nats), ``surprisal`` (bits), ``rank`` (1 is the most likely piece), ``entropy``
        (nats) of the model's prediction; NaN if its logits are not finite, with a warning that counts these pieces. Its
        ``attrs`` hold the ``objective``, ``start`` and ``context`` that were used: ``start`` is a string (None for
        masked models), ``context`` a number (None without limit).

        A word has no row if the tokenizer drops all its characters, or if they are all in a piece that begins in
        another word; a warning counts these words.

    Raises:
        ValueError: if no text contains a piece, if the tokenizer's vocabulary does not fit the model, if the model is
            an encoder-decoder, if a masked model's tokenizer has no mask token, or if ``start`` is not a token.

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
    if is_encoder_decoder(module):
        raise ValueError("expected a causal or masked model, got an encoder-decoder")
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"expected a fast tokenizer, which has the positions of pieces, got {type(tokenizer).__name__}"
        )
    encoded = [_encode(tokenizer, text) for text in texts]
    ids = [i for text in encoded for i in text.ids]
    if not ids:
        raise ValueError(f"none of {len(texts)} texts contains a word")
    device = device_of(module)
    with observing(module), torch.no_grad():
        objective = objective or _objective(module, tokenizer, ids, forward)
        unread = {"causal": ("pseudo", pseudo != "piece"), "masked": ("start", start is not None)}[objective]
        if unread[1]:
            log.warning("the model is %s: `%s` has no effect", objective, unread[0])
        before: list[int] = []
        context = _context(module, tokenizer) if context is None else context
        if context is not None and context < 4:
            raise ValueError(f"context must be at least 4 tokens, got {context}")
        if objective == "causal":
            before = _start(tokenizer, start, next(text.before for text in encoded if text.ids))
            rows = _causal_rows(encoded, before, context)
        else:
            rows = _masked_rows(encoded, _mask(tokenizer), context, pseudo)
        found, broken = [np.full((len(text.ids), 3), np.nan) for text in encoded], 0
        for batch in _batches(rows, batch_tokens):
            for row, values in zip(batch, _ask(module, batch, encoded, device, forward), strict=True):
                found[row.text][row.asked] = values
                broken += int(np.isnan(values).all(1).sum())
    _warn(tokenizer, encoded, ids, broken)
    table = _table(tokenizer, encoded, found)
    read_from = "".join(tokenizer.convert_ids_to_tokens(before)) if objective == "causal" else None
    table.attrs = {"objective": objective, "start": read_from, "context": context}
    return table


def word_surprisals(pieces: "pandas.DataFrame", texts: Sequence[str] | None = None) -> "pandas.DataFrame":
    """Sum the pieces of :func:`surprisals` to words.

    Args:
        pieces: the table that :func:`surprisals` returns.
        texts: the texts that were passed to :func:`surprisals`, to add rows for words without a piece; None leaves
            these words out.

    Returns:
        One row for each word: ``text``, ``word_index``, ``word``, ``pieces`` (their number), ``log_probability`` and
        ``surprisal``, summed over its pieces (NaN if one is NaN), ``rank`` and ``entropy`` of its first piece. For
        words without a piece, ``pieces`` is 0 and the numbers are NaN.

    Raises:
        ValueError: if the texts are not those of the pieces.

    Example:
        >>> import pandas as pd
        >>> columns = dict(text=0, word_index=[0, 0], word="cats", piece_index=[0, 1], piece=["cat", "s"])
        >>> values = dict(log_probability=[-2.0, -1.0], surprisal=[2.885, 1.443], rank=[3, 1], entropy=[1.0, 0.5])
        >>> word_surprisals(pd.DataFrame(columns | values))["log_probability"].tolist()
        [-3.0]
    """
    import pandas as pd

    grouped = pieces.groupby(["text", "word_index"], sort=False)
    sums = grouped[["log_probability", "surprisal"]].sum(skipna=False)
    words = pd.concat(
        [
            grouped["word"].first(),
            grouped.size().rename("pieces"),
            sums,
            grouped[["rank", "entropy"]].nth(0).set_axis(sums.index),
        ],
        axis=1,
    )
    if texts is not None:
        spelled = {
            (number, i): word for number, text in enumerate(texts) for i, word in enumerate(text.split())
        }
        if [spelled.get(place) for place in words.index.tolist()] != words["word"].tolist():
            raise ValueError(
                "the words of the texts are not those of the pieces: expected the texts passed to surprisals, "
                "got others"
            )
        words = words.reindex(pd.MultiIndex.from_tuples(spelled, names=words.index.names))
        words["word"] = list(spelled.values())
        words["pieces"] = words["pieces"].fillna(0).astype(np.int64)
    return words.reset_index()


# Texts ------------------------------------------------------------------------------------------------------


def _encode(tokenizer: "transformers.PreTrainedTokenizerBase", text: str) -> _Encoded:
    text = text.rstrip()  # white space after the last word belongs to no word
    encoding = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
    special, ids = encoding["special_tokens_mask"], encoding["input_ids"]
    # special tokens that the tokenizer adds are at the ends; one that the text itself contains is a piece of the text
    first = next((i for i, s in enumerate(special) if not s), len(ids))
    last = len(ids) - next((i for i, s in enumerate(reversed(special)) if not s), 0)
    inner = list(zip(ids, encoding["offset_mapping"], strict=True))[first : max(first, last)]
    spans = [(m.start(), m.end()) for m in re.finditer(r"\S+", text)]
    ends = [end for _, end in spans]
    # a piece of white space alone belongs to the word after it
    words = [min(bisect.bisect_right(ends, begin), len(spans) - 1) for _, (begin, _) in inner]
    kept = [(i, w) for (i, _), w in zip(inner, words, strict=True) if w >= 0]
    return _Encoded(
        [i for i, _ in kept],
        [w for _, w in kept],
        [text[a:b] for a, b in spans],
        ids[:first],
        ids[max(first, last) :],
    )


def _objective(
    module: nn.Module,
    tokenizer: "transformers.PreTrainedTokenizerBase",
    ids: Sequence[int],
    forward: Forward | None,
) -> Literal["causal", "masked"]:
    probe = [ids[i % len(ids)] for i in range(12)]
    batch = {"input_ids": torch.tensor([probe], device=device_of(module))}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    reading = model_reading(module, batch, forward)
    if reading == "bidirectional":
        return "masked"
    if reading == "unknown" and tokenizer.mask_token_id is not None:
        raise ValueError("whether the model is causal or masked cannot be measured: set `objective`")
    return "causal"


def _context(module: nn.Module, tokenizer: "transformers.PreTrainedTokenizerBase") -> int | None:
    """Return the maximum number of tokens by configuration, position table and tokenizer; None for no limit."""
    configs = [config for m in module.modules() if (config := getattr(m, "config", None)) is not None]
    names = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "block_size")
    said = [getattr(config, name, None) for config in configs for name in names]
    # RoBERTa's positions begin after the padding's: the first rows of its table are used by no token
    tables = [
        m.num_embeddings - m.padding_idx - 1
        for name, m in module.named_modules()
        if "position" in name.rpartition(".")[2] and isinstance(m, nn.Embedding) and m.padding_idx is not None
    ]
    found = (*said, *tables, tokenizer.model_max_length)
    return min((n for n in found if isinstance(n, int) and 4 <= n < 10**9), default=None)


def _start(
    tokenizer: "transformers.PreTrainedTokenizerBase", start: str | None, before: list[int]
) -> list[int]:
    """Return the tokens that a causal model reads before a text; ``before`` are those that the tokenizer adds."""
    if start is None:
        if before:
            tokens = "".join(tokenizer.convert_ids_to_tokens(before))
            log.info("each text begins after %s, as added by the tokenizer (`start`)", tokens)
            return before
        start = tokenizer.bos_token or tokenizer.eos_token or tokenizer.cls_token or ""
        if start:
            log.info("each text begins after %s (`start`)", start)
        else:
            log.warning(
                "the tokenizer puts no token before a text, and has no bos_token, eos_token or cls_token: the first "
                "piece of each text has no probability (set `start`)"
            )
    if not start:
        return []
    token = tokenizer.convert_tokens_to_ids(start)
    if not isinstance(token, int) or (token == tokenizer.unk_token_id and start != tokenizer.unk_token):
        raise ValueError(f"start must be a token of the tokenizer, or '' for none, got {start!r}")
    return [token]


def _mask(tokenizer: "transformers.PreTrainedTokenizerBase") -> int:
    if tokenizer.mask_token_id is None:
        raise ValueError(
            "the model also reads later tokens, so its tokenizer requires a mask_token, got none"
        )
    return int(tokenizer.mask_token_id)


def _causal_rows(encoded: Sequence[_Encoded], start: list[int], context: int | None) -> Iterator[_Row]:
    for number, text in enumerate(encoded):
        sequence = [*start, *text.ids[:-1]] if text.ids else []
        length = len(sequence)
        first = 1 - len(
            start
        )  # the piece predicted at the first position; after several start tokens, the last one predicts
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
    """Group rows of equal length: models without an attention mask would see padding."""
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
    """Return log-probability, rank and entropy for each row, (predicted pieces, 3)."""
    ids = torch.tensor([row.input_ids for row in rows], device=device)
    positions = torch.zeros_like(ids, dtype=torch.bool)
    for b, row in enumerate(rows):
        positions[b, row.at] = True
    batch: Mapping[str, Tensor] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    logits = logits_at(module, batch, positions, forward).float()
    targets = torch.tensor([encoded[row.text].ids[i] for row in rows for i in row.asked], device=device)
    if int(targets.max()) >= logits.shape[-1]:
        raise ValueError(
            f"the tokenizer has a piece {int(targets.max())}, the model predicts {logits.shape[-1]}: use the "
            "model's tokenizer"
        )
    of_target = logits.gather(1, targets[:, None])
    log_p = logits.log_softmax(-1)
    entropy = torch.special.entr(log_p.exp()).sum(-1)
    rank = 1 + (logits > of_target).sum(-1)
    values = torch.stack(
        [log_p.gather(1, targets[:, None])[:, 0].double(), rank.double(), entropy.double()], dim=1
    )
    values[~logits.amax(-1).isfinite()] = torch.nan  # comparisons with NaN would give rank 1
    return [part.numpy() for part in values.cpu().split([len(row.asked) for row in rows])]


# The table --------------------------------------------------------------------------------------------------


def _warn(
    tokenizer: "transformers.PreTrainedTokenizerBase",
    encoded: Sequence[_Encoded],
    ids: list[int],
    broken: int,
) -> None:
    """Warn about pieces and words that have no number, or that of another token."""
    if broken:
        log.warning("the logits of %d of %d pieces are not finite: they have no number", broken, len(ids))
    if tokenizer.unk_token_id in ids:
        log.warning(
            "%d of %d pieces are unknown to the tokenizer (%s): they get the probability of that token",
            ids.count(tokenizer.unk_token_id),
            len(ids),
            tokenizer.unk_token,
        )
    total = sum(len(text.spelled) for text in encoded)
    if without := total - sum(len(set(text.words)) for text in encoded):
        log.warning(
            "%d of %d words have no piece of their own (the tokenizer drops their characters, or has them in a piece "
            "of the word before), so they have no number",
            without,
            total,
        )


def _table(
    tokenizer: "transformers.PreTrainedTokenizerBase",
    encoded: Sequence[_Encoded],
    found: Sequence[npt.NDArray[np.float64]],
) -> "pandas.DataFrame":
    import pandas as pd

    parts = [
        pd.DataFrame(
            {
                "text": number,
                "word_index": np.array(text.words, np.int64),
                "word": [text.spelled[w] for w in text.words],
                "piece_index": range(len(text.ids)),
                "piece": tokenizer.convert_ids_to_tokens(text.ids),
                "log_probability": values[:, 0],
                "surprisal": -values[:, 0] / math.log(2),
                "rank": values[:, 1],
                "entropy": values[:, 2],
            }
        )
        for number, (text, values) in enumerate(zip(encoded, found, strict=True))
        if text.ids  # columns without rows have no types
    ]
    return pd.concat(parts, ignore_index=True).astype({"rank": "Int64"})
