"""Fine-tuning of a copy of an encoder on a task: published settings, training loop, and predictions."""

import copy
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lmdyn.analysis.checked_fields import Above, From, check_fields
from lmdyn.analysis.inspection.attributes import did_you_mean
from lmdyn.analysis.probing.task_metrics import best_spans
from lmdyn.analysis.probing.warmup_decay import warmup_decay_factor


@dataclass(frozen=True)
class FineTuning:
    """Settings of fine-tuning: AdamW (β 0.9 and 0.999, ε 1e-8), with linear warmup and decay of the rate.

    Attributes:
        learning_rate: the maximum learning rate.
        batch_size: examples per update.
        updates: number of updates.
        warmup: number of updates in which the rate rises from 0; then it decreases to 0 at the end.
        dropout: dropout rate within the encoder.
        classifier_dropout: dropout rate of the classifier; not applied to spans.
        max_sequence_length: positions of the longest example for which this was published.
        weight_decay: 0, the default of transformers' example scripts, which the publication used.
        clip_norm: maximum norm of the gradient, the default of the same scripts.

    Raises:
        ValueError: for a number out of range.
    """

    learning_rate: Annotated[float, Above(0)]
    batch_size: Annotated[int, From(1)]
    updates: Annotated[int, From(1)]
    warmup: Annotated[int, From(0)]
    dropout: Annotated[float, From(0, 0.99)] = 0.0
    classifier_dropout: Annotated[float, From(0, 0.99)] = 0.1
    max_sequence_length: int = 512
    weight_decay: Annotated[float, From(0)] = 0.0
    clip_norm: Annotated[float, Above(0)] = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.warmup > self.updates:
            raise ValueError(f"warmup is {self.warmup}: expected at most `updates`, {self.updates}")


PUBLISHED: Mapping[str, FineTuning] = {
    "CoLA": FineTuning(1e-5, 16, 5336, 320),
    "STS-B": FineTuning(2e-5, 16, 3598, 214),
    "SST-2": FineTuning(1e-5, 32, 20935, 1256),
    "MNLI": FineTuning(3e-5, 128, 10000, 1000),
    "QNLI": FineTuning(1e-5, 32, 33112, 1986),
    "QQP": FineTuning(5e-5, 128, 14000, 1000),
    "RTE": FineTuning(3e-5, 32, 800, 200),
    "MRPC": FineTuning(2e-5, 32, 800, 200),
    "SQuAD2.0": FineTuning(3e-5, 48, 8144, 814),
}
"""Chiang, Huang & Lee 2020, table 7 ("Hyperparameters for ALBERT in downstream tasks"), also used for BERT and ELECTRA
(appendix E.4). WNLI is not among them."""

_BY_KIND = {"classification": "CoLA", "regression": "STS-B", "span": "SQuAD2.0"}


@dataclass(frozen=True)
class Budget:
    """A limit on the published training: fewer updates, with the warmup shortened in proportion.

    Attributes:
        max_updates: maximum number of updates for each task; None for no limit.
        epochs: maximum number of passes over each task's examples, at least one update; None for no limit.

    Raises:
        ValueError: for a limit that is not above 0.
    """

    max_updates: Annotated[int, From(1)] | None = None
    epochs: Annotated[float, Above(0)] | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def of(self, how: FineTuning, n_examples: int) -> FineTuning:
        """Return ``how`` within this budget.

        Example:
            >>> how = Budget(max_updates=80).of(PUBLISHED["RTE"], 2490)
            >>> how.updates, how.warmup
            (80, 20)
        """
        updates = min(how.updates, self.max_updates or how.updates)
        if self.epochs is not None:
            updates = min(updates, max(1, math.ceil(self.epochs * n_examples / how.batch_size)))
        return replace(how, updates=updates, warmup=how.warmup * updates // how.updates)


def settings_of(task: str, kind: str, changed: Mapping[str, Mapping[str, Any]] | None = None) -> FineTuning:
    """Return the published settings of a task, with changes.

    A task that is not in table 7 has those of CoLA, a regression those of STS-B, and a span task those of SQuAD 2.0.

    Args:
        task: name of the task.
        kind: ``classification``, ``regression`` or ``span``.
        changed: attributes of :class:`FineTuning` by the name of a task, or ``all``.

    Example:
        >>> settings_of("RTE", "classification", {"all": {"batch_size": 8}, "RTE": {"learning_rate": 1e-3}}).batch_size
        8
    """
    published = PUBLISHED.get(task, PUBLISHED[_BY_KIND[kind]])
    changed, known = changed or {}, vars(published)
    try:
        settings = {**changed.get("all", {}), **changed.get(task, {})}
        if unknown := [name for name in settings if name not in known]:
            wrong = f"{unknown[0]!r}{did_you_mean(unknown[0], known) or ':'}"
            raise ValueError(f"fine_tuning of {task}: unknown setting {wrong} expected {', '.join(known)}")
        return replace(published, **settings)
    except TypeError as error:
        raise ValueError(
            f"fine_tuning of {task}: {error}. Expected a mapping of settings ({', '.join(known)}) to numbers"
        ) from error


class Classifier(nn.Module):
    """An encoder of transformers with the head of transformers' own models for such tasks.

    Classification and regression: dropout and a linear layer on the pooled output (BERT, ALBERT); if the encoder
    has no pooler, ELECTRA's head on the first position: dropout, linear, GELU, dropout, linear. Spans: a linear layer
    on each position. Heads start from N(0, ``initializer_range``), biases from 0.

    Args:
        encoder: encoder that becomes part of this module; pass a copy.
        num_labels: number of outputs.
        span: whether there are outputs for each position.
        how: settings with the dropout rates.
        seed: seed of the head's weights.
    """

    def __init__(
        self, encoder: nn.Module, num_labels: int, span: bool, how: FineTuning, seed: int = 0
    ) -> None:
        super().__init__()
        self.encoder = encoder
        config = cast(Any, encoder).config
        for m in encoder.modules():
            if isinstance(m, nn.Dropout):  # attention also reads its rate there
                m.p = how.dropout
        size = int(config.hidden_size)
        self.span = span
        pooled = getattr(encoder, "pooler", None) is not None
        self.dropout = nn.Dropout(how.classifier_dropout)
        self.dense = None if span or pooled else nn.Linear(size, size)
        self.out = nn.Linear(size, num_labels)
        generator = torch.Generator().manual_seed(seed)
        spread = float(getattr(config, "initializer_range", 0.02))
        for layer in (self.dense, self.out):
            if layer is not None:
                nn.init.normal_(layer.weight, std=spread, generator=generator)
                nn.init.zeros_(layer.bias)

    def forward(self, batch: Mapping[str, Tensor]) -> Float[Tensor, "batch *time labels"]:
        """Return the logits of each example, or of each position."""
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        if getattr(cast(Any, self.encoder).config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = batch["token_type_ids"]
        output = self.encoder(**inputs)
        hidden = output.last_hidden_state
        if self.span:
            return cast(Tensor, self.out(hidden))
        if self.dense is None:
            return cast(Tensor, self.out(self.dropout(output.pooler_output)))
        return cast(Tensor, self.out(self.dropout(F.gelu(self.dense(self.dropout(hidden[:, 0]))))))


def fine_tune(encoder: nn.Module, task: Any, how: FineTuning, seed: int = 0) -> tuple[Classifier, float]:
    """Train a copy of ``encoder`` on a task; the encoder, and all random states, are not changed.

    All weights are trained in float32, without autocast. The loss is the mean cross-entropy of a batch; for a
    regression, the mean squared error; for spans, the mean of the cross-entropies of start and end, with position 0 if
    there is no answer. Head, order and dropout depend only on ``seed`` and the task's name: on a CPU the result is
    deterministic; on a GPU, up to the order of its sums.

    Args:
        encoder: a model of transformers, without head.
        task: ``name, kind, num_labels, train, pad_id``; see ``lmdyn.datamodules.tasks.tasks.Task``.
        how: the settings.
        seed: seed of head, order and dropout.

    Returns:
        The trained model, in eval mode, and the mean loss of the last tenth of its updates.
    """
    device = next(encoder.parameters()).device
    seed = int.from_bytes(hashlib.blake2b(f"{seed} {task.name}".encode(), digest_size=4).digest(), "big")
    devices = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.enable_grad():
        torch.manual_seed(seed)
        span = task.kind == "span"
        copied = copy.deepcopy(encoder).float().requires_grad_(True)
        copied.zero_grad()
        model = Classifier(copied, task.num_labels, span, how, seed).to(device)
        model.train()
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=how.learning_rate, eps=1e-8, weight_decay=how.weight_decay
        )
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: warmup_decay_factor(step / how.updates, how.warmup / how.updates)
        )
        losses = []
        batches = _batches(task.train.lengths, how.batch_size, np.random.default_rng(seed))
        for rows in islice(batches, how.updates):
            batch = _collate([task.train[i] for i in rows], task.pad_id, device)
            loss = _loss(model(batch), batch, task.kind)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), how.clip_norm)
            optimizer.step()
            scheduler.step()
            losses.append(loss.detach())
        last = torch.stack(losses[-max(1, len(losses) // 10) :])
    return model.eval(), float(last.mean())


def _batches(
    lengths: npt.NDArray[np.int64], size: int, random: np.random.Generator
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the rows of each update: every epoch in another order, with examples of similar length together."""
    while True:
        order = random.permutation(len(lengths))
        batches = []
        # sorting all would give the same batches in every epoch
        for start in range(0, len(order), 50 * size):
            some = order[start : start + 50 * size]
            some = some[np.argsort(lengths[some], kind="stable")]
            batches += [some[i : i + size] for i in range(0, len(some), size)]
        yield from (batches[i] for i in random.permutation(len(batches)))


def _collate(examples: Sequence[Mapping[str, Any]], pad_id: int, device: torch.device) -> dict[str, Tensor]:
    batch = {}
    for name, value in examples[0].items():
        rows = [torch.from_numpy(e[name]) for e in examples]
        padding = {"input_ids": pad_id, "offsets": -1}.get(name, 0)
        batch[name] = pad_sequence(rows, True, padding) if value.ndim else torch.stack(rows)
    lengths = torch.tensor([len(e["input_ids"]) for e in examples])
    batch["attention_mask"] = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    return {name: values.to(device) for name, values in batch.items()}


def _loss(logits: Tensor, batch: Mapping[str, Tensor], kind: str) -> Tensor:
    if kind == "regression":
        return F.mse_loss(logits[:, 0], batch["label"].to(logits.dtype))
    if kind == "classification":
        return F.cross_entropy(logits, batch["label"].long())
    masked = logits.masked_fill(~batch["attention_mask"].bool()[..., None], -torch.inf)
    start, end = masked.unbind(-1)
    return (F.cross_entropy(start, batch["start"]) + F.cross_entropy(end, batch["end"])) / 2


@torch.no_grad()
def predict(
    model: Classifier, task: Any, examples: Any, batch_tokens: int = 16384
) -> tuple[Tensor, list[str]]:
    """Return the predictions of a fine-tuned model for some examples.

    Args:
        model: the model, in eval mode.
        task: task with ``kind, pad_id``.
        examples: examples of the task; see ``lmdyn.datamodules.tasks.tasks.TaskExamples``.
        batch_tokens: positions of a batch, including padding; it affects the predictions only by rounding.

    Returns:
        (n,) labels, or numbers of a regression, float64, NaN if a logit is not finite; and, for a span task, the text
        that answers each question, empty if there is none: the numbers are then 1, or NaN if any logit is not
        finite.
    """
    device = next(model.parameters()).device
    order = np.argsort(examples.lengths, kind="stable")
    found = torch.full((len(examples),), torch.nan, dtype=torch.float64)
    best: dict[int, tuple[float, int, int]] = {}
    null: dict[int, float] = {}
    first, all_finite = 0, True
    while first < len(order):
        last = first + 1
        while last < len(order) and (last + 1 - first) * examples.lengths[order[last]] <= batch_tokens:
            last += 1
        rows, first = order[first:last], last
        batch = _collate([examples[i] for i in rows], task.pad_id, device)
        logits = model(batch)
        finite = logits.flatten(1).isfinite().all(1)
        if task.kind != "span":
            values = logits[:, 0].double() if task.kind == "regression" else logits.argmax(-1).double()
            found[torch.from_numpy(rows)] = torch.where(finite, values, torch.nan).cpu()
            continue
        all_finite &= bool(finite.all())
        spans = best_spans(logits[..., 0], logits[..., 1], batch["offsets"][..., 0] >= 0)
        at = torch.arange(len(rows), device=device)
        characters = (batch["offsets"][at, spans.start, 0], batch["offsets"][at, spans.end, 1])
        columns = (batch["question"], spans.null, spans.score, *characters)
        for q, none, score, left, right in zip(*(c.tolist() for c in columns), strict=True):
            null[q] = min(null.get(q, math.inf), none)
            best[q] = max(best.get(q, (-math.inf, 0, 0)), (score, left, right))
    if task.kind != "span":
        return found, []
    texts = [
        "" if null[q] - best[q][0] > 0 else context[best[q][1] : best[q][2]]
        for q, context in enumerate(examples.contexts)
    ]
    return torch.full((len(texts),), 1.0 if all_finite else torch.nan, dtype=torch.float64), texts
