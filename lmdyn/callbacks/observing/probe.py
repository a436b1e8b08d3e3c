"""The probe set of an observer, and the pass over it that observers share."""

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import Module
from torch.utils.data import DataLoader

from lmdyn.analysis.inspection.activations import capture, observing
from lmdyn.analysis.inspection.batches import (
    documents_of,
    drawn_alike,
    in_order,
    labels_of,
    named_batch,
    next_token_labels,
    own_copy,
    targets_of,
    text_labels,
    text_of,
    tokens_of,
    whole_numbers,
)
from lmdyn.analysis.inspection.forward import (
    IGNORED,
    Batch,
    Forward,
    call_module,
    device_of,
    is_sharded,
    logits_of,
    token_losses,
)
from lmdyn.analysis.inspection.label_convention import LabelConvention
from lmdyn.analysis.statistics.distributed import gather, rank_and_world_size
from lmdyn.callbacks.observing.protocols import (
    HasFingerprint,
    HasLabelNames,
    Limitable,
    Rebatchable,
    Recuttable,
    Resumable,
    Shardable,
    offers,
)
from lmdyn.callbacks.observing.run import report
from lmdyn.callbacks.training.lightning_internals import tree_map_only

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ObservedBatch:
    """One batch of the probe set with the outputs of the model.

    Attributes:
        batch: the batch on the model's device.
        logits: (batch, time, classes), detached.
        rows: (batch,) long number of the stream or example of each row, independent of the number of ranks.
        start: (batch,) long number of positions of its stream before each row.
        activations: detached activation by site.
        gradients: gradient of the summed token loss with respect to the activation, by site.
        attentions: weights (batch, heads, query, key) by attention site, or what :attr:`Watch.read` returns of them.
        losses_once: function that computes :attr:`losses` once for all consumers of this batch; None computes them
            here.
    """

    batch: Batch
    logits: Tensor
    rows: Int[Tensor, "batch"]
    start: Int[Tensor, "batch"]
    activations: Mapping[str, Tensor] = field(default_factory=dict)
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    attentions: Mapping[str, Any] = field(default_factory=dict)
    losses_once: Callable[[], Tensor] | None = None

    @cached_property
    def losses(self) -> Float[Tensor, "batch time"]:
        """Token losses in nats, 0 if there is no label, detached; computed on access."""
        if self.losses_once is not None:
            return self.losses_once()
        return token_losses(self.logits.float(), self.labels)

    @property
    def labels(self) -> Int[Tensor, "batch time"]:
        """Labels to predict at each position, -100 for none."""
        return labels_of(self.batch)

    @property
    def tokens(self) -> Bool[Tensor, "batch time"]:
        """Mask of positions with a token of the text, that is, all except padding."""
        return tokens_of(self.batch)


class Consumer(Protocol):
    """Consumer of the batches of a pass."""

    def update(self, seen: ObservedBatch) -> None:
        """Process one batch."""


class Accumulator(Consumer, Protocol):
    """Consumer of the batches of a pass that accumulates sums and returns a table."""

    def table(self) -> pd.DataFrame:
        """Reduce over ranks (all ranks must call it) and return columns ``quantity``, ``site``, groups, ``value``."""


class ProbeSet:
    """Batches to observe, divided among ranks so that every example is used exactly once.

    Args:
        loader: a loader that can ``shard(rank, world_size)`` and ``limit(max_tokens)`` itself (lmdyn's streams:
            ranks take whole streams), a torch ``DataLoader`` (ranks take every n-th batch of its dataset, in
            order, independent of its sampler), or any re-iterable of batches.
        max_tokens: approximate number of tokens to observe: exact for streams, in whole batches otherwise.
        identity: observers of data of equal identity share a pass; by default that of the loader, or its
            ``fingerprint`` if it has one.
        names: names of the entries in the batches by their names in lmdyn; see
            :func:`~lmdyn.analysis.inspection.batches.named_batch`.
        labels: ``next`` converts labels that causal models of transformers shift inside to those of
            :func:`~lmdyn.analysis.inspection.batches.next_token_labels`.
        decodes: whether labels belong to the text of a decoder, and not to ``input_ids``.

    Raises:
        ValueError: if ``max_tokens`` is below 1.
        TypeError: if the loader cannot be iterated over twice.

    Example:
        >>> probe = ProbeSet([{"labels": torch.zeros(2, 3)}, {"labels": torch.ones(2, 3)}], max_tokens=6)
        >>> len(list(probe.batches()))
        1
    """

    def __init__(
        self,
        loader: Iterable[Any],
        *,
        max_tokens: int | None = None,
        identity: object = None,
        names: Mapping[str, str | int] | None = None,
        labels: LabelConvention = "aligned",
        decodes: bool = False,
    ) -> None:
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}: expected a number from 1, or null for all tokens")
        if isinstance(loader, Iterator):
            raise TypeError(
                "the probe set is an iterator, which lmdyn can read only once: pass a list or a DataLoader"
            )
        self.max_tokens = max_tokens
        limited: int | None = None
        if max_tokens is not None and offers(loader, Limitable):
            loader = loader.limit(max_tokens)
            self.max_tokens = None
            limited = max_tokens
        self.loader = loader
        self.label_names: Mapping[str, Sequence[str]] = (
            loader.label_names if offers(loader, HasLabelNames) else {}
        )
        self.fingerprint: str | None = loader.fingerprint if offers(loader, HasFingerprint) else None
        self._collate = own_copy(loader.collate_fn) if isinstance(loader, DataLoader) else None
        self.names = names
        self.labels = labels
        self.decodes = decodes
        read_as = (tuple(sorted(names.items())) if names else (), labels)
        self.data: object = loader  # a reference to what has the identity: no other object gets its id
        self.source: tuple[Any, ...] = (self.fingerprint or (identity or id(loader), limited), *read_as)

    def recut(self, fingerprints: Collection[str]) -> "ProbeSet":
        """Return the same data in the batches that have one of these fingerprints; self if there are none."""
        same = not fingerprints or self.fingerprint in {None, *fingerprints}
        loader = self.loader.recut(fingerprints) if offers(self.loader, Recuttable) and not same else None
        if loader is None:
            return self
        return ProbeSet(
            loader, max_tokens=self.max_tokens, names=self.names, labels=self.labels, decodes=self.decodes
        )

    def batches(self, rank: int = 0, world_size: int = 1) -> Iterator[dict[str, Any]]:
        """Return the batches of one rank, with the names of Hugging Face and labels aligned with the logits.

        Labels on padding are -100: this is the only place where observers read batches.

        Raises:
            ValueError: if the entries of the batches are not known; see ``names``.
        """
        return (batch for _, batch in self.counted(rank, world_size))

    def counted(self, rank: int = 0, world_size: int = 1) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield :meth:`batches`, each with the number of tokens before it, of all ranks; 0 for lmdyn's streams."""
        for tokens, batch in self.given(rank, world_size):
            shifted = self.labels == "next"
            yield tokens, next_token_labels(batch) if shifted else text_labels(batch, self.decodes)

    def given(self, rank: int = 0, world_size: int = 1) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the batches of :meth:`counted` with their labels as the loader gives them."""
        if offers(self.loader, Shardable):
            yield from ((0, named_batch(b, self.names)) for b in self.loader.shard(rank, world_size))
            return
        tokens = 0
        for i, given in enumerate(drawn_alike(in_order(self.loader, self._collate))):
            batch = whole_numbers(named_batch(given, self.names))
            if i % world_size == rank:
                rows = documents_of(batch)
                if rows is not batch:
                    report(
                        "probe set",
                        "lmdyn splits rows of several documents (position_ids) into one row per document",
                    )
                if _is_padded_on_the_left(rows):
                    report(
                        "probe set",
                        "rows are padded on the left without position_ids. Models that number positions themselves "
                        "(GPT-2) then read the text at other positions than in training. Pad on the right, or add "
                        "position_ids",
                    )
                yield tokens, rows
            tokens += int((targets_of(batch) != IGNORED).sum())
            if self.max_tokens is not None and tokens >= self.max_tokens:
                return

    def of_this_rank(self, device: torch.device) -> Iterator[dict[str, Any]]:
        """Return the batches of this rank on a device."""
        return (to_device(batch, device) for batch in self.batches(*rank_and_world_size()))

    def rows(
        self, number: int, size: int, rank: int = 0, world_size: int = 1, *, streams: bool = True
    ) -> Int[Tensor, "size"]:
        """Return the numbers of the rows of a rank's batch ``number``: equal for equal text, for any number of ranks.

        Args:
            number: index of the rank's batch.
            size: number of its rows.
            rank: this process.
            world_size: number of processes.
            streams: whether rows of a batch may continue those of the previous one, and so keep their numbers.
        """
        if offers(self.loader, Shardable):  # ranks take every n-th row of each batch
            return (0 if streams else number << 24) + rank + world_size * torch.arange(size)
        return ((rank + world_size * number) << 24) + torch.arange(size)


def text_digest(probe: ProbeSet | None, module: Module) -> str | None:
    """Return a hash of the first batch of a probe set, which distinguishes data without a fingerprint."""
    if probe is None:
        return None
    with observing(module):  # a DataLoader uses the global random generator
        batch = next(iter(probe.batches()), None)
    if batch is None:
        return None
    text = text_of(batch).detach().cpu().contiguous()
    digest = hashlib.sha256(f"{tuple(text.shape)} {text.dtype}".encode() + text.numpy().tobytes())
    return digest.hexdigest()[:16]


class TrainingPart:
    """The training split of an observer's data, with the same batches at each observation.

    Args:
        observer: attached observer.
        batch_rows: rows of an update, over all ranks, for a PretrainingCorpus. Other data keeps its own batches.

    Raises:
        ValueError: if the data has no training split, or if there are fewer rows than ranks.
    """

    def __init__(self, observer: Any, batch_rows: int) -> None:
        self._observer = observer
        self._part: ProbeSet = observer.part("train")
        if (ranks := rank_and_world_size()[1]) > batch_rows:
            raise ValueError(
                f"{observer.name}: batch_rows is {batch_rows}: expected at least {ranks}, the number of ranks"
            )
        loader = self._part.loader
        # a stream resumes at its last position: each observation opens it again to read its first batches
        self._reopen = offers(loader, Resumable) and not offers(loader, Shardable)
        if offers(loader, Rebatchable):
            self._part = ProbeSet(loader.with_batch_size(batch_rows))

    @property
    def fingerprint(self) -> str | None:
        """Hash of the content; None if the loader has none."""
        return self._part.fingerprint

    def open(self) -> ProbeSet:
        """Return the batches from the first on."""
        again: ProbeSet = self._observer.part("train") if self._reopen else self._part
        return again


def texts_of(train: ProbeSet, masked: bool) -> Iterator[Any]:
    """Yield the token ids of each text of a training part, without padding.

    Rows that continue those of the batch before are one text. Of other rows of causal data, the word after the last one
    belongs to the text.

    Args:
        train: training batches.
        masked: whether ``labels`` are the tokens that were masked.
    """
    streams: list[list[Any]] = []
    for batch in train.batches():
        ids, labels = text_of(batch), labels_of(batch)
        if masked:
            ids = torch.where(labels >= 0, labels, ids)
        ids = ids.where(batch["attention_mask"].bool(), -1) if "attention_mask" in batch else ids
        if "continues" in batch:
            if len(streams) != len(ids):
                yield from map(np.concatenate, streams)
                streams = [[] for _ in ids]
            for stream, row, continues in zip(streams, ids.numpy(), batch["continues"].tolist(), strict=True):
                if not continues and stream:
                    yield np.concatenate(stream)
                    stream.clear()
                stream.append(row[row >= 0].astype(np.int32))
            continue
        if not masked:  # the word after the last one
            ids = torch.cat([ids, labels[:, -1:]], 1)
        yield from (row[row >= 0] for row in ids.numpy())
    yield from map(np.concatenate, filter(None, streams))


def _is_padded_on_the_left(batch: Batch) -> bool:
    mask = batch.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.ndim != 2 or "position_ids" in batch:
        return False
    return bool((mask[:, :1] == 0).any())


@dataclass(frozen=True)
class Watch:
    """Data that one consumer receives from each batch of a pass.

    Attributes:
        consumer: consumer of the batches.
        sites: module path by display name.
        attention_sites: the same for attention modules whose weights it reads.
        gradients: whether it reads :attr:`ObservedBatch.gradients`.
        max_tokens: number of tokens, of all ranks, after which it receives no further batches; None for all.
        read: function (batch, path of the module, weights), called when an attention module has run; the consumer
            receives what it returns, by default the weights.
    """

    consumer: Consumer
    sites: Mapping[str, str] = field(default_factory=dict)
    attention_sites: Mapping[str, str] = field(default_factory=dict)
    gradients: bool = False
    max_tokens: int | None = None
    read: Callable[[Batch, str, Tensor], Any] = lambda batch, path, weights: weights


def probe_pass(
    module: Module, probe: ProbeSet, watches: Sequence[Watch], *, forward: Forward | None = None
) -> None:
    """Run ``module`` once over this rank's share of the probe set, and pass every batch to all consumers.

    A recurrent state that the module returns as ``.state`` is carried over in rows for which the batch has
    ``continues``. Ranks that share the weights of a sharded module make the same number of forward passes: a rank with
    fewer batches than another repeats its last batch, without passing it to consumers. Must run inside
    :func:`~lmdyn.analysis.inspection.activations.observing`.

    Raises:
        ValueError: if a batch has no labels, but a consumer requires losses or gradients.
    """
    device = device_of(module)
    rank, world_size = rank_and_world_size()
    read = Reader(module, forward)
    gradients = any(w.gradients for w in watches)
    batch: Batch = {}
    before: int | None = None

    def receives(w: Watch) -> bool:
        return before is not None and (w.max_tokens is None or before < w.max_tokens)

    def of_watches(path: str, weights: Tensor) -> tuple[Any, ...]:
        wanted = [w if receives(w) and path in w.attention_sites.values() else None for w in watches]
        return tuple(w and w.read(batch, path, weights) for w in wanted)

    sites, attention_sites = (
        {path: path for paths in of for path in paths.values()}
        for of in ([w.sites for w in watches], [w.attention_sites for w in watches])
    )
    with capture(
        module, sites, attention_sites=attention_sites, gradients=gradients, read=of_watches
    ) as seen:
        start = torch.zeros(0, dtype=torch.int64)
        for number, (batch, before) in enumerate(_in_step(module, probe, rank, world_size)):
            batch = to_device(batch, device)
            size, length = text_of(batch).shape[:2]
            start = continued(batch, start)
            seen.clear()
            with torch.set_grad_enabled(gradients):
                logits = logits_of(read(batch))
                losses = token_losses(logits.float(), labels_of(batch)) if gradients else None
            grads = seen.gradients(losses.sum()) if losses is not None else {}
            if before is None:
                continue
            rows = batch.get("example")  # loaders of examples provide numbers
            if rows is None:
                rows = probe.rows(number, size, rank, world_size, streams="continues" in batch).to(device)
            known = None if losses is None else losses.detach
            whole = ObservedBatch(
                batch, logits.detach(), rows, start, seen.activations, grads, seen.attentions, known
            )
            with torch.no_grad():
                for i, watch in enumerate(watches):
                    if not receives(watch):
                        continue
                    attentions = _named(whole.attentions, watch.attention_sites)
                    view = replace(
                        whole,
                        activations=_named(whole.activations, watch.sites),
                        gradients=_named(whole.gradients, watch.sites),
                        attentions={name: found[i] for name, found in attentions.items()},
                        losses_once=partial(getattr, whole, "losses"),
                    )
                    watch.consumer.update(view)
            start = start + length
        if rank == 0 and not len(start):
            log.warning("the probe set is empty: pass at least one batch to observe")


def _named(captured: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    """Return what was captured at a consumer's sites by its names; ``name@i`` is the i-th run of a module."""
    return {
        name + found.removeprefix(path): tensor
        for name, path in paths.items()
        for found, tensor in captured.items()
        if found.partition("@")[0] == path
    }


def _in_step(
    module: Module, probe: ProbeSet, rank: int, world_size: int
) -> Iterator[tuple[dict[str, Any], int | None]]:
    """Yield this rank's batches and the tokens before each, None if it does not count.

    The number of batches is equal on ranks that share weights.
    """
    if world_size == 1 or not is_sharded(module):
        yield from ((batch, before) for before, batch in probe.counted(rank, world_size))
        return
    own = sum(1 for _ in probe.batches(rank, world_size))
    most = max(gather(own))
    batch: dict[str, Any] | None = None
    for before, batch in probe.counted(rank, world_size):
        yield batch, before
    if own < most:  # a rank without batches reads another's
        batch = batch or next(probe.batches())
        yield from [(batch, None)] * (most - own)


class Reader:
    """Calls a module on consecutive batches and carries over its recurrent state if the batches continue.

    Args:
        module: the module.
        forward: ``(module, batch) -> output`` or the dotted path to it; None calls it with the names of Hugging Face.
    """

    def __init__(self, module: Module, forward: Forward | None = None) -> None:
        self._module = module
        self._forward = forward
        self._state: Any = None

    def __call__(self, batch: Batch) -> Any:
        """Return the module's output for the next batch."""
        output = call_module(self._module, batch, forward=self._forward, state=self._state)
        self._state = tree_map_only(Tensor, Tensor.detach, getattr(output, "state", None))
        return output


def token_vectors(
    site: str, activation: Tensor, mask: Bool[Tensor, "batch time"], of: str = "the module"
) -> Float[Tensor, "batch time d"]:
    """Return an activation as one vector per token.

    Raises:
        ValueError: if batch or time differ from those of the tokens.
    """
    if activation.ndim < 3 or activation.shape[:2] != mask.shape:
        raise ValueError(
            f"site {site!r} of {of} returns {tuple(activation.shape)}, expected (batch, time, …) with (batch, time) = "
            f"{tuple(mask.shape)}: name a module that returns one vector per token, batch first"
        )
    return activation.flatten(2)


def to_device(batch: Batch, device: torch.device) -> dict[str, Any]:
    """Move the tensors of a batch to ``device``."""
    return {k: v.to(device, non_blocking=True) if isinstance(v, Tensor) else v for k, v in batch.items()}


def continued(batch: Batch, positions: Int[Tensor, "batch"]) -> Int[Tensor, "batch"]:
    """Return ``positions`` in rows that continue those of the previous batch, else 0."""
    text = text_of(batch)
    continues = batch.get("continues")
    if continues is None or len(positions) != len(text):
        return torch.zeros(len(text), dtype=torch.int64, device=text.device)
    return torch.where(continues, positions, 0)
