"""How a module that lmdyn has not seen reads its batches: measured once, for all observers of the same text."""

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import capture, observing, resolve_sites
from lmdyn.analysis.inspection.batches import seen, text_of, unread_entries
from lmdyn.analysis.inspection.forward import Forward, call_module, device_of, logits_of
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
from lmdyn.callbacks.observing.run import announce

__all__ = [
    "Labels",
    "SiteChoice",
    "choose_sites",
    "declared_labels",
    "read_module",
]

log = logging.getLogger(__name__)

T = TypeVar("T")

Labels = Literal["auto", "aligned", "next"]
"""What a label means: ``aligned``, it belongs to the logits of its own place, ``next``, to those one place before."""

ModelKind = Literal["masked", "causal"]

SiteChoice = Mapping[str, str] | str | None
"""Sites as they are given: display name to module path, ``auto``, a pattern of paths, or None for the default."""

_FIRST = 4  # batches that decisions are made on


def declared_labels(probe: ProbeSet) -> LabelConvention | None:
    """What the loader says its labels mean, as lmdyn's do; None where it says nothing.

    An ``objective`` of a datamodule of one's own says nothing of it: Hugging Face's causal labels are shifted inside.
    """
    return probe.loader.label_convention if offers(probe.loader, HasLabelConvention) else None


def read_module(
    module: nn.Module,
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
    """What labels mean to a module, and a refusal of modules that cannot be observed; every rank must enter.

    Args:
        module: the module.
        probe: the probe set.
        forward: how the module is called.
        tokenizer: the run's, or None.
        whose: the observer, for messages.
        labels: what they mean where it is known; None measures it.
        uses_labels: whether the observer's numbers depend on labels; None: where there are any.
        kind: the only kind of model that it looks at.
        one_pass: whether it looks at the module's answers to the batches of its probe set.

    Returns:
        What the labels mean; None where it is not known and nobody asks.

    Raises:
        ValueError: a module that cannot be called, or answers something else; labels whose meaning cannot be told; a
            model of the other kind.
    """
    if one_pass:
        _check_answer(module, probe, forward, tokenizer, whose, uses_labels is not False)
    if kind is not None:
        _check_kind(module, probe, forward, kind, whose)
    if labels == "aligned" and uses_labels and one_pass and not _labelled(module, probe):
        raise ValueError(
            f"{whose}: the batches have no `labels`, only {sorted(_first_batches(module, probe)[0])}, and `labels: "
            "aligned` says that they belong to the logits of their own place: give them, or `labels: next` for a "
            "causal model, whose labels are then its tokens"
        )
    if labels is not None or (uses_labels is False and not one_pass):
        return labels
    return _decide_labels(module, probe, forward, whose=whose, needed=uses_labels)


def _decide_labels(
    module: nn.Module, probe: ProbeSet, forward: Forward | None, *, whose: str, needed: bool | None
) -> LabelConvention:
    """What labels mean, measured; a ValueError where it cannot be told and is needed (None: where there are any)."""
    try:
        found = _measured(module, probe, forward)
    except ValueError as error:
        if needed or (needed is None and _labelled(module, probe)):
            raise ValueError(f"{whose}: {error}") from error
        return "aligned"
    announce(whose, found.reason)
    if found.warning and rank_and_world_size()[0] == 0:
        log.warning("%s: %s", whose, found.warning)
    return found.convention


def _check_kind(
    module: nn.Module, probe: ProbeSet, forward: Forward | None, kind: ModelKind, whose: str
) -> None:
    """Refuse a model of the other kind, by measurement.

    Raises:
        ValueError: a causal model where a masked one is looked at, or the reverse.
    """
    if kind == "masked" and is_encoder_decoder(module):
        raise ValueError(
            f"{whose} looks at masked language models, and {type(module).__name__} is an encoder-decoder, whose "
            "decoder predicts the next of its own tokens; LearningCurves looks at models of any kind"
        )

    def measure() -> Reading:
        try:
            return model_reading(module, _first_batches(module, probe)[0], forward)
        except Exception as error:  # such as of a module that is called with `predict`
            log.debug("%s: what the model reads is not measured: %s", whose, error)
            return "unknown"

    reading = _once(module, probe, "kind", forward, measure)
    if reading == {"masked": "causal", "causal": "bidirectional"}[kind]:
        effect = "no" if reading == "causal" else "a"
        raise ValueError(
            f"{whose} looks at {kind} language models, and {type(module).__name__} is none: {effect} later token "
            "changes its logits; LearningCurves looks at models of any kind"
        )


def _measured(module: nn.Module, probe: ProbeSet, forward: Forward | None) -> LabelDecision:
    """What the labels of a probe set mean to a module; see :func:`label_convention`. Every rank must enter.

    Of batches without labels the tokens themselves are the labels, of a causal model.

    Raises:
        ValueError: batches whose labels contradict the model, or a model that is not causal and batches without labels.
    """

    def measure() -> LabelDecision:
        batches = _first_batches(module, probe)
        labelled = [b if "labels" in b else {**b, "labels": _own_tokens(b)} for b in batches]
        if all("labels" in b for b in batches):
            return label_convention(module, labelled, forward)
        if unread := unread_entries(batches[0]):
            raise ValueError(
                f"the batches have no `labels`, but {unread}, of the shape of input_ids: if they are labels, name "
                f"them, `batch: {{labels: {unread[0]}}}`; if not, and the model is causal, say `labels: next`: the "
                "tokens themselves are then its labels"
            )
        try:
            decision = label_convention(module, labelled, forward)
        except ValueError:
            decision = None
        if decision is None or decision.convention != "next":
            raise ValueError(
                f"the batches have no `labels`, only {sorted(batches[0])}, and the model is not causal: its "
                "predictions depend on the tokens that they are of; give batches with masks and labels, such as those "
                "of DataCollatorForLanguageModeling or PretrainingCorpus"
            )
        return replace(
            decision, reason=f"the batches have no labels, their tokens are taken: {decision.reason}"
        )

    decision = _once(module, probe, "labels", forward, measure)
    return gather(decision)[0]  # the same on all ranks


def _found_sites(module: nn.Module, probe: ProbeSet, forward: Forward | None) -> FoundSites:
    """The sites of a module, found in a forward pass of the first batch; see :func:`find_sites`."""

    def find() -> FoundSites:
        found = find_sites(module, _first_batches(module, probe)[0], forward)
        for sentence in found.left_out:
            announce(f"sites of {type(module).__name__}", sentence)
        return found

    return _once(module, probe, "sites", forward, find)


def choose_sites(
    choice: SiteChoice,
    default: Mapping[str, str] | None,
    module: nn.Module,
    probe: Callable[[], ProbeSet],
    forward: Forward | None,
    *,
    whose: str,
    kinds: tuple[Kind, ...] = ("embedding", "block", "norm"),
    attention: bool = False,
) -> dict[str, str]:
    """The sites that an observer looks at: those given, a default that this module has, or those that are found.

    Args:
        choice: what the observer was given.
        default: what None stands for where all of it exists.
        module: the module.
        probe: returns the probe set, whose first batch is run where sites have to be found.
        forward: how the module is called.
        whose: the observer, for messages.
        kinds: which of the found sites it looks at.
        attention: attention modules are looked for.

    Returns:
        Display name to module path, not empty but where an empty mapping was given.

    Raises:
        ValueError: paths that do not exist, patterns that match nothing or too much, or nothing found.
    """
    if isinstance(choice, Mapping):
        resolve_sites(module, choice)
        return dict(choice)
    if choice is None and default is not None:
        try:
            resolve_sites(module, default)
            if not (attention and default) or _answer_weights(module, default, probe(), forward):
                return dict(default)
        except ValueError:
            pass
    if isinstance(choice, str) and choice != "auto":
        return match_sites(module, choice)
    found = _found_sites(module, probe(), forward)
    if attention:
        sites = dict(found.attention)
    else:
        sites = {name: path for name, path in found.sites.items() if found.kinds[name] in kinds}
    if any(name.startswith("encoder_") for name in sites):  # the decoder stands at other tokens
        left_out = [name for name in sites if name.startswith("decoder_")]
        sites = {name: path for name, path in sites.items() if name not in left_out}
        if left_out:
            announce(
                whose, f"the sites of the decoder are left out, it reads other tokens: {', '.join(left_out)}"
            )
    if not sites:
        what = "attention module that answers weights" if attention else " or ".join(kinds)
        raise ValueError(
            f"{whose}: no {what} was found in {type(module).__name__} ({'; '.join(found.left_out) or 'no sites'}): "
            f"name sites yourself, `{'attention_' if attention else ''}sites: {{name: path}}`"
        )
    announce(whose, f"sites found: {', '.join(f'{name} ({path})' for name, path in sites.items())}")
    return sites


def _answer_weights(
    module: nn.Module, sites: Mapping[str, str], probe: ProbeSet, forward: Forward | None
) -> bool:
    """Whether all these attention modules are run and answer weights: fused ones, and RWKV's, do not."""

    def measure() -> bool:
        with observing(module), torch.no_grad(), capture(module, {}, attention_sites=sites) as seen:
            try:
                call_module(module, _first_batches(module, probe)[0], forward=forward)
                return bool(seen.attentions)
            except RuntimeError:
                return False

    return _once(module, probe, f"attention of {sorted(sites.items())}", forward, measure)


def _check_answer(
    module: nn.Module, probe: ProbeSet, forward: Forward | None, tokenizer: Any, whose: str, labels: bool
) -> None:
    """Call the module on the first batch, and refuse, in one error, what no observation could be made of.

    The arguments are those of :func:`read_module`; ``labels``: whether the logits are to fit them.

    Raises:
        ValueError: no batch; a call that fails; no logits, or of another shape; more token ids than embeddings.
    """

    def check() -> ValueError | None:
        try:
            _check_logits(module, _first_batches(module, probe)[0], forward, tokenizer, labels)
        except ValueError as error:
            return error
        return None

    error = _once(module, probe, f"answer {labels}", forward, check)
    if error is not None:
        raise ValueError(f"{whose}: {error}") from error.__cause__


def _check_logits(
    module: nn.Module, batch: Mapping[str, Any], forward: Forward | None, tokenizer: Any, fits: bool
) -> None:
    text = text_of(batch)
    with observing(module), torch.no_grad(), _checked_embeddings(module, text, tokenizer):
        try:
            output = call_module(module, batch, forward=forward)
        except ValueError as error:
            if _by_lmdyn(error):
                raise
            raise ValueError(_failed(module, batch, error)) from error
        except Exception as error:
            raise ValueError(_failed(module, batch, error)) from error
        logits = logits_of(output)
    if not fits:
        return
    labels = batch.get("labels")
    expected = labels.shape if isinstance(labels, Tensor) else text.shape
    if logits.ndim != 3 or logits.shape[:2] != expected:
        raise ValueError(
            f"{type(module).__name__} answers logits {tuple(logits.shape)} for labels {tuple(expected)}: expected "
            "(batch, time, classes), one row of logits a label; give `forward:`, a function (module, batch) -> logits"
        )
    if bool((logits >= 0).all()) and bool(((logits.float().sum(-1) - 1).abs() < 1e-3).all()):
        raise ValueError(
            f"{type(module).__name__} answers probabilities, and logits are expected: give `forward:`, a function "
            "(module, batch) -> log-probabilities or logits"
        )
    if isinstance(labels, Tensor) and int(labels.max()) >= logits.shape[2]:
        raise ValueError(
            f"labels go up to {int(labels.max())}, and {type(module).__name__} answers {logits.shape[2]} classes: is "
            "the tokenizer that of another model? (model.resize_token_embeddings, or the model's own tokenizer)"
        )


def _failed(module: nn.Module, batch: Mapping[str, Any], error: Exception) -> str:
    reason = " ".join(str(error).split())
    return (
        f"{type(module).__name__} could not be called on the first batch, {seen(batch)}: {type(error).__name__}: "
        f"{reason[:300]}; name the batch's entries by `batch: {{input_ids: …}}`, or give `forward:`, a function "
        "(module, batch) -> logits"
    )


def _by_lmdyn(error: BaseException) -> bool:
    """Whether the error was raised by lmdyn's own code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).startswith("lmdyn.")


@contextmanager
def _checked_embeddings(module: nn.Module, text: Tensor, tokenizer: Any) -> Iterator[None]:
    """Ids beyond the rows of an embedding are an error with a remedy within; on a GPU they would end the process."""

    def check(embedding: nn.Module, args: tuple[Any, ...]) -> None:
        ids = args[0] if args else None
        if not isinstance(ids, Tensor) or ids.is_floating_point() or not ids.numel():
            return
        rows = cast(nn.Embedding, embedding).num_embeddings
        tokens = (
            len(tokenizer)
            if isinstance(tokenizer, Sized) and ids.shape == text.shape and torch.equal(ids, text)
            else 0
        )
        if max(int(ids.max()) + 1, tokens) > rows:
            what = (
                f"the tokenizer has {tokens} tokens"
                if tokens > rows
                else f"token ids go up to {int(ids.max())}"
            )
            raise ValueError(
                f"{what}, and an embedding of {type(module).__name__} has {rows} rows: give the model's own tokenizer, "
                "or model.resize_token_embeddings(len(tokenizer)) before it is trained"
            )

    plain = [
        m for m in module.modules() if type(m).forward is nn.Embedding.forward
    ]  # no positions by other names
    handles = [m.register_forward_pre_hook(check) for m in plain]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _first_batches(module: nn.Module, probe: ProbeSet) -> list[dict[str, Any]]:
    """The first batches of all ranks together, on the module's device."""
    device = device_of(module)
    whole = ProbeSet(probe.loader, max_tokens=probe.max_tokens, names=probe.names)
    batches: list[dict[str, Any]] = []
    for number, batch in enumerate(whole.batches()):
        labels = batch.get("labels")
        if number >= 16 * _FIRST or len(batches) == _FIRST:
            break
        if not isinstance(labels, Tensor) or bool((labels >= 0).any()) or not number:
            batches.append(to_device(batch, device))
    if not batches or not len(text_of(batches[0])):
        raise ValueError(
            "the probe set is empty: there is nothing to observe in it; give other data, or a `probe`"
        )
    return batches


def _labelled(module: nn.Module, probe: ProbeSet) -> bool:
    try:
        return any("labels" in batch for batch in _first_batches(module, probe))
    except ValueError:  # no batch at all
        return False


def _own_tokens(batch: Mapping[str, Any]) -> Tensor:
    ids = text_of(batch)
    mask = batch.get("attention_mask")
    return ids if mask is None else ids.masked_fill(mask == 0, -100)


_KNOWN: "WeakKeyDictionary[nn.Module, dict[Hashable, tuple[Any, Any]]]" = WeakKeyDictionary()
"""What was measured of each module, with the loader that it was measured on."""


def _once(
    module: nn.Module, probe: ProbeSet, what: str, forward: Forward | None, measure: Callable[[], T]
) -> T:
    """A measurement that all observers of a module on the same batches share."""
    known = _KNOWN.setdefault(module, {})
    key = (what, id(probe.loader), probe.identity, forward)
    if key not in known:
        known[key] = (probe.loader, measure())  # the loader is kept: its id is then no other's
    return cast(T, known[key][1])
