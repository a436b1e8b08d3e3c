"""Determination of how a new module reads its batches: measured once, for all observers of the same text."""

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from traceback import walk_tb
from typing import Any, Literal, TypeVar, cast
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn import Module

from lmdyn.analysis.inspection.activations import capture, observing, resolve_sites
from lmdyn.analysis.inspection.batches import padding_mask, seen, text_labels, text_of, unread_entries
from lmdyn.analysis.inspection.forward import IGNORED, Forward, call_module, device_of, logits_of
from lmdyn.analysis.inspection.label_convention import (
    LabelConvention,
    LabelDecision,
    Reading,
    label_convention,
    model_reading,
)
from lmdyn.analysis.inspection.sites import FoundSites, Kind, find_sites, match_sites
from lmdyn.analysis.inspection.transformer import is_encoder_decoder
from lmdyn.analysis.statistics.distributed import gather, rank_and_world_size
from lmdyn.callbacks.observing.probe import ProbeSet, to_device
from lmdyn.callbacks.observing.protocols import HasLabelConvention, offers
from lmdyn.callbacks.observing.run import report, warn

log = logging.getLogger(__name__)

T = TypeVar("T")

Labels = Literal["auto", "aligned", "next"]
"""Convention of labels: ``aligned`` (with the logits of the same position) or ``next`` (of the previous one)."""

ModelKind = Literal["masked", "causal"]

SiteChoice = Mapping[str, str] | str | None
"""Sites as given by the user: display name to module path, ``auto``, a pattern of paths, or None for the default."""

_FIRST = 4  # number of batches for decisions


def declared_labels(probe: ProbeSet) -> LabelConvention | None:
    """Return the label convention that the loader declares, as lmdyn's do; None if it declares none.

    The ``objective`` of a user's datamodule does not determine it: Hugging Face's causal labels are shifted inside.
    """
    return probe.loader.label_convention if offers(probe.loader, HasLabelConvention) else None


def read_module(
    module: Module,
    probe: ProbeSet,
    forward: Forward | None,
    tokenizer: Any,
    *,
    whose: str,
    labels: LabelConvention | None,
    uses_labels: bool | None,
    kind: ModelKind | None,
    one_pass: bool,
) -> LabelConvention | None:
    """Return the label convention of a module; raise an error if it cannot be observed. Every rank must call it.

    Args:
        module: the module.
        probe: the probe set.
        forward: function that calls the module.
        tokenizer: the run's tokenizer, or None.
        whose: the observer, for messages.
        labels: label convention if it is known; None measures it.
        uses_labels: whether the observer's numbers depend on labels; None: if there are any.
        kind: the only kind of model that it supports.
        one_pass: whether it uses the module's outputs for the batches of its probe set.

    Returns:
        The label convention; None if it is unknown and not required.

    Raises:
        ValueError: if the module cannot be called or returns no logits, if the label convention cannot be determined,
            or for a model of the other kind.
    """
    if one_pass:
        fits = uses_labels is not False
        check = partial(_check_logits, module, probe, forward, tokenizer, fits)
        try:
            _once(module, probe, f"answer {fits}", forward, check)
        except ValueError as error:
            raise ValueError(f"{whose}: {error}") from error.__cause__
    if kind is not None:
        check_kind(module, probe, forward, kind, whose)
    if labels == "aligned" and uses_labels and one_pass and not _labelled(module, probe):
        raise ValueError(
            f"{whose}: `labels: aligned` requires batches with `labels`, got "
            f"{', '.join(_first_batches(module, probe)[0])}. Add labels to the batches, or set `labels: next` to use "
            "the tokens as labels of a causal model"
        )
    if uses_labels is not False and declared_labels(probe) is None and rank_and_world_size()[0] == 0:
        padding = partial(_report_padding, module, probe, tokenizer, whose)
        _once(module, probe, f"padding of {probe.max_tokens} tokens", None, padding)
    if labels is not None or (uses_labels is False and not one_pass):
        return labels
    measure = partial(_measured, module, probe, forward)
    try:
        found = gather(_once(module, probe, "labels", forward, measure))[0]  # equal on all ranks
    except ValueError as error:
        if uses_labels or (uses_labels is None and _labelled(module, probe)):
            raise ValueError(f"{whose}: {error}") from error
        return "aligned"
    report(whose, found.reason)
    if found.warning:
        warn(whose, found.warning)
    return found.convention


def _report_padding(module: Module, probe: ProbeSet, tokenizer: Any, whose: str) -> None:
    """Warn of labels on padding, and of padding without a mask."""
    pad = _pad_id(module, tokenizer)
    decodes = is_encoder_decoder(module)
    labels = on_padding = rows = padded = 0
    for _, batch in probe.given():
        ids, padding = text_of(batch), padding_mask(batch, decodes)
        of_text = batch.get("labels", ids)
        if padding is not None:
            labels += int((of_text != IGNORED).sum())
            on_padding += int((of_text != IGNORED)[padding].sum())
        elif ids.shape == of_text.shape and ids.shape[1] > 1 and not decodes:
            begins, ends = (
                (ids[:, side] == pad).all(1) & (of_text[:, side] != IGNORED).any(1)
                for side in (slice(2), slice(-2, None))
            )
            rows = rows + len(ids)
            padded = padded + int((begins | ends).sum())
    if on_padding:
        warn(
            whose,
            f"the probe set has labels on padding (attention_mask 0; {on_padding} of {labels} labels). Observers leave "
            "out these labels, but the model's own loss may count these labels. Set labels on padding to -100",
        )
    if padded:
        warn(
            whose,
            f"the probe set has rows that begin or end with two or more padding tokens (id {pad}; {padded} of {rows} "
            "rows), but the batches have no attention_mask. Observers count such padding as text. Add an "
            "attention_mask, or set the labels of padding to -100",
        )


def _pad_id(module: Module, tokenizer: Any) -> int:
    """Return the id of padding by tokenizer or configuration; -1 if neither has one."""
    configs = (getattr(m, "config", None) for m in module.modules())
    ids = (getattr(owner, "pad_token_id", None) for owner in (tokenizer, *configs))
    return next((i for i in ids if isinstance(i, int)), -1)


def check_kind(module: Module, probe: ProbeSet, forward: Forward | None, kind: ModelKind, whose: str) -> None:
    """Raise an error for a model of the other kind, by measurement.

    Raises:
        ValueError: for a causal model if a masked one is expected, or the reverse.
    """
    if kind == "masked" and is_encoder_decoder(module):
        raise ValueError(
            f"{whose} requires a masked model, but {type(module).__name__} is an encoder-decoder. Use LearningCurves, "
            "which supports models of any kind"
        )

    def measure() -> Reading:
        try:
            return model_reading(module, _first_batches(module, probe)[0], forward)
        except Exception as error:  # for example, for a module that is called with `predict`
            log.debug("%s: lmdyn could not measure whether the model is causal: %s", whose, error)
            return "unknown"

    reading = _once(module, probe, "kind", forward, measure)
    if reading == {"masked": "causal", "causal": "bidirectional"}[kind]:
        raise ValueError(
            f"{whose} requires a {kind} model, but {type(module).__name__} is {reading}: "
            f"{'no' if reading == 'causal' else 'a'} later token changes the logits. Use LearningCurves for such models"
        )


def _measured(module: Module, probe: ProbeSet, forward: Forward | None) -> LabelDecision:
    """Measure the label convention of a probe set for a module; see :func:`label_convention`. Every rank must call it.

    For batches without labels, the tokens themselves are the labels of a causal model.

    Raises:
        ValueError: if labels contradict the model, or if the model is not causal and the batches have no labels.
    """
    batches = _first_batches(module, probe)
    labelled = [b if "labels" in b else text_labels({**b, "labels": text_of(b)}) for b in batches]
    if all("labels" in b for b in batches):
        return label_convention(module, labelled, forward)
    if unread := unread_entries(batches[0]):
        raise ValueError(
            f"the batches have no `labels`, but have {', '.join(unread)} with the shape of input_ids. If {unread[0]} "
            f"contains labels, set `batch: {{labels: {unread[0]}}}`. Otherwise, set `labels: next` to use the tokens "
            "as labels of a causal model"
        )
    try:
        decision = label_convention(module, labelled, forward)
    except ValueError:
        decision = None
    if decision is None or decision.convention != "next":
        raise ValueError(
            f"expected `labels` in the batches, got {', '.join(batches[0])}. The tokens can be the labels of a causal "
            "model only. If the model is causal, set `labels: next`; otherwise use batches with masks and labels from "
            "DataCollatorForLanguageModeling or PretrainingCorpus"
        )
    reason = f"the batches have no labels, so the tokens are the labels: {decision.reason}"
    return replace(decision, reason=reason)


def choose_sites(
    choice: SiteChoice,
    default: Mapping[str, str] | Callable[[Module], Mapping[str, str]] | None,
    module: Module,
    probe: Callable[[], ProbeSet],
    forward: Forward | None,
    *,
    whose: str,
    kinds: tuple[Kind, ...] = ("embedding", "block", "norm"),
    attention: bool = False,
) -> dict[str, str]:
    """Choose the sites of an observer: the given ones, a default that the module has, or found sites.

    Args:
        choice: argument of the observer.
        default: sites for None, if the module has all of them; or a function of the module that raises a ValueError if
            it has none.
        module: the module.
        probe: function that returns the probe set, whose first batch is used to find sites.
        forward: function that calls the module.
        whose: the observer, for messages.
        kinds: kinds of sites to use if sites are found.
        attention: whether to find attention modules.

    Returns:
        Module path by display name; empty only if an empty mapping was given.

    Raises:
        ValueError: if paths do not exist, if patterns match nothing or too much, or if no site is found.
    """
    if isinstance(choice, Mapping):
        resolve_sites(module, choice)
        return dict(choice)
    if choice is None and default is not None:
        try:
            default = default(module) if callable(default) else default
            resolve_sites(module, default)
            if not (attention and default) or _answer_weights(module, default, probe(), forward):
                return dict(default)
        except ValueError:
            pass
    if isinstance(choice, str) and choice != "auto":
        return match_sites(module, choice)

    def find() -> FoundSites:
        found = find_sites(module, _first_batches(module, probe())[0], forward)
        for sentence in found.left_out:
            report(f"sites of {type(module).__name__}", sentence)
        return found

    found = _once(module, probe(), "sites", forward, find)
    if attention:
        sites = dict(found.attention)
    else:
        sites = {name: path for name, path in found.sites.items() if found.kinds[name] in kinds}
    if any(name.startswith("encoder_") for name in sites):  # the decoder reads other tokens
        left_out = [name for name in sites if name.startswith("decoder_")]
        sites = {name: path for name, path in sites.items() if name not in left_out}
        if left_out:
            report(
                whose,
                f"lmdyn leaves out the decoder's sites because the decoder reads other tokens: {', '.join(left_out)}",
            )
    if not sites:
        what = "attention module that returns weights" if attention else " or ".join(kinds)
        raise ValueError(
            f"{whose}: lmdyn found no {what} in {type(module).__name__} ({'; '.join(found.left_out) or 'no candidate'})"
            f": name sites yourself, `{'attention_' if attention else ''}sites: {{name: path}}`"
        )
    report(whose, f"sites found: {', '.join(f'{name} ({path})' for name, path in sites.items())}")
    return sites


def _answer_weights(
    module: Module, sites: Mapping[str, str], probe: ProbeSet, forward: Forward | None
) -> bool:
    """Return whether these attention modules all run and return weights: fused ones, and those of RWKV, do not."""

    def measure() -> bool:
        with observing(module), torch.no_grad(), capture(module, {}, attention_sites=sites) as seen:
            try:
                call_module(module, _first_batches(module, probe)[0], forward=forward)
                return bool(seen.attentions)
            except RuntimeError:
                return False

    return _once(module, probe, f"attention of {sorted(sites.items())}", forward, measure)


def _check_logits(
    module: Module, probe: ProbeSet, forward: Forward | None, tokenizer: Any, fits: bool
) -> None:
    """Call the module on the first batch, and report, in one error, what prevents observations.

    The arguments are those of :func:`read_module`; ``fits``: whether the logits must fit the labels.

    Raises:
        ValueError: if there is no batch, if the call fails, if it returns no logits or logits of another shape, or if
            there are more token ids than embeddings.
    """
    batch = _first_batches(module, probe)[0]
    text = text_of(batch)
    with observing(module), torch.no_grad(), _checked_embeddings(module, text, tokenizer):
        try:
            output = call_module(module, batch, forward=forward)
        except Exception as error:
            if isinstance(error, ValueError) and _by_lmdyn(error):
                raise
            reason = " ".join(str(error).split())[:300]
            raise ValueError(
                f"lmdyn could not call {type(module).__name__} on the first batch, {seen(batch)}: "
                f"{type(error).__name__}: {reason}. Name the batch's entries with `batch: {{input_ids: …}}`, or pass "
                "`forward:`, a function (module, batch) -> logits"
            ) from error
        logits = logits_of(output)
    if not fits:
        return
    labels = batch.get("labels")
    expected = labels.shape if isinstance(labels, Tensor) else text.shape
    if logits.ndim != 3 or logits.shape[:2] != expected:
        raise ValueError(
            f"{type(module).__name__} returns logits {tuple(logits.shape)} for labels {tuple(expected)}: expected "
            "logits (batch, time, classes), one vector per label. Pass `forward:`, a function (module, batch) -> logits"
        )
    of_one = (logits.float().sum(-1) - 1).abs() < 1e-3
    if (logits >= 0).all() and of_one.all():
        raise ValueError(
            f"{type(module).__name__} returns probabilities, but lmdyn expects logits. Pass `forward:`, a function "
            "(module, batch) -> log-probabilities or logits"
        )
    if isinstance(labels, Tensor) and int(labels.max()) >= logits.shape[2]:
        raise ValueError(
            f"labels go up to {int(labels.max())}, but {type(module).__name__} returns {logits.shape[2]} classes: use "
            "the model's own tokenizer, or call model.resize_token_embeddings before training"
        )


def _by_lmdyn(error: BaseException) -> bool:
    """Return whether the error was raised by lmdyn's own code."""
    *_, (raising, _) = walk_tb(error.__traceback__)
    return str(raising.f_globals.get("__name__", "")).startswith("lmdyn.")


@contextmanager
def _checked_embeddings(module: Module, text: Tensor, tokenizer: Any) -> Iterator[None]:
    """Raise an error with a remedy for ids beyond the rows of an embedding; on a GPU they would end the process."""

    def check(embedding: Any, args: tuple[Any, ...]) -> None:
        ids = args[0] if args else None
        if not isinstance(ids, Tensor) or ids.is_floating_point() or not ids.numel():
            return
        rows, highest = embedding.num_embeddings, int(ids.max())
        same = isinstance(tokenizer, Sized) and ids.shape == text.shape and torch.equal(ids, text)
        tokens = len(tokenizer) if same else 0
        if max(highest + 1, tokens) > rows:
            over = tokens > rows
            what = f"the tokenizer has {tokens} tokens" if over else f"token ids go up to {highest}"
            raise ValueError(
                f"{what}, but an embedding of {type(module).__name__} has {rows} rows: use the model's own tokenizer, "
                "or call model.resize_token_embeddings(len(tokenizer)) before training"
            )

    with ExitStack() as hooks:
        for m in module.modules():
            if type(m).forward is nn.Embedding.forward:  # excludes positions with other names
                hooks.enter_context(m.register_forward_pre_hook(check))
        yield


def _first_batches(module: Module, probe: ProbeSet) -> list[dict[str, Any]]:
    """Return the first batches of all ranks together, on the module's device."""
    device = device_of(module)
    whole = ProbeSet(probe.loader, names=probe.names)
    batches: list[dict[str, Any]] = []
    for number, batch in enumerate(whole.batches()):
        labels = batch.get("labels")
        if number >= 16 * _FIRST or len(batches) == _FIRST:
            break
        if not isinstance(labels, Tensor) or (labels >= 0).any() or not number:
            batches.append(to_device(batch, device))
    if not batches or not len(text_of(batches[0])):
        raise ValueError("the probe set is empty: use other data, or pass a `probe`")
    return batches


def _labelled(module: Module, probe: ProbeSet) -> bool:
    try:
        return any("labels" in batch for batch in _first_batches(module, probe))
    except ValueError:  # no batch at all
        return False


_KNOWN: "WeakKeyDictionary[Module, dict[Hashable, tuple[Callable[[], Any], Any]]]" = WeakKeyDictionary()
"""Results of measurements by module, with a reference to the data on which they were made."""


def _once(module: Module, probe: ProbeSet, what: str, forward: Forward | None, measure: Callable[[], T]) -> T:
    """Return a measurement that all observers of a module on the same data share."""
    known = _KNOWN.setdefault(module, {})
    key = (what, probe.source, forward)
    of, result = known.get(key, (None, None))
    # without a fingerprint, data is told apart by its id, which another object gets when it is gone
    if of is None or (probe.fingerprint is None and of() is not probe.data):
        result = measure()
        known[key] = _reference(probe.data), result
    return cast(T, result)


def _reference(data: Any) -> Callable[[], Any]:
    """Return a weak reference, if possible: data may refer to the trainer, and so to the module."""
    try:
        return ref(data)
    except TypeError:
        return lambda: data
