"""What a label belongs to: the logits at its own place, or those one place before it; found by measuring the module."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import observing
from lmdyn.analysis.inspection.batches import aligned_labels
from lmdyn.analysis.inspection.forward import IGNORED, Forward, call_module, device_of, logits_of
from lmdyn.analysis.inspection.token_effects import TokenEffects, token_effects, zero_parameters
from lmdyn.analysis.inspection.transformer import is_encoder_decoder

__all__ = [
    "LabelConvention",
    "LabelDecision",
    "Reading",
    "aligned_labels",
    "label_convention",
    "model_reading",
]

LabelConvention = Literal["aligned", "next"]
"""``aligned``: ``labels[b, t]`` belongs to ``logits[b, t]``; ``next``: to ``logits[b, t - 1]``, as in Hugging Face's
causal models, which shift them inside."""

Reading = Literal["causal", "bidirectional", "unknown"]
"""Whether logits depend on tokens after them."""

_Place = Literal["same", "next", "before", "masked", "elsewhere"]
_OFFSETS: dict[_Place, int] = {"before": -1, "same": 0, "next": 1}
_WHERE: dict[_Place, str] = {
    "before": "equal the token one place before them",
    "same": "equal the token at their own place",
    "next": "equal the token one place after them",
    "masked": "equal no token at their place or next to it, and other places have none (masked tokens)",
    "elsewhere": "equal no token at their place or next to it",
}
_DECLARE = (
    "declare it: `labels: aligned` if `labels[b, t]` belongs to `logits[b, t]`, `labels: next` if the labels are the "
    "input and the logits at t predict the one at t + 1 (Hugging Face's causal convention)"
)


@dataclass(frozen=True)
class LabelDecision:
    """What labels mean to a module.

    Attributes:
        convention: which logits a label belongs to.
        reading: whether the module was measured to read tokens after the logits.
        reason: how that was found, one line for the log.
        warning: what looks wrong, though it may be meant, such as a module that predicts the token it has just read;
            empty where nothing does.
        accuracy: share of the labels that are the most likely class, by this convention.
        copying: mean probability of the token just read, where that is not the label; None of text whose tokens are
            predicted at their own place.
    """

    convention: LabelConvention
    reading: Reading = "unknown"
    reason: str = ""
    warning: str = ""
    accuracy: float | None = None
    copying: float | None = None


def label_convention(
    module: nn.Module, batches: Sequence[Mapping[str, Any]], forward: Forward | None = None
) -> LabelDecision:
    """Find out which logits labels belong to, by what the logits depend on.

    Where a label stands in the input (in an encoder-decoder's: in the decoder's), the logits that predict it must not
    depend on that token. The token is changed in some places: if the logits at the label's place stay as they are, the
    labels are *aligned*; if these change and those one place before stay, they are *next*. Labels of masked tokens are
    *aligned*. A module none of whose tokens has an effect, such as one with a head of zeros, is measured with random
    numbers in place of its parameters that are zero.

    Nothing of the module or the random generators is changed, and equal batches give an equal answer.

    Args:
        module: the module.
        batches: one or several batches in Hugging Face's names: ``input_ids`` (batch, time), ``labels`` of the logits'
            batch and time, -100 where there is none, and what else the module takes.
        forward: as for :func:`~lmdyn.analysis.inspection.forward.call_module`.

    Returns:
        The decision.

    Raises:
        ValueError: no batches; labels of another shape than the logits, or of more classes; logits that depend on the
            label's token by either convention; nothing to tell it by: each with what to do.

    Example:
        >>> module = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))  # the logits at t depend on the token at t
        >>> ids = torch.tensor([[3, 1, 4, 1, 5, 2, 6]])
        >>> label_convention(module, [{"input_ids": ids, "labels": ids}]).convention
        'next'
        >>> label_convention(module, [{"input_ids": ids[:, :-1], "labels": ids[:, 1:]}]).convention
        'aligned'
    """
    texts = _texts(module, batches, forward)
    place, seen = _where(texts)
    at = [_measured_at(text, place) for text in texts]
    whole = [text.batch for text in texts]
    real = [text.real for text in texts]
    # a decoder that reads labels answers at every place, also where the next label is none
    shown = [torch.ones_like(r) if text.key == "labels" else r for text, r in zip(texts, real, strict=True)]
    avoid = _special_ids(module)

    def measure(parameters: Mapping[str, Tensor] | None = None) -> TokenEffects:
        return token_effects(
            module, whole, at, real, forward,
            key=texts[0].key, shown=shown, avoid=avoid, parameters=parameters,
        )  # fmt: skip

    effects = measure()
    as_is, how = effects, ""
    if effects.finite and not effects.mixes and (zeros := zero_parameters(module)):
        effects = measure(zeros)
        how = f" (measured with random numbers in place of {len(zeros)} parameters that are zero)"
    convention, because = _decided(module, place, seen, effects)
    reading = _reading(effects)
    accuracy, copying = _scores(texts, as_is, convention, place)
    warning = ""
    if place == "elsewhere":
        warning = "the labels are no tokens of the input near them: right of a tagger, and wrong of a language model"
    if copying is not None and copying > 0.5:
        warning = (
            f"{type(module).__name__} gives the token it has just read a probability of {copying:.2f} where another "
            f"one is the label (accuracy {accuracy:.0%}): untrained models whose embeddings are tied do; a trained one "
            "has learnt from labels that were not shifted"
        )
    reason = f"labels are {convention}: {seen}{because}{how}; the module reads {_READS[reading]}"
    return LabelDecision(convention, reading, reason, warning, accuracy, copying)


def model_reading(module: nn.Module, batch: Mapping[str, Any], forward: Forward | None = None) -> Reading:
    """Whether logits depend on tokens after them, measured around one token of a batch.

    Where zeros close the way, as in a head of zeros, it is measured with random numbers in their place.

    Args:
        module: the module.
        batch: a batch in Hugging Face's names, on the module's device.
        forward: as for :func:`~lmdyn.analysis.inspection.forward.call_module`.

    Returns:
        ``unknown`` where no token has an effect on the logits of another place.

    Example:
        >>> module = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
        >>> model_reading(module, {"input_ids": torch.tensor([[3, 1, 4, 1, 5]])})
        'unknown'
    """
    ids = batch["input_ids"]
    mask = batch.get("attention_mask")
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    inner = real & real.roll(1, 1) & real.roll(-1, 1)  # text on both sides
    inner[:, [0, -1]] = False
    place = torch.zeros_like(inner)
    if bool(inner.any()):
        row = int(inner.sum(1).argmax())
        place[row, inner[row].nonzero()[:, 0].median()] = True

    def measure(parameters: Mapping[str, Tensor] | None = None) -> TokenEffects:
        avoid = _special_ids(module)
        return token_effects(module, [batch], [place], [real], forward, avoid=avoid, parameters=parameters)

    effects = measure()
    if effects.finite and not effects.mixes and (zeros := zero_parameters(module)):
        effects = measure(zeros)
    return _reading(effects)


def _reading(effects: TokenEffects) -> Reading:
    if effects.reads_ahead:
        return "bidirectional"
    return "causal" if effects.reads_ahead is False and effects.mixes else "unknown"


_READS: dict[Reading, str] = {
    "causal": "no later tokens",
    "bidirectional": "later tokens too",
    "unknown": "tokens in an order that was not measured",
}


# ---------------------------------------------------------------- where labels stand


@dataclass(frozen=True)
class _Text:
    """A batch as it is measured.

    Attributes:
        batch: on the module's device.
        key: which entry holds the tokens in which labels stand.
        tokens: that entry, (batch, time).
        labels: (batch, time).
        real: (batch, time), which tokens are text.
    """

    batch: dict[str, Any]
    key: str
    tokens: Int[Tensor, "batch time"]
    labels: Int[Tensor, "batch time"]
    real: Bool[Tensor, "batch time"]

    @property
    def labelled(self) -> Bool[Tensor, "batch time"]:
        """Which places have a label."""
        return self.real & (self.labels != IGNORED)

    def stands(self, offset: int) -> Bool[Tensor, "batch time"]:
        """Where the label equals the token ``offset`` places after it."""
        return (
            (self.neighbour(self.tokens, offset, IGNORED) == self.labels) & self.has(offset) & self.labelled
        )

    def has(self, offset: int) -> Bool[Tensor, "batch time"]:
        """Where there is a token ``offset`` places after."""
        return self.neighbour(self.real, offset, False)

    @staticmethod
    def neighbour(values: Tensor, offset: int, outside: Any) -> Tensor:
        """The value ``offset`` places after each."""
        rolled = values.roll(-offset, 1)
        if offset > 0:
            rolled[:, -offset:] = outside
        elif offset < 0:
            rolled[:, :-offset] = outside
        return rolled


def _texts(module: nn.Module, batches: Sequence[Mapping[str, Any]], forward: Forward | None) -> list[_Text]:
    """The batches, on the module's device, checked against the logits of the first."""
    if not batches:
        raise ValueError(f"there is no batch by which to tell what the labels are: {_DECLARE}")
    device = device_of(module)
    decodes = is_encoder_decoder(module)
    texts: list[_Text] = []
    for given in batches:
        batch = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in given.items()}
        ids, labels = batch.get("input_ids"), batch.get("labels")
        if (
            not isinstance(ids, Tensor)
            or not isinstance(labels, Tensor)
            or ids.ndim != 2
            or ids.is_floating_point()
        ):
            shapes = {
                k: tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__ for k, v in batch.items()
            }
            raise ValueError(
                "what labels are is told by batches with `input_ids` (batch, time), ids of tokens, and `labels` of the "
                f"logits' batch and time, got {shapes}: {_DECLARE}"
            )
        if not texts:
            _check_shapes(module, batch, forward)
        own = batch.get("decoder_input_ids")
        key, mask = "input_ids", batch.get("attention_mask")
        if isinstance(own, Tensor) and own.shape == labels.shape:
            key, mask = "decoder_input_ids", batch.get("decoder_attention_mask")
        elif decodes or ids.shape != labels.shape:  # the decoder reads what is made of the labels
            key, mask = "labels", None
        tokens = batch[key]
        real = tokens != IGNORED
        if isinstance(mask, Tensor) and mask.shape == tokens.shape:
            real &= mask.bool()
        texts.append(_Text(batch, key, tokens, labels, real))
    return texts


def _check_shapes(module: nn.Module, batch: Mapping[str, Any], forward: Forward | None) -> None:
    labels = batch["labels"]
    with observing(module), torch.no_grad():
        shape = tuple(logits_of(call_module(module, batch, forward=forward)).shape)
    if len(shape) != 3 or shape[:2] != tuple(labels.shape):
        if len(shape) == 3 and shape[1] == 1:
            hint = (
                "the module answers the last position only: give the observer `forward:`, a function (module, batch) "
                "-> logits of all positions"
            )
        elif labels.ndim == 2 and len(shape) == 3 and shape[1] == labels.shape[1] + 1:
            hint = "labels that are the next tokens belong to inputs without the last: `input_ids[:, :-1]`"
        else:
            hint = "give labels of the logits' batch and time, -100 where there is none, or `forward:`"
        raise ValueError(
            f"the logits of {type(module).__name__} are {shape}, expected (batch, time, classes), and labels are "
            f"{tuple(labels.shape)}, expected (batch, time) = {shape[:2]}: {hint}"
        )
    known = labels[labels != IGNORED]
    if known.numel() and (int(known.max()) >= shape[2] or int(known.min()) < 0):
        raise ValueError(
            f"labels are from {int(known.min())} to {int(known.max())}, expected {IGNORED} (none) or 0 to "
            f"{shape[2] - 1}, the classes of {type(module).__name__}: is the tokenizer's vocabulary larger than the "
            "module's?"
        )


def _where(texts: Sequence[_Text]) -> tuple[_Place, str]:
    """Where most labels stand in the input, and in words how many do; ambiguous repeats are not counted."""
    if texts[0].key == "labels":
        return "same", "labels are what the module makes its decoder's input of"
    counts: dict[_Place, int] = dict.fromkeys(("same", "next", "before", "elsewhere"), 0)
    ambiguous = unlabelled = 0
    lone: dict[_Place, int] = {"same": 0, "elsewhere": 0}  # with no token after them
    for text in texts:
        same, following, before = text.stands(0), text.stands(1), text.stands(-1)
        has_next = text.labelled & text.has(1)
        repeats = same & following
        counts["same"] += int((has_next & same & ~following).sum())
        counts["next"] += int((following & ~same).sum())
        counts["before"] += int((has_next & before & ~same & ~following).sum())
        counts["elsewhere"] += int((has_next & ~before & ~same & ~following).sum())
        lone["same"] += int((text.labelled & ~text.has(1) & same).sum())
        lone["elsewhere"] += int((text.labelled & ~text.has(1) & ~same).sum())
        ambiguous += int(repeats.sum())
        unlabelled += int((text.real & (text.labels == IGNORED)).sum())
    if not sum(counts.values()) and not ambiguous:
        counts |= lone
    total = sum(counts.values())
    if not total:
        raise ValueError(
            f"what the labels are cannot be told: {ambiguous} labels of the batches equal the token at their own place "
            f"and the next alike, and no other label is there (is the text one token, or all {IGNORED}?): give other "
            f"batches, or {_DECLARE}"
        )
    place = max(counts, key=lambda name: counts[name])
    n = counts[place]
    if 2 * n <= total:
        shares = ", ".join(f"{counts[name]} {_WHERE[name]}" for name in counts if counts[name])
        raise ValueError(f"what the labels are cannot be told: of {total}, {shares}: {_DECLARE}")
    if place == "elsewhere" and unlabelled:
        place = "masked"
    decodes = texts[0].key == "decoder_input_ids" and place in _OFFSETS
    where = _WHERE[place].replace("token", "token of the decoder's input", 1) if decodes else _WHERE[place]
    return place, f"{n} of {total} labels {where}"


def _measured_at(text: _Text, place: _Place) -> Bool[Tensor, "batch time"]:
    """Tokens to be changed: those in which labels stand, unambiguously; of labels that stand in none, any."""
    if place not in _OFFSETS:
        found = text.real
    else:
        offset = _OFFSETS[place]
        clear = text.stands(offset)
        for other in set(_OFFSETS.values()) - {offset}:
            clear = clear & ~text.stands(other)
        found = _Text.neighbour(clear, -offset, False)
    inner = found & text.has(-1)  # logits before them are compared
    return inner if inner.any() else found


def _special_ids(module: nn.Module) -> list[int]:
    """Ids of special tokens, by the configurations of transformers' models."""
    found: set[int] = set()
    for m in module.modules():
        config = getattr(m, "config", None)  # a user's may be a dict, or anything else
        named = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
        for name, value in named.items():
            if str(name).endswith("_token_id"):
                found |= {
                    v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, int)
                }
    return sorted(found)


# ---------------------------------------------------------------- what is decided


def _decided(
    module: nn.Module, place: _Place, seen: str, effects: TokenEffects
) -> tuple[LabelConvention, str]:
    """The convention, and what was measured for it, in words that go on from ``seen``."""
    if place not in _OFFSETS:
        return "aligned", ""
    name = type(module).__name__
    if not effects.finite:
        raise ValueError(
            f"what the labels are cannot be told: {seen}, and the logits of {name} are no finite numbers (NaN or "
            f"infinite): begin from weights that answer numbers, or {_DECLARE}"
        )
    own, earlier = -_OFFSETS[place], -_OFFSETS[place] - 1
    if not effects.any:
        raise ValueError(
            f"what the labels are cannot be told: {seen}, and no token that was changed has an effect on the logits of "
            f"{name}, with random numbers in place of its parameters that are zero neither: {_DECLARE}"
        )
    if effects.depends(own) is False:
        allowed = [effects.depends(own, k) for k in (-1, 1)]
        if any(allowed) or allowed == [
            None,
            None,
        ]:  # where no token next to it is text, that others have an effect
            return "aligned", ", and the logits at t do not depend on that token"
        raise ValueError(
            f"what the labels are cannot be told: {seen}, and the logits of {name} at t depend neither on that token "
            f"nor on those next to it: {_DECLARE}"
        )
    if effects.depends(own) is None or (earlier in (-2, -1, 0) and effects.depends(earlier) is None):
        raise ValueError(
            f"what the labels are cannot be told: {seen}, in rows too short to see what predicts them: give batches of "
            f"longer rows, or {_DECLARE}"
        )
    if effects.depends(earlier) is False and any(effects.depends(earlier, k) for k in (-1, 1)):
        return "next", ", and the logits at t depend on that token, those at t - 1 do not"
    raise ValueError(
        f"{seen}, and {name} reads that token before it predicts the label, by either convention: changing it changes "
        f"the logits at t by {effects.size(own):.1g} and those at t - 1 by {effects.size(earlier):.1g} of their scale "
        f"(threshold {effects.threshold:.1g}), so it can copy the label, and its loss would say nothing. Is a causal "
        "mask missing, or are the labels those of a masked model and not masked in the input "
        f"(DataCollatorForLanguageModeling(mlm=True))? If it is meant, {_DECLARE}"
    )


def _scores(
    texts: Sequence[_Text], found: TokenEffects, convention: LabelConvention, place: _Place
) -> tuple[float | None, float | None]:
    """Share of right predictions, and the mean probability of the token just read where that is not the label."""
    right = labelled = other = 0
    copied = 0.0
    for text, predicted, copying in zip(texts, found.predictions, found.copying, strict=True):
        labels = aligned_labels(torch.where(text.labelled, text.labels, IGNORED), convention)
        has = labels != IGNORED
        right += int((predicted == labels)[has].sum())
        labelled += int(has.sum())
        differs = has & (text.tokens != labels)
        copied += float(copying[differs].double().sum())
        other += int(differs.sum())
    reads = convention == "next" or place == "next"
    return (right / labelled if labelled else None), (copied / other if reads and other else None)
