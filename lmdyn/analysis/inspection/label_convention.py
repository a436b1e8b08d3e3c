"""The convention of labels: aligned with their own logits, or with those one position before; by measurement."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import observing
from lmdyn.analysis.inspection.batches import aligned_labels, of_ids, seen, tokens_of
from lmdyn.analysis.inspection.forward import IGNORED, Batch, Forward, call_module, device_of, logits_of
from lmdyn.analysis.inspection.token_effects import TokenEffects, token_effects
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

_OFFSETS = {"before": -1, "same": 0, "next": 1}
_WHERE = {
    "before": "equal the token one position before them",
    "same": "equal the token at their own position",
    "next": "equal the token one position after them",
    "masked": "equal no token at or next to their position, and other positions have no label (masked tokens)",
    "elsewhere": "equal no token at or next to their position",
}
_READS: dict[Reading, str] = {
    "causal": "the module reads no later tokens",
    "bidirectional": "the module reads later tokens as well",
    "unknown": "no token has an effect on other positions",
}
_DECLARE = (
    "set `labels: aligned` if `labels[b, t]` belongs to `logits[b, t]`, or `labels: next` if the labels are the input "
    "and the logits at t predict the label at t + 1 (Hugging Face's causal convention)"
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
    """

    convention: LabelConvention
    reading: Reading = "unknown"
    reason: str = ""
    warning: str = ""


def label_convention(
    module: nn.Module, batches: Sequence[Batch], forward: Forward | None = None
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
    if not batches:
        raise ValueError(f"lmdyn cannot determine the label convention without a batch: {_DECLARE}")
    texts = [_Text.of(module, batch) for batch in batches]
    place, counted = _where(texts)
    copying = _copying(module, texts[0], forward)
    # a decoder that reads labels has outputs at every position, also if the next label is none
    shown = [torch.ones_like(text.real) if text.key == "labels" else text.real for text in texts]
    at = [_measured_at(text, place) for text in texts]
    effects = token_effects(module, [text.batch for text in texts], at, shown, forward, key=texts[0].key)
    convention, because = _decided(type(module).__name__, place, counted, effects)
    if effects.replaced:
        because += f" (measured with random numbers instead of {effects.replaced} parameters that are zero)"
    warning = ""
    if place == "elsewhere":
        warning = (
            "the labels equal no nearby input tokens, as is right for a tagger and wrong for a language model"
        )
    elif copying > 0.5 and (convention == "next" or place == "next"):
        warning = (
            f"{type(module).__name__} predicts the token that the model has just read (probability {copying:.2f}) "
            "where another token is next. Untrained models with tied embeddings do so; a trained model then learnt "
            "from labels without a shift"
        )
    reading = _reading(effects)
    place_of = "t" if convention == "aligned" else "t - 1"
    means = f"the logits at {place_of} predict the label at t (`labels: {convention}`)"
    reason = f"{means}: {counted}{because}; {_READS[reading]}"
    return LabelDecision(convention, reading, reason, warning)


def model_reading(module: nn.Module, batch: Batch, forward: Forward | None = None) -> Reading:
    """Measure whether logits depend on tokens after them, around some tokens of a batch.

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
    real = tokens_of(batch)
    inner = real & _neighbour(real, -1, False) & _neighbour(real, 1, False)  # text on both sides
    return _reading(token_effects(module, [batch], [inner], [real], forward))


def _reading(effects: TokenEffects) -> Reading:
    if effects.reads_ahead:
        return "bidirectional"
    return "causal" if effects.reads_ahead is False and effects.mixes else "unknown"


def _neighbour(values: Tensor, offset: int, outside: Any) -> Tensor:
    """Return the value ``offset`` positions after each."""
    padded = torch.nn.functional.pad(values, (max(0, -offset), max(0, offset)), value=outside)
    return padded[:, max(0, offset) :][:, : values.shape[1]]


@dataclass(frozen=True)
class _Text:
    """A batch to measure, on the module's device.

    Attributes:
        batch: the batch.
        key: entry that contains the tokens that labels are compared with.
        labels: (batch, time).
        real: (batch, time), whether each token is text.
    """

    batch: dict[str, Any]
    key: str
    labels: Int[Tensor, "batch time"]
    real: Bool[Tensor, "batch time"]

    @classmethod
    def of(cls, module: nn.Module, given: Batch) -> "_Text":
        device = device_of(module)
        batch = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in given.items()}
        ids, labels, own = (batch.get(name) for name in ("input_ids", "labels", "decoder_input_ids"))
        if not (of_ids(ids) and of_ids(labels)):
            raise ValueError(
                "lmdyn determines the label convention from batches with token ids `input_ids` (batch, time) and "
                f"`labels` of the logits' batch and time, got {seen(batch)}: {_DECLARE}"
            )
        key, mask = "input_ids", batch.get("attention_mask")
        if isinstance(own, Tensor) and own.shape == labels.shape:
            key = "decoder_input_ids"
            mask = batch.get("decoder_attention_mask")
        elif is_encoder_decoder(module) or ids.shape != labels.shape:  # the decoder's input is made of labels
            key, mask = "labels", None
        real = batch[key] != IGNORED
        if isinstance(mask, Tensor) and mask.shape == real.shape:
            real &= mask.bool()
        return cls(batch, key, labels, real)

    @property
    def labelled(self) -> Bool[Tensor, "batch time"]:
        """Return which positions have a label."""
        return self.real & (self.labels != IGNORED)

    def stands(self, offset: int) -> Bool[Tensor, "batch time"]:
        """Return whether the label equals the token ``offset`` positions after it."""
        equal = _neighbour(self.batch[self.key], offset, IGNORED) == self.labels
        return equal & _neighbour(self.real, offset, False) & self.labelled


def _where(texts: Sequence[_Text]) -> tuple[str, str]:
    """Return where most labels occur in the input, and the counts in words; ambiguous repeats are not counted."""
    if texts[0].key == "labels":
        return "same", "the module creates the decoder's input from the labels"
    counted = [text.labelled & _neighbour(text.real, 1, False) for text in texts]
    if not any(bool(at.any()) for at in counted):
        counted = [text.labelled for text in texts]
    counts: Counter[str] = Counter()
    for text, at in zip(texts, counted, strict=True):
        same = text.stands(0)
        following = text.stands(1)
        before = text.stands(-1)
        found = {"same": same & ~following, "next": following & ~same}
        found["before"] = before & ~same & ~following
        found["elsewhere"] = ~(before | same | following)
        counts.update({name: int((at & mask).sum()) for name, mask in found.items()})
    ranked = counts.most_common()
    place, n = ranked[0]
    if 2 * n <= counts.total():
        shares = ", ".join(f"{count} {_WHERE[name]}" for name, count in ranked if count)
        ambiguous = sum(int((text.stands(0) & text.stands(1)).sum()) for text in texts)
        raise ValueError(
            f"lmdyn cannot determine the label convention: of {counts.total()} labels, {shares or 'none'} ({ambiguous} "
            f"other labels equal both the token at their position and the next token). Use other batches, or {_DECLARE}"
        )
    if place == "elsewhere" and any(bool((text.real & (text.labels == IGNORED)).any()) for text in texts):
        place = "masked"
    return place, f"{n} of {counts.total()} labels {_WHERE[place]}"


def _measured_at(text: _Text, place: str) -> Bool[Tensor, "batch time"]:
    """Return tokens to change: those that unambiguously are labels; any tokens if no labels occur in the input."""
    found = text.real
    if place in _OFFSETS:
        own = _OFFSETS[place]
        others = [text.stands(offset) for offset in _OFFSETS.values() if offset != own]
        found = _neighbour(text.stands(own) & ~others[0] & ~others[1], -own, False)
    inner = found & _neighbour(text.real, -1, False)  # the logits before them are compared
    return inner if inner.any() else found


def _copying(module: nn.Module, text: _Text, forward: Forward | None) -> float:
    """Return the mean probability of the token just read, where it is not the next.

    Raises:
        ValueError: if logits and labels disagree in batch or time, or if a label is not a class.
    """
    tokens, labels = text.batch[text.key], text.labels
    with observing(module), torch.no_grad():
        logits = logits_of(call_module(module, text.batch, forward=forward))
    if logits.ndim != 3 or logits.shape[:2] != labels.shape:
        raise ValueError(
            f"the logits of {type(module).__name__} are {tuple(logits.shape)} for labels {tuple(labels.shape)}: "
            "expected (batch, time, classes). Use one label per position, -100 for none. If labels are the next "
            "tokens, leave out the last input. Or set `forward:`, a function (module, batch) -> logits of all positions"
        )
    known = labels[labels != IGNORED]
    if known.numel() and not 0 <= int(known.min()) <= int(known.max()) < logits.shape[2]:
        raise ValueError(
            f"labels are from {int(known.min())} to {int(known.max())}, expected {IGNORED} (none) or 0 to "
            f"{logits.shape[2] - 1}, the classes of {type(module).__name__}: use the module's tokenizer"
        )
    if logits.shape[:2] != tokens.shape:
        return 0.0
    other = text.real & _neighbour(text.real, 1, False) & (tokens != _neighbour(tokens, 1, IGNORED))
    other &= (tokens >= 0) & (tokens < logits.shape[2])
    read = logits[other].float().log_softmax(-1).gather(1, tokens[other][:, None])
    return float(read.exp().mean()) if len(read) else 0.0


def _decided(name: str, place: str, seen: str, effects: TokenEffects) -> tuple[LabelConvention, str]:
    """Return the convention, and the measurement for it as a continuation of ``seen``."""
    if place not in _OFFSETS:
        return "aligned", ""
    own, earlier = -_OFFSETS[place], -_OFFSETS[place] - 1
    around = [effects.depends(own - 1), effects.depends(own + 1)]
    why = ""
    if not effects.finite:
        why = f"the logits of {name} are not finite (NaN or infinite): start from weights that give finite logits"
    elif not effects.any:
        why = f"no token changes the logits of {name}, even with random parameters in place of zeros: check the model"
    elif effects.depends(own) is False:
        # if no token next to it is text, other tokens must have an effect
        if any(around) or around == [None, None]:
            return "aligned", ", and the logits at t do not depend on that token"
        why = f"the logits of {name} at t depend neither on that token at t nor on its neighbours: use other batches"
    elif effects.depends(own) is None or effects.depends(earlier) is None:
        why = "the rows are too short to measure which logits predict the labels: use longer rows"
    elif effects.depends(earlier) is False:
        return "next", ", and the logits at t depend on that token, but the logits at t - 1 do not"
    if why:
        raise ValueError(f"lmdyn cannot determine the label convention: {seen}, and {why}. Or {_DECLARE}")
    raise ValueError(
        f"{seen}. {name} reads this token before {name} predicts the label, with `labels: aligned` and also with "
        "`labels: next`. The model can copy the label, so the loss is meaningless. If lmdyn changes the token, the "
        f"logits at the label's position t change by {effects.changes[own]:.1g}, and the logits at t - 1 change by "
        f"{effects.changes[earlier]:.1g} (relative to the size of the logits; threshold {effects.threshold:.1g}). Add "
        "a causal mask, or mask the labels in the input (DataCollatorForLanguageModeling(mlm=True)). If the model is "
        f"meant to read the label, declare the convention: {_DECLARE}"
    )
