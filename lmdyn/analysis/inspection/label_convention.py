"""The convention of labels: aligned with their own logits, or with those one position before; by measurement."""

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
    "before": "equal the token one position before them",
    "same": "equal the token at their own position",
    "next": "equal the token one position after them",
    "masked": "equal no token at their position or next to it, and other positions have none (masked tokens)",
    "elsewhere": "equal no token at their position or next to it",
}
_DECLARE = (
    "declare it: `labels: aligned` if `labels[b, t]` belongs to `logits[b, t]`, `labels: next` if the labels are the "
    "input and the logits at t predict the label at t + 1 (Hugging Face's causal convention)"
)


@dataclass(frozen=True)
class LabelDecision:
    """Meaning of the labels of a module.

    Attributes:
        convention: the logits that a label belongs to.
        reading: whether the module reads tokens after the logits, by measurement.
        reason: how this was found, one line for the log.
        warning: a description of what may be wrong or intended, such as a module that predicts the token it has just
            read; empty if there is nothing.
        accuracy: share of the labels that are the most likely class, by this convention.
        copying: mean probability of the token just read, if it is not the label; None for text whose tokens are
            predicted at their own position.
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
    """Determine which logits labels belong to, from the dependence of the logits on tokens.

    If a label occurs in the input (for an encoder-decoder, in the decoder's input), the logits that predict it must
    not depend on that token. The token is changed at some positions: if the logits at the label's position do not
    change, the labels are *aligned*; if these change and those one position before do not, they are *next*. Labels of
    masked tokens are *aligned*. If no token of a module has an effect, for example with a head of zeros, the module is
    measured with random numbers instead of its parameters that are zero.

    The module and the random generators are not changed, and equal batches give an equal result.

    Args:
        module: the module.
        batches: one or several batches with the names of Hugging Face: ``input_ids`` (batch, time), ``labels`` of the
            logits' batch and time, -100 for none, and the other arguments of the module.
        forward: as in :func:`~lmdyn.analysis.inspection.forward.call_module`.

    Returns:
        The decision.

    Raises:
        ValueError: if there are no batches; if the shape of labels does not match the logits, or labels exceed the
            classes; if logits depend on the label's token by either convention; if the convention cannot be
            determined. Each message gives a remedy.

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
    # a decoder that reads labels has outputs at every position, also if the next label is none
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
        how = f" (measured with random numbers instead of {len(zeros)} parameters that are zero)"
    convention, because = _decided(module, place, seen, effects)
    reading = _reading(effects)
    accuracy, copying = _scores(texts, as_is, convention, place)
    warning = ""
    if place == "elsewhere":
        warning = (
            "the labels are not tokens of the input near them: right for a tagger, wrong for a language model"
        )
    if copying is not None and copying > 0.5:
        warning = (
            f"{type(module).__name__} gives the token it has just read a probability of {copying:.2f} if another "
            f"one is the label (accuracy {accuracy:.0%}): untrained models with tied embeddings do so; a trained one "
            "has learnt from labels that were not shifted"
        )
    reason = f"labels are {convention}: {seen}{because}{how}; the module reads {_READS[reading]}"
    return LabelDecision(convention, reading, reason, warning, accuracy, copying)


def model_reading(module: nn.Module, batch: Mapping[str, Any], forward: Forward | None = None) -> Reading:
    """Measure whether logits depend on tokens after them, around one token of a batch.

    If zeros block all paths, as in a head of zeros, it is measured with random numbers instead.

    Args:
        module: the module.
        batch: a batch with the names of Hugging Face, on the module's device.
        forward: as in :func:`~lmdyn.analysis.inspection.forward.call_module`.

    Returns:
        The result; ``unknown`` if no token has an effect on the logits of another position.

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
    "bidirectional": "later tokens as well",
    "unknown": "tokens in an order that was not measured",
}


# ---------------------------------------------------------------- where labels stand


@dataclass(frozen=True)
class _Text:
    """A batch to measure.

    Attributes:
        batch: the batch, on the module's device.
        key: entry that contains the tokens that labels are compared with.
        tokens: that entry, (batch, time).
        labels: (batch, time).
        real: (batch, time), whether each token is text.
    """

    batch: dict[str, Any]
    key: str
    tokens: Int[Tensor, "batch time"]
    labels: Int[Tensor, "batch time"]
    real: Bool[Tensor, "batch time"]

    @property
    def labelled(self) -> Bool[Tensor, "batch time"]:
        """Return which positions have a label."""
        return self.real & (self.labels != IGNORED)

    def stands(self, offset: int) -> Bool[Tensor, "batch time"]:
        """Return whether the label equals the token ``offset`` positions after it."""
        return (
            (self.neighbour(self.tokens, offset, IGNORED) == self.labels) & self.has(offset) & self.labelled
        )

    def has(self, offset: int) -> Bool[Tensor, "batch time"]:
        """Return whether there is a token ``offset`` positions after."""
        return self.neighbour(self.real, offset, False)

    @staticmethod
    def neighbour(values: Tensor, offset: int, outside: Any) -> Tensor:
        """Return the value ``offset`` positions after each."""
        rolled = values.roll(-offset, 1)
        if offset > 0:
            rolled[:, -offset:] = outside
        elif offset < 0:
            rolled[:, :-offset] = outside
        return rolled


def _texts(module: nn.Module, batches: Sequence[Mapping[str, Any]], forward: Forward | None) -> list[_Text]:
    """Return the batches, on the module's device, checked against the logits of the first."""
    if not batches:
        raise ValueError(f"the labels cannot be determined without a batch: {_DECLARE}")
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
                "labels are determined from batches with `input_ids` (batch, time), ids of tokens, and `labels` of the "
                f"logits' batch and time, got {shapes}: {_DECLARE}"
            )
        if not texts:
            _check_shapes(module, batch, forward)
        own = batch.get("decoder_input_ids")
        key, mask = "input_ids", batch.get("attention_mask")
        if isinstance(own, Tensor) and own.shape == labels.shape:
            key, mask = "decoder_input_ids", batch.get("decoder_attention_mask")
        elif decodes or ids.shape != labels.shape:  # the decoder's input is created from the labels
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
                "the module returns the last position only: pass `forward:` to the observer, a function "
                "(module, batch) "
                "-> logits of all positions"
            )
        elif labels.ndim == 2 and len(shape) == 3 and shape[1] == labels.shape[1] + 1:
            hint = "labels that are the next tokens belong to inputs without the last: `input_ids[:, :-1]`"
        else:
            hint = "use labels of the logits' batch and time, -100 for none, or set `forward:`"
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
    """Return where most labels occur in the input, and the counts in words; ambiguous repeats are not counted."""
    if texts[0].key == "labels":
        return "same", "the module creates its decoder's input from the labels"
    counts: dict[_Place, int] = dict.fromkeys(("same", "next", "before", "elsewhere"), 0)
    ambiguous = unlabelled = 0
    lone: dict[_Place, int] = {"same": 0, "elsewhere": 0}  # without a token after them
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
            f"the labels cannot be determined: {ambiguous} labels of the batches equal both the token at their own "
            f"position and the next, and there are no others (is the text one token, or all {IGNORED}?): use other "
            f"batches, or {_DECLARE}"
        )
    place = max(counts, key=lambda name: counts[name])
    n = counts[place]
    if 2 * n <= total:
        shares = ", ".join(f"{counts[name]} {_WHERE[name]}" for name in counts if counts[name])
        raise ValueError(f"the labels cannot be determined: of {total}, {shares}: {_DECLARE}")
    if place == "elsewhere" and unlabelled:
        place = "masked"
    decodes = texts[0].key == "decoder_input_ids" and place in _OFFSETS
    where = _WHERE[place].replace("token", "token of the decoder's input", 1) if decodes else _WHERE[place]
    return place, f"{n} of {total} labels {where}"


def _measured_at(text: _Text, place: _Place) -> Bool[Tensor, "batch time"]:
    """Return tokens to change: those that unambiguously are labels; any tokens if no labels occur in the input."""
    if place not in _OFFSETS:
        found = text.real
    else:
        offset = _OFFSETS[place]
        clear = text.stands(offset)
        for other in set(_OFFSETS.values()) - {offset}:
            clear = clear & ~text.stands(other)
        found = _Text.neighbour(clear, -offset, False)
    inner = found & text.has(-1)  # the logits before them are compared
    return inner if inner.any() else found


def _special_ids(module: nn.Module) -> list[int]:
    """Return the ids of special tokens in the configurations of transformers' models."""
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
    """Return the convention, and the measurement for it as a continuation of ``seen``."""
    if place not in _OFFSETS:
        return "aligned", ""
    name = type(module).__name__
    if not effects.finite:
        raise ValueError(
            f"the labels cannot be determined: {seen}, and the logits of {name} are not finite (NaN or "
            f"infinite): start from weights that give finite logits, or {_DECLARE}"
        )
    own, earlier = -_OFFSETS[place], -_OFFSETS[place] - 1
    if not effects.any:
        raise ValueError(
            f"the labels cannot be determined: {seen}, and no changed token has an effect on the logits of "
            f"{name}, even with random numbers instead of its parameters that are zero: {_DECLARE}"
        )
    if effects.depends(own) is False:
        allowed = [effects.depends(own, k) for k in (-1, 1)]
        if any(allowed) or allowed == [
            None,
            None,
        ]:  # if no token next to it is text, other tokens must have an effect
            return "aligned", ", and the logits at t do not depend on that token"
        raise ValueError(
            f"the labels cannot be determined: {seen}, and the logits of {name} at t depend neither on that token "
            f"nor on those next to it: {_DECLARE}"
        )
    if effects.depends(own) is None or (earlier in (-2, -1, 0) and effects.depends(earlier) is None):
        raise ValueError(
            f"the labels cannot be determined: {seen}, in rows too short to measure what predicts them: use batches of "
            f"longer rows, or {_DECLARE}"
        )
    if effects.depends(earlier) is False and any(effects.depends(earlier, k) for k in (-1, 1)):
        return "next", ", and the logits at t depend on that token, those at t - 1 do not"
    raise ValueError(
        f"{seen}, and {name} reads that token before it predicts the label, by either convention: changing it changes "
        f"the logits at t by {effects.size(own):.1g} and those at t - 1 by {effects.size(earlier):.1g} of their scale "
        f"(threshold {effects.threshold:.1g}), so it can copy the label, and its loss is meaningless. Is a causal "
        "mask missing, or are the labels those of a masked model and not masked in the input "
        f"(DataCollatorForLanguageModeling(mlm=True))? If this is intended, {_DECLARE}"
    )


def _scores(
    texts: Sequence[_Text], found: TokenEffects, convention: LabelConvention, place: _Place
) -> tuple[float | None, float | None]:
    """Compute the share of right predictions, and the mean probability of the token just read if not the label."""
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
