"""How surprising a text is to a language model: log-probability, rank and entropy, by piece and by word."""

import bisect
import copy
import logging
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lmdyn.analysis.inspection.activations import observing
from lmdyn.analysis.inspection.forward import Forward, call_module, device_of, logits_of
from lmdyn.analysis.inspection.label_convention import model_reading
from lmdyn.analysis.inspection.predictions import logits_at
from lmdyn.analysis.inspection.transformer import is_encoder_decoder
from lmdyn.analysis.statistics.distributed import gather, rank_and_world_size
from lmdyn.analysis.statistics.precision import at_least_float32

if TYPE_CHECKING:  # these take as long to import as torch
    import pandas
    import transformers

__all__ = ["EncodedTexts", "Objective", "PseudoLikelihood", "surprisals", "word_surprisals"]

log = logging.getLogger(__name__)

Objective = Literal["causal", "masked", "mntp", "enc_dec_mask", "enc_dec_prefix"]
"""What a model predicts: the next piece; a masked one; or a masked one from the position before (masked next-token
prediction). The decoder of an encoder-decoder predicts a piece that is masked for the encoder (``enc_dec_mask``), or
the scored end of a text, for which the encoder reads one mask (``enc_dec_prefix``)."""

PseudoLikelihood = Literal["piece", "rest_of_word", "left_context"]
"""What is masked when a masked model predicts a piece: the piece; also the rest of its word; or three masks follow the
pieces before it, and nothing else."""

_LEAST_SHARED = 3
"""Beginnings of fewer tokens are read with each row: they save little, and their rows make smaller batches."""
_SENTINEL = "<extra_id_0>"
_MASKS_AFTER = 3
"""Masks after a left context, as in the BabyLM protocol's reading task."""
_MOST_SHARING = 8
"""Rows whose beginning is read once; more of them are several groups."""


@dataclass(frozen=True)
class _Encoded:
    """A text in pieces."""

    ids: list[int]
    words: list[int]  # index of each piece's word
    spelled: list[str]  # the text's words
    ends: list[int]  # character after each piece
    before: list[int]  # special tokens
    after: list[int]


@dataclass(frozen=True)
class _Row:
    """Input of the model, and the pieces that it predicts."""

    input_ids: list[int]
    # positions of the input whose logits are read, in order, and the predicted pieces, by their number in all texts
    asked: list[tuple[int, int]]
    decoder: tuple[int, ...] = ()
    """Input of the decoder, if there is one: its logits are read."""

    def cut(self, begin: int, end: int | None = None) -> "_Row":
        """Return a part of the row."""
        end = len(self.input_ids) if end is None else end
        return _Row(
            self.input_ids[begin:end], [(i - begin, piece) for i, piece in self.asked if begin <= i < end]
        )


@dataclass(frozen=True)
class _Group:
    """Rows that have their first tokens in common, which are read once."""

    shared: int
    rows: list[_Row]


class EncodedTexts:
    """Texts in the pieces in which a model reads them: encoded once, and read at any number of steps.

    Beginnings that texts have in common are read once by a causal model that continues from them with equal logits:
    one of transformers, by its ``past_key_values``, or of lmdyn, by its ``state``. Whether it does is measured.

    Args:
        module: the model; what is determined from it holds for its other checkpoints.
        tokenizer: a fast tokenizer.
        texts: see :func:`surprisals`, as for the other arguments.
        objective: what the model predicts; None measures whether it is ``causal`` or ``masked``.
        pseudo: what is masked.
        start: the token before a causal model's text.
        context: maximum number of tokens of an input.
        forward: how the module is called.
        begins: the character of each text from which on its pieces are scored; None for all.

    Attributes:
        objective: what the model predicts.
        start: the token before a text; empty for none, None for masked models.
        context: maximum number of tokens of an input; None for no limit.
        shares: whether common beginnings are read once.
        ids: (pieces,) ids of the pieces of all texts.
        text: (pieces,) number of the text of each piece.
        unknown: (pieces,) whether the tokenizer does not know it.
        scored: (pieces,) whether it is predicted: all that end after ``begins``, or all for 0, except the first of a
            text that follows nothing.
        lengths: (texts,) tokens of each text with those around it; of ``enc_dec_prefix``, those that the encoder or the
            decoder reads, whichever are more.

    Raises:
        ValueError: as in :func:`surprisals`.

    Reference: see :func:`surprisals`.
    """

    def __init__(
        self,
        module: nn.Module,
        tokenizer: "transformers.PreTrainedTokenizerBase",
        texts: Sequence[str],
        *,
        objective: Objective | None = None,
        pseudo: PseudoLikelihood = "piece",
        start: str | None = None,
        context: int | None = None,
        forward: Forward | None = None,
        begins: Sequence[int] | None = None,
    ) -> None:
        decodes = is_encoder_decoder(module)
        asked_of_decoder = str(objective).startswith("enc_dec")
        if decodes and not asked_of_decoder:
            raise ValueError(
                "expected a causal or masked model, got an encoder-decoder: set `objective` (in observers, `scoring`; "
                "of babylm, `--backend`) to enc_dec_mask or enc_dec_prefix"
            )
        if asked_of_decoder and not decodes:
            raise ValueError(f"{objective} requires an encoder-decoder, got {type(module).__name__}")
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError(
                f"expected a fast tokenizer, got {type(tokenizer).__name__}: load the tokenizer with AutoTokenizer"
            )
        self.encoded = encoded = [_encode(tokenizer, text) for text in texts]
        self.ids = np.array([i for text in encoded for i in text.ids], np.int64)
        if not len(self.ids):
            raise ValueError(f"none of {len(texts)} texts contains a word: pass text with words")
        sizes = [len(text.ids) for text in encoded]
        self.text = np.repeat(np.arange(len(texts)), sizes)
        self.unknown = self.ids == tokenizer.unk_token_id
        ends = np.array([end for text in encoded for end in text.ends])
        begin = np.array(begins or [0] * len(texts))[self.text]
        self.scored = (ends > begin) | (begin == 0)  # white space before a text may end at 0
        self.start: str | None = None
        self.shares = False
        self._forward = forward
        self.context = context = _context(module, tokenizer) if context is None else context
        if context is not None and context < 4:
            raise ValueError(f"context must be at least 4 tokens, got {context}")
        with observing(module), torch.no_grad():
            self.objective = _objective(
                module, tokenizer, self.ids[:12].tolist(), context, forward, objective
            )
            causal = self.objective == "causal"
            in_order = self.objective == "enc_dec_prefix"
            unread = {
                "pseudo": pseudo == "rest_of_word" and (causal or in_order),
                "start": start is not None and not causal,
            }
            for argument in (name for name, given in unread.items() if given):
                log.warning("lmdyn scores texts as %s: `%s` has no effect", self.objective, argument)
            firsts = np.cumsum([0, *sizes[:-1]]).tolist()
            first = np.diff(self.text, prepend=-1) > 0
            if not causal:
                shift = int(self.objective == "mntp")
                if shift:
                    self.scored &= ~first | np.array([bool(text.before) for text in encoded])[self.text]
                self.lengths = [len(t.before) + len(t.ids) + len(t.after) for t in encoded]
                mask = _mask(tokenizer, decodes)
                if mask is None:
                    raise ValueError(
                        "lmdyn scores masked tokens, but the tokenizer has no mask_token: set `tokenizer.mask_token`"
                    )
                rows = _masked_rows(encoded, firsts, mask, context, pseudo, shift)
                if decodes:
                    last = self.scored if in_order else None
                    if in_order:
                        predicted = np.bincount(self.text[self.scored], minlength=len(texts))
                        self.lengths = (np.maximum(self.lengths - predicted, predicted) + 1).tolist()
                    rows = _decoder_rows(encoded, firsts, tokenizer, mask, context, pseudo, rows, last)
            else:
                before = _start(tokenizer, start, next(text.before for text in encoded if text.ids))
                self.start = "".join(tokenizer.convert_ids_to_tokens(before))
                self.scored &= ~first | bool(before)
                self.lengths = [max(0, len(before) + n - 1) for n in sizes]
                rows = _causal_rows(encoded, firsts, before, context)
                self.shares = _continues(module, [*before, *self.ids.tolist()], context, forward)
        # equal rows are read once, so that equal texts have equal numbers in batches of any size
        alike: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[int, int]]] = defaultdict(list)
        for row in rows:
            if pairs := [pair for pair in row.asked if self.scored[pair[1]]]:
                alike[tuple(row.input_ids), row.decoder] += pairs
        asked = [_Row([*ids], pairs, decoder) for (ids, decoder), pairs in alike.items()]
        self._groups = _grouped(asked) if self.shares else [_Group(0, [row]) for row in asked]

    def read(
        self,
        module: nn.Module,
        batch_tokens: int = 1024,
        part: tuple[int, int] = (0, 1),
        *,
        whole: bool = True,
    ) -> Iterator[tuple[list[int], npt.NDArray[np.float64]]]:
        """Yield predictions of pieces, each of the scored ones once.

        Args:
            module: the model.
            batch_tokens: maximum number of tokens of a batch.
            part: read each n-th group of rows, from the i-th: ``(i, n)``.
            whole: whether to compute rank and entropy.

        Yields:
            Numbers of pieces, and (pieces, 3) log-probability in nats, rank, entropy, or (pieces, 1) without ``whole``;
            NaN if the logits are not finite.
        """
        with torch.no_grad():
            for batch in _batches(self._groups[part[0] :: part[1]], batch_tokens):
                shared = batch[0].shared
                if not shared:
                    yield self._ask(module, [group.rows[0] for group in batch], whole)[0]
                    continue
                heads = [_joined([row.cut(0, shared) for row in group.rows]) for group in batch]
                found, past = self._ask(module, heads, whole, cached=True)
                yield found
                tails: dict[int, list[tuple[int, _Row]]] = defaultdict(list)
                for number, group in enumerate(batch):
                    for row in group.rows:
                        tails[len(row.input_ids) - shared].append((number, row.cut(shared)))
                most = {length: max(1, batch_tokens // (shared + length)) for length in tails if length}
                for length, size in most.items():
                    for i in range(0, len(tails[length]), size):
                        numbers, rows = zip(*tails[length][i : i + size], strict=True)
                        yield self._ask(module, rows, whole, _chosen(past, numbers), shared)[0]

    def log_probabilities(self, module: nn.Module, batch_tokens: int) -> npt.NDArray[np.float64]:
        """Return the log-probability of each piece, (pieces,) in nats: NaN if it is not predicted, or not finite.

        The rows are divided among ranks, which all must call it.
        """
        found = np.full(len(self.ids), np.nan)
        read = self.read(module, batch_tokens, rank_and_world_size(), whole=False)
        for part in gather([(np.array(asked, int), values[:, 0]) for asked, values in read]):
            for asked, values in part:
                found[asked] = values
        return found

    def _ask(
        self,
        module: nn.Module,
        rows: Sequence[_Row],
        whole: bool,
        past: Any = None,
        before: int = 0,
        cached: bool = False,
    ) -> tuple[tuple[list[int], npt.NDArray[np.float64]], Any]:
        """Return the pieces that rows of equal length predict, with their values, and what the model continues from."""
        ids = torch.tensor([row.input_ids for row in rows], device=device_of(module))
        decoder = torch.tensor([row.decoder for row in rows], dtype=torch.long, device=ids.device)
        places = [(b, i) for b, row in enumerate(rows) for i, _ in row.asked]
        row, column = torch.tensor(places, dtype=torch.long, device=ids.device).view(-1, 2).T
        at = torch.zeros_like(decoder if decoder.numel() else ids, dtype=torch.bool)
        at[row, column] = True
        if cached or past is not None:
            logits, past = _continued(module, ids, at, past, before)
        else:
            logits = logits_at(module, _batch(ids, decoder), at, self._forward)
        logits = logits.to(at_least_float32(logits))
        asked = [piece for row in rows for _, piece in row.asked]
        # a place may predict several texts' pieces
        of_row = (at.flatten().cumsum(0) - 1).view_as(at)[row, column]
        targets = torch.from_numpy(self.ids[asked]).to(ids.device)
        if len(targets) and int(targets.max()) >= logits.shape[-1]:
            raise ValueError(
                f"the model predicts {logits.shape[-1]} token ids, got {int(targets.max())}: use the model's tokenizer"
            )
        return (asked, _values(logits, of_row, targets, whole)), past


def surprisals(
    module: nn.Module,
    tokenizer: "transformers.PreTrainedTokenizerBase",
    texts: Sequence[str],
    *,
    objective: Objective | None = None,
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
    otherwise reveals it (``rest_of_word``: Kauf & Ivanova 2023), or follows the pieces before it as the first of three
    masks (``left_context``, for reading times). The kinds of numbers cannot be compared.

    If a text is longer than the model's context, a causal model sees at least half a context before each piece, and a
    masked model sees a context around it.

    Args:
        module: the model; its ``logits`` are over the tokenizer's vocabulary, of the next token or of the masked one.
        tokenizer: a fast tokenizer.
        texts: each text is separate and passed as it is written; words are separated by white space. White space at
            the end is dropped. Pieces of white space at the beginning, or of a second space, belong to the word after
            them.
        objective: ``causal``, ``masked``, or ``mntp``, a masked model that predicts a piece from the position before
            it; for encoder-decoders ``enc_dec_mask`` or ``enc_dec_prefix``; None measures whether the logits depend on
            later tokens.
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
        ValueError: if no text contains a piece, if the tokenizer's vocabulary does not fit the model, if only one of
            model and objective is an encoder-decoder's, if a masked model's tokenizer has no mask token, or if
            ``start`` is not a token.

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
    encoded = EncodedTexts(
        module,
        tokenizer,
        texts,
        objective=objective,
        pseudo=pseudo,
        start=start,
        context=context,
        forward=forward,
    )
    found, broken = np.full((len(encoded.ids), 3), np.nan), 0
    with observing(module):
        for asked, values in encoded.read(module, batch_tokens):
            found[asked] = values
            broken += int(np.isnan(values).all(1).sum())
    _warn(tokenizer, encoded, broken)
    table = _table(tokenizer, encoded, found)
    table.attrs = {"objective": encoded.objective, "start": encoded.start, "context": encoded.context}
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
    words = grouped[["word"]].first().assign(pieces=grouped.size())
    words[["log_probability", "surprisal"]] = grouped[["log_probability", "surprisal"]].sum(skipna=False)
    words[["rank", "entropy"]] = grouped[["rank", "entropy"]].nth(0).set_axis(words.index)
    if texts is not None:
        spelled = {
            (number, i): word for number, text in enumerate(texts) for i, word in enumerate(text.split())
        }
        if [spelled.get(place) for place in words.index.tolist()] != words["word"].tolist():
            raise ValueError(
                "the words of the texts and of the pieces differ: pass the texts that you passed to surprisals"
            )
        words = words.reindex(pd.MultiIndex.from_tuples(spelled, names=words.index.names))
        words["word"] = list(spelled.values())
        words["pieces"] = words["pieces"].fillna(0).astype(np.int64)
    return words.reset_index()


# Texts ------------------------------------------------------------------------------------------------------


def _encode(tokenizer: "transformers.PreTrainedTokenizerBase", text: str) -> _Encoded:
    text = text.rstrip()  # white space after the last word belongs to no word
    encoding = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
    special = encoding["special_tokens_mask"]
    ids = encoding["input_ids"]
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
        [end for (_, (_, end)), w in zip(inner, words, strict=True) if w >= 0],
        ids[:first],
        ids[max(first, last) :],
    )


def _objective(
    module: nn.Module,
    tokenizer: "transformers.PreTrainedTokenizerBase",
    ids: Sequence[int],
    context: int | None,
    forward: Forward | None,
    given: Objective | None,
) -> Objective:
    """Return the given objective, or the measured one; a given one that the model contradicts is reported."""
    if given is not None and given.startswith("enc_dec"):
        return given
    probe = [ids[i % len(ids)] for i in range(min(12, context or 12))]
    reading = model_reading(module, _batch(torch.tensor([probe], device=device_of(module))), forward)
    if given is not None:
        if reading != "unknown" and (given == "causal") == (reading == "bidirectional"):
            log.warning(
                "lmdyn scores texts as %s, but the model %s later tokens: the numbers are meaningless. "
                "Remove `objective` (in observers, `scoring`)",
                given,
                "reads" if given == "causal" else "does not read",
            )
        return given
    if reading == "bidirectional":
        return "masked"
    if reading == "unknown" and tokenizer.mask_token_id is not None:
        raise ValueError("the model may be causal or masked: set `objective` (in observers, `scoring`)")
    return "causal"


def _context(module: nn.Module, tokenizer: "transformers.PreTrainedTokenizerBase") -> int | None:
    """Return the maximum number of tokens by configuration, position table and tokenizer; None for no limit."""
    configs = [config for m in module.modules() if (config := getattr(m, "config", None)) is not None]
    names = ["max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "block_size"]
    names += ["max_encoder_position_embeddings", "max_decoder_position_embeddings"]
    said = [getattr(config, name, None) for config in configs for name in names]
    # RoBERTa's positions begin after the padding's: the first rows of its table are used by no token
    tables = [
        m.num_embeddings - m.padding_idx - 1
        for name, m in module.named_modules()
        if "position" in name.rpartition(".")[2] and isinstance(m, nn.Embedding) and m.padding_idx is not None
    ]
    found = (*said, *tables, tokenizer.model_max_length)
    return min((n for n in found if isinstance(n, int) and 4 <= n < 10**9), default=None)


@cache
def _say(text: str) -> None:  # once, not for each observer
    log.info(text)


def _start(
    tokenizer: "transformers.PreTrainedTokenizerBase", start: str | None, before: list[int]
) -> list[int]:
    """Return the tokens that a causal model reads before a text; ``before`` are those that the tokenizer adds."""
    if start is None:
        if before:
            tokens = "".join(tokenizer.convert_ids_to_tokens(before))
            _say(f"`start`: the model reads {tokens}, which the tokenizer adds, before each text")
            return before
        start = tokenizer.bos_token or tokenizer.eos_token or tokenizer.cls_token or ""
        if start:
            _say(f"each text begins after {start} (`start`)")
        else:
            log.warning(
                "the tokenizer puts no token before a text, and has no bos_token, eos_token or cls_token: the first "
                "token of each text has no probability. Set `start`"
            )
    if not start:
        return []
    token = tokenizer.convert_tokens_to_ids(start)
    if not isinstance(token, int) or (token == tokenizer.unk_token_id and start != tokenizer.unk_token):
        raise ValueError(f"start must be a token of the tokenizer, or '' for none, got {start!r}")
    return [token]


def _causal_rows(
    encoded: Sequence[_Encoded], firsts: Sequence[int], start: list[int], context: int | None
) -> Iterator[_Row]:
    for place, text in zip(firsts, encoded, strict=True):
        sequence = [*start, *text.ids[:-1]] if text.ids else []
        length = len(sequence)
        # the piece predicted at the first position; after several start tokens, the last one predicts
        first = 1 - len(start)
        begin, done = 0, max(0, -first)
        while done < length:
            end = length if context is None else min(length, begin + context)
            asked = [(i, place + begin + i + first) for i in range(done - begin, end - begin)]
            yield _Row(sequence[begin:end], asked)
            done = end
            begin = end - (0 if context is None else context // 2)


def _masked_rows(
    encoded: Sequence[_Encoded],
    firsts: Sequence[int],
    mask: int,
    context: int | None,
    pseudo: PseudoLikelihood,
    shift: int,
) -> Iterator[_Row]:
    for place, text in zip(firsts, encoded, strict=True):
        room = len(text.ids) if context is None else context - len(text.before) - len(text.after)
        for i, word in enumerate(text.words):
            begin = max(0, min(i - room // 2, len(text.ids) - room))
            end = min(len(text.ids), begin + room)
            last = i
            while pseudo == "rest_of_word" and last + 1 < end and text.words[last + 1] == word:
                last += 1
            if pseudo == "left_context":
                masks = min(_MASKS_AFTER, room)
                begin = max(0, i + masks - room)
                end, last = i + 1, i + masks - 1
            hidden = list(text.ids[begin:end])
            hidden[i - begin : last + 1 - begin] = [mask] * (last + 1 - i)
            at = max(0, i - begin + len(text.before) - shift)
            yield _Row([*text.before, *hidden, *text.after], [(at, place + i)])


def _mask(tokenizer: "transformers.PreTrainedTokenizerBase", decodes: bool) -> int | None:
    """Return the id of the mask; for an encoder-decoder as T5, which has none, its first sentinel."""
    found = tokenizer.mask_token_id
    if found is None and decodes and _SENTINEL in tokenizer.get_vocab():
        _say(f"the tokenizer has no mask_token: {_SENTINEL} stands for a masked token")
        found = tokenizer.convert_tokens_to_ids(_SENTINEL)
    return cast(int | None, found)


def _decoder_rows(
    encoded: Sequence[_Encoded],
    firsts: Sequence[int],
    tokenizer: "transformers.PreTrainedTokenizerBase",
    mask: int,
    context: int | None,
    pseudo: PseudoLikelihood,
    masked: Iterable[_Row],
    ends: npt.NDArray[np.bool_] | None,
) -> Iterator[_Row]:
    """Yield the rows of an encoder-decoder, as the BabyLM protocol.

    Args:
        encoded: the texts.
        firsts: number of the first piece of each.
        tokenizer: has the tokens around texts.
        mask: id of the mask.
        context: maximum number of tokens of an input.
        pseudo: with ``left_context``, the encoder reads what is before a piece, and a mask.
        masked: rows of the encoder in which a piece is masked, which the decoder predicts.
        ends: instead, the pieces of all texts that the decoder predicts in order, after a mask.

    Raises:
        ValueError: if the decoder would read more tokens than it can.
    """
    begin = mask if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    if ends is None and pseudo != "left_context":
        decoder = tuple(dict.fromkeys([begin, mask]))
        for row in masked:
            yield _Row(row.input_ids, [(len(decoder) - 1, piece) for _, piece in row.asked], decoder)
        return
    before, after = (
        [i for i in [of] if i is not None] for of in (tokenizer.cls_token_id, tokenizer.eos_token_id)
    )
    room = None if context is None else context - len(before) - len(after) - 1
    for place, text in zip(firsts, encoded, strict=True):
        pieces = [i for i in range(len(text.ids)) if ends is None or ends[place + i]]
        for asked in [[i] for i in pieces] if pseudo == "left_context" else [pieces]:
            known = (mask, *(text.ids[i] for i in asked[:-1])) if pseudo != "left_context" else ()
            decoder = (begin, *known)
            if context is not None and len(decoder) > context:
                raise ValueError(
                    f"the decoder would read {len(decoder)} tokens, expected at most {context}: use shorter texts, or "
                    "enc_dec_mask"
                )
            end = min(asked, default=0)
            start = 0 if room is None else max(0, end - room)
            numbers = enumerate(asked, len(decoder) - len(asked))
            inputs = [*before, *text.ids[start:end], mask, *after]
            yield _Row(inputs, [(at, place + i) for at, i in numbers], decoder)


# Common beginnings ------------------------------------------------------------------------------------------


def _grouped(rows: list[_Row]) -> list[_Group]:
    """Group rows by their first tokens, so that the fewest tokens are read: by dynamic programming over sorted rows."""
    rows = sorted(rows, key=lambda row: row.input_ids)
    alike = [_alike(a.input_ids, b.input_ids) for a, b in pairwise(rows)]
    saved, first = (
        [0] * (len(rows) + 1),
        list(range(-1, len(rows))),
    )  # of the first n rows, and where a group begins
    for end in range(1, len(rows) + 1):
        saved[end], shared = saved[end - 1], len(rows[end - 1].input_ids)
        for begin in range(end - 2, max(-1, end - 1 - _MOST_SHARING), -1):
            shared = min(shared, alike[begin])
            if shared < _LEAST_SHARED:
                break
            if (less := saved[begin] + (end - begin - 1) * shared) > saved[end]:
                saved[end], first[end] = less, begin
    groups, end = [], len(rows)
    while end:
        found = rows[first[end] : end]
        shared = min(alike[first[end] : end - 1], default=0)
        groups.append(_Group(shared, found))
        end = first[end]
    return groups


def _alike(one: list[int], other: list[int]) -> int:
    """Return how many first tokens are equal."""
    differ = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))


def _joined(rows: Sequence[_Row]) -> _Row:
    """Return rows of equal tokens as one, which predicts the pieces of all."""
    return _Row(rows[0].input_ids, [pair for row in rows for pair in row.asked])


def _continued(module: nn.Module, ids: Tensor, at: Tensor, past: Any, before: int) -> tuple[Tensor, Any]:
    """Return the logits at some positions, and what the model continues from; ``past`` is that of tokens before."""
    mask = ids.new_ones(len(ids), before + ids.shape[1])
    batch = {"input_ids": ids, "attention_mask": mask, "predict": at, "use_cache": True}
    if past is not None:
        batch |= {"past_key_values": past, "continues": at.new_ones(len(ids))}
    output = call_module(module, batch, state=past)
    logits = logits_of(output)
    past = getattr(output, "past_key_values", None) or getattr(output, "state", None)
    return logits if logits.ndim == 2 else logits[at], past


def _chosen(past: Any, rows: Sequence[int]) -> Any:
    """Return the caches of some rows, each any number of times; the given ones stay as they are."""
    index = torch.tensor(rows)
    if hasattr(past, "batch_select_indices"):
        past = copy.deepcopy(past)
        past.batch_select_indices(index)
        return past
    return tree_map(lambda state: state[:, index.to(state.device)], past)  # (layers, batch, units)


def _continues(module: nn.Module, ids: list[int], context: int | None, forward: Forward | None) -> bool:
    """Return whether a causal model that continues from a beginning has the logits of whole rows, by measurement."""
    half = min(8, context or 8) // 2
    tokens = torch.tensor([ids[i % len(ids)] for i in range(4 * half)], device=device_of(module)).view(2, -1)
    if forward is not None:
        return False
    every = torch.ones_like(tokens, dtype=torch.bool)
    # rotations that depend on the length of the whole row: a cached beginning has those of its own length
    kinds = [str(getattr(m, "rope_type", "")) for m in module.modules()]
    if any("dynamic" in kind or "longrope" in kind for kind in kinds):
        return False
    try:
        _, past = _continued(module, tokens[:, :half], every[:, :half], None, 0)
        if past is None:
            return False
        rows = [1, 0, 1]
        found, _ = _continued(module, tokens[rows, half:], every[rows, half:], _chosen(past, rows), half)
        whole = logits_of(call_module(module, {"input_ids": tokens, "attention_mask": every.long()}))
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):  # a cache of another kind
        return False
    whole = whole[rows, half:].flatten(0, 1)
    return found.shape == whole.shape and torch.allclose(found, whole, 1e-4, 1e-5, equal_nan=True)


# The model --------------------------------------------------------------------------------------------------


def _batches(groups: Iterable[_Group], batch_tokens: int) -> Iterator[list[_Group]]:
    """Collect groups of equal length: models without an attention mask would see padding."""
    waiting: dict[tuple[bool, int, int], list[_Group]] = defaultdict(list)
    for group in groups:
        row = group.rows[0]
        key = group.shared > 0, group.shared or len(row.input_ids), len(row.decoder)
        waiting[key].append(group)
        if (len(waiting[key]) + 1) * (key[1] + key[2]) > batch_tokens:
            yield waiting.pop(key)
    yield from waiting.values()


def _batch(ids: Tensor, decoder: Tensor | None = None) -> dict[str, Tensor]:
    """Return a batch; modules that answer all logits only with labels (nanoGPT) get the ids."""
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if decoder is not None and decoder.numel():
        return {**batch, "decoder_input_ids": decoder, "decoder_attention_mask": torch.ones_like(decoder)}
    return {**batch, "labels": ids}


def _values(logits: Tensor, rows: Tensor, targets: Tensor, whole: bool) -> npt.NDArray[np.float64]:
    """Return log-probability, and rank and entropy if they are wanted, of pieces by logits (n, vocab) at ``rows``."""
    of_target = logits[rows, targets]
    found = [of_target - logits.logsumexp(-1)[rows]]
    if whole:
        log_p = logits.log_softmax(-1)
        found += [
            1 + (logits[rows] > of_target[:, None]).sum(-1),
            torch.special.entr(log_p.exp()).sum(-1)[rows],
        ]
    values = torch.stack([value.double() for value in found], dim=1)
    values[~logits.amax(-1).isfinite()[rows]] = torch.nan  # comparisons with NaN would give rank 1
    return values.cpu().numpy()


# The table --------------------------------------------------------------------------------------------------


def _warn(tokenizer: "transformers.PreTrainedTokenizerBase", encoded: EncodedTexts, broken: int) -> None:
    """Warn about pieces and words that have no number, or that of another token."""
    if broken:
        log.warning(
            "the logits of %d of %d tokens are not finite: the results of these tokens are NaN",
            broken,
            len(encoded.ids),
        )
    if encoded.unknown.any():
        log.warning(
            "%d of %d tokens are unknown to the tokenizer: lmdyn gives these tokens the probability of %s",
            encoded.unknown.sum(),
            len(encoded.ids),
            tokenizer.unk_token,
        )
    total = sum(len(text.spelled) for text in encoded.encoded)
    if without := total - sum(len(set(text.words)) for text in encoded.encoded):
        log.warning(
            "%d of %d words have no surprisal, because no token begins in these words: the tokenizer drops the words' "
            "characters, or puts the characters into a token of the word before",
            without,
            total,
        )


def _table(
    tokenizer: "transformers.PreTrainedTokenizerBase",
    encoded: EncodedTexts,
    found: npt.NDArray[np.float64],
) -> "pandas.DataFrame":
    import pandas as pd

    texts = encoded.encoded
    table = pd.DataFrame(
        {
            "text": encoded.text,
            "word_index": np.array([w for text in texts for w in text.words], np.int64),
            "word": [text.spelled[w] for text in texts for w in text.words],
            "piece_index": [i for text in texts for i in range(len(text.ids))],
            "piece": tokenizer.convert_ids_to_tokens(encoded.ids.tolist()),
            "log_probability": found[:, 0],
            "surprisal": -found[:, 0] / math.log(2),
            "rank": found[:, 1],
            "entropy": found[:, 2],
        }
    )
    return table.astype({"rank": "Int64"})
