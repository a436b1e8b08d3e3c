"""Downstream scores of the model during training by fine-tuning on GLUE, SQuAD 2.0 and other tasks."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import pandas as pd
import torch
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.inspection.transformer import check_positions, encoder_of
from lmdyn.analysis.probing.task_metrics import (
    Metrics,
    classification_metrics,
    regression_metrics,
    span_metrics,
    task_score,
)
from lmdyn.analysis.statistics.distributed import gather, rank_and_world_size
from lmdyn.callbacks.observing.findings import Cost, Foreseen, expected
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.protocols import FineTuningTasks
from lmdyn.callbacks.observing.run import report, warn
from lmdyn.callbacks.observing.sums import Row, tabulate
from lmdyn.callbacks.training.fine_tuning import (
    Budget,
    FineTuning,
    fine_tune,
    predict,
    settings_of,
)
from lmdyn.runs.schema import Quantity

__all__ = ["PUBLISHED_INIT", "Downstream"]

PUBLISHED_INIT: Mapping[str, str] = {"RTE": "MNLI", "STS-B": "MNLI", "MRPC": "MNLI"}
"""Tasks that start from the encoder fine-tuned on another task: Chiang, Huang & Lee 2020, appendix E.2."""

_NOT_AVERAGED = ("WNLI",)
_RESAMPLES = 200
_TASK, _TASKS = ("<task>",), ("<tasks>",)


_metric = partial(Quantity, low=0.0, high=1.0, better="higher", tags=_TASK)


class Downstream(Observer):
    """Scores of copies of the encoder that are fine-tuned, from the present weights, on each task.

    The probe is a datamodule with ``tasks`` (``GlueTasks``, ``GrammarTasks``). Each task trains its own copy, with the
    published settings (table 7 of the publication) or within a ``budget``; the training is not affected. For ELECTRA,
    the discriminator is fine-tuned. Fine-tuning runs in float32, from its own seed: heads, orders and dropout are the
    same at each step, in training and in replay.

    ``init_from`` says which tasks start from the encoder fine-tuned on another in the same observation; their heads are
    new. The publication states this for ALBERT; it does not state it for BERT and ELECTRA.

    Several processes share the tasks, not the examples; those of ``init_from`` run in the process of their parent.

    The score of a task is the publication's, or GLUE's own; see ``task_score``. The average is over all tasks except
    WNLI and those of spans (SQuAD 2.0), and names the tasks. ``baseline`` is the score of predicting without reading:
    the most frequent of the training labels, their mean, or, for spans, "no answer". Scores are NaN, with a warning, if
    an output of a fine-tuned model is not finite. Errors are those for other development examples (the standard
    deviation over 200 resamples of them); they do not include the variation over seeds.

    Published rates and lengths are those of models of 12 M parameters and more. They change small models very little:
    set others by ``fine_tuning``; a warning is logged for a model of half that width or less.

    Args:
        tasks: some of the probe's tasks; None for all.
        fine_tuning: changes to the published settings: attributes of
            :class:`~lmdyn.callbacks.training.fine_tuning.FineTuning`, by the name of the task, or ``all``.
        budget: limit on the published training; it is reported what it reduces when the observer is attached.
        metrics: ``chiang2020`` or ``glue``.
        init_from: for a task, the task whose encoder it starts from; None for the published ones, if both exist.
        seed: seed of heads, orders and dropout.
        probe: datamodule with the tasks, required. To use fewer examples, set its ``train_limit`` and
            ``evaluation_limit``.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for a probe without tasks, unknown tasks, a cyclic ``init_from`` or one of missing tasks, and
            examples longer than the model can read.

    Reference: Chiang, Huang & Lee 2020, section 5 and appendix E, figures 5, 12 and 13; Wang et al. 2018.
    """

    tasks: Sequence[str] | None = None
    fine_tuning: Mapping[str, Mapping[str, Any]] | None = None
    budget: Budget = Budget()
    metrics: Metrics = "chiang2020"
    init_from: Mapping[str, str] | None = None
    seed: int = 0

    uses_labels = False
    several_runs = True
    needs = (FineTuningTasks,)
    recorded = (
        _metric(
            "score",
            "Score of a task on its development set: an accuracy, an F1 or a correlation.",
            low=-1.0,
            panel="tasks",
            lines="run",
            floor="baseline",
        ),
        Quantity(
            "score_error", "Standard error of the score, over development examples.", low=0.0, tags=_TASK
        ),
        _metric("baseline", "Score of a prediction that reads no input.", low=-1.0, better=None),
        _metric(
            "average",
            "Mean score of the tasks whose names the tag joins by +.",
            low=-1.0,
            tags=_TASKS,
            panel="average",
            lines="run",
            floor="average_baseline",
        ),
        Quantity(
            "average_error", "Standard error of the average if tasks are independent.", low=0.0, tags=_TASKS
        ),
        _metric("average_baseline", "Mean baseline of the same tasks.", low=-1.0, better=None, tags=_TASKS),
        _metric("accuracy", "Share of correct development examples, in MNLI for each set.", "share"),
        _metric("f1", "F1 of label 1; in SQuAD, F1 of the words in answers."),
        _metric("matthews", "Matthews' correlation of predicted and gold labels, 0 if undefined.", low=-1.0),
        _metric("pearson", "Pearson's correlation of predicted and gold scores, 0 if undefined.", low=-1.0),
        _metric("spearman", "Spearman's correlation of predicted and gold scores, 0 if undefined.", low=-1.0),
        _metric("exact_match", "Share of predicted answers that equal a gold answer.", "share"),
        Quantity(
            "train_loss",
            "Mean loss over the last tenth of the fine-tuning: cross-entropy in nats, or squared error.",
            low=0.0,
            better="lower",
            tags=_TASK,
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_tokens is not None or self.forward is not None or self.split != "validation":
            raise ValueError(
                f"{self.name} calls the encoder itself and evaluates on development sets. Remove `max_tokens`, "
                "`forward` and `split`; limit examples with the probe's `train_limit` and `evaluation_limit`"
            )

    def prepare(self) -> None:
        """Determine the tasks, and check the settings of each."""
        there = cast(FineTuningTasks, self.data).tasks
        names = list(there if self.tasks is None else self.tasks)
        if (bad := sorted({*names} - {*there})) or not names:
            raise ValueError(
                f"{self.name}: `tasks` has {', '.join(bad) or 'none'}: expected {', '.join(there)}"
            )
        self.chosen: dict[str, Any] = {name: there[name] for name in there if name in names}
        unknown = sorted(set(self.fine_tuning or {}) - {"all", *there})
        if unknown:
            raise ValueError(
                f"{self.name}: expected `fine_tuning` for {', '.join(there)} or `all`, got {', '.join(unknown)}"
            )
        self.parents = (
            self._published_init() if self.init_from is None else self._checked_init(self.init_from)
        )
        cut = []
        for name, task in self.chosen.items():
            whole = settings_of(name, task.kind, self.fine_tuning).updates
            if (within := self.fine_tuning_of(name).updates) < whole:
                cut.append(f"{name} {within:,} of {whole:,}")
        if cut:
            report(self.name, f"`budget` allows fewer fine-tuning updates than published: {', '.join(cut)}")

    def _published_init(self) -> dict[str, str]:
        own = {task: parent for task, parent in PUBLISHED_INIT.items() if task in self.chosen}
        if missing := [task for task, parent in own.items() if parent not in self.chosen]:
            warn(
                self.name,
                f"fine-tuning on {', '.join(missing)} starts from the pretrained weights, but published results start "
                "from an MNLI encoder: add MNLI to `tasks`",
            )
        return {task: parent for task, parent in own.items() if task not in missing}

    def _checked_init(self, given: Mapping[str, str]) -> dict[str, str]:
        names = {*given, *given.values()}
        wrong = sorted(n for n in names if n not in self.chosen or self.chosen[n].kind == "span")
        if wrong:
            raise ValueError(
                f"{self.name}: init_from names {', '.join(wrong)}: expected classification or regression tasks among "
                f"{', '.join(n for n, task in self.chosen.items() if task.kind != 'span') or 'none'}"
            )
        for task in given:
            if (last := _chain(task, given)[-1]) in given:
                raise ValueError(f"{self.name}: init_from is cyclic: remove `{last}: {given[last]}`")
        return dict(given)

    def fine_tuning_of(self, name: str) -> FineTuning:
        """Return the settings of the fine-tuning on a task, within the budget."""
        task = self.chosen[name]
        how = self.budget.of(settings_of(name, task.kind, self.fine_tuning), len(task.train))
        longest = _longest(task)
        if longest > how.max_sequence_length:
            raise ValueError(
                f"{self.name}: {name} has examples of {longest} positions, expected at most {how.max_sequence_length}: "
                "lower the probe's max_sequence_length, or raise max_sequence_length in `fine_tuning`"
            )
        return how

    def check_module(self, module: Module) -> None:
        """Raise an error for a module without an encoder, or one that cannot read examples of the tasks' lengths."""
        try:
            encoder_of(module)
        except ValueError as error:
            raise ValueError(f"{self.name} requires an encoder of transformers: {error}") from error
        for name, task in self.chosen.items():
            remedy = "lower the probe's max_sequence_length"
            check_positions(module, _longest(task), f"examples of {name}", remedy, self.name)

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report tasks with one label, sets without examples, rates of larger models; encoder copies with optimizer."""
        for name, task in self.chosen.items():
            labels = {float(e["label"]) for e in task.train} if task.kind != "span" else {0.0, 1.0}
            if len(labels) < 2:
                yield expected(
                    f"two labels or more among the training examples of {name}",
                    f"{len(labels)} in {len(task.train)} examples",
                    "raise the probe's `train_limit`",
                )
            if empty := [part or "development" for part, e in task.evaluation.items() if not len(e)]:
                yield expected(
                    f"evaluation examples of {name}",
                    f"none in the set {empty[0]}",
                    "raise the probe's `evaluation_limit`",
                )
        size = sum(4 * p.numel() for p in encoder_of(module).parameters())
        kept = len(set(self.parents.values()))
        yield Cost(
            f"a copy of the encoder with gradients and Adam's two moments{f', {kept} kept copies' if kept else ''}",
            size * (4 + kept),
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments, the settings of each task's fine-tuning, and the content of all tasks."""
        return {
            **super().settings,
            "fine_tuning": {name: vars(self.fine_tuning_of(name)) for name in self.chosen},
            "init_from": self.parents,
            "probe_set": {name: task.fingerprint for name, task in self.chosen.items()},
        }

    # ---------------------------------------------------------------- measurement

    def measure(self, module: Module, step: int) -> pd.DataFrame:
        """Fine-tune on this process's tasks, evaluate, and gather all processes' numbers."""
        self.check_module(module)
        rank, world_size = rank_and_world_size()
        mine = [name for name, r in self._ranks(world_size).items() if r == rank]
        found = {name: of for part in gather(self._fine_tune(module, mine)) for name, of in part.items()}
        broken = [name for name in self.chosen if math.isnan(self._score(name, found[name]["metrics"]))]
        why = f"fine-tuning diverged on {broken}"
        return tabulate(self._rows(found), {"task": ""}, self.name, step, why)

    def _ranks(self, world_size: int) -> dict[str, int]:
        """Return the process that fine-tunes each task, parents before those that start from them."""
        chains = [_chain(name, self.parents) for name in self.chosen]
        roots = list(dict.fromkeys(chain[-1] for chain in chains))
        return {chain[0]: roots.index(chain[-1]) % world_size for chain in sorted(chains, key=len)}

    def _fine_tune(self, module: Module, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        encoder = encoder_of(module)
        tuned: dict[str, Module] = {}
        found = {}
        for i, name in enumerate(names):
            task = self.chosen[name]
            start = tuned[self.parents[name]] if name in self.parents else encoder
            model, loss = fine_tune(start, task, self.fine_tuning_of(name), self.seed)
            tuned[name] = model.encoder
            answers = {
                part: _Answers(task, e, *predict(model, task, e)) for part, e in task.evaluation.items()
            }
            found[name] = {
                "train_loss": loss,
                "metrics": {part: given.metrics() for part, given in answers.items()},
                "error": self._error(name, answers),
            }
            needed = {self.parents.get(later) for later in names[i + 1 :]}
            tuned = {name: kept for name, kept in tuned.items() if name in needed}
        return found

    def _score(self, name: str, metrics: Mapping[str, Mapping[str, float]]) -> float:
        return task_score(name, self.chosen[name].kind, metrics, self.metrics)

    def _error(self, name: str, answers: Mapping[str, "_Answers"]) -> float:
        """Return the standard deviation of the score over resamples of the examples of each set."""
        random = torch.Generator().manual_seed(0)
        scores = []
        for _ in range(_RESAMPLES):
            drawn = {part: given.resampled(random) for part, given in answers.items()}
            scores.append(self._score(name, drawn))
        return float(torch.tensor(scores, dtype=torch.float64).std())

    def _rows(self, found: Mapping[str, Any]) -> Iterator[Row]:
        """Yield the numbers of each task, and the averages of those of sentences except WNLI."""
        averaged: dict[str, tuple[float, float, float]] = {}
        for name, task in self.chosen.items():
            score = self._score(name, found[name]["metrics"])
            error = found[name]["error"]
            baseline = self._score(name, _baseline(task))
            yield {"task": name}, {"score": score, "score_error": error, "baseline": baseline}
            for part, values in found[name]["metrics"].items():
                yield {"task": f"{name}-{part}" if part else name}, values
            yield {"task": name}, {"train_loss": found[name]["train_loss"]}
            if name not in _NOT_AVERAGED and task.kind != "span":
                averaged[name] = score, baseline, error
        if averaged:
            scores, baselines, errors = zip(*averaged.values(), strict=True)
            number = len(averaged)
            values = {"average": sum(scores) / number, "average_baseline": sum(baselines) / number}
            values["average_error"] = math.sqrt(sum(error**2 for error in errors)) / number
            yield {"task": "+".join(averaged)}, values


class _Answers:
    """Answers to the examples of one set, of a model or of a baseline that knows only the training labels."""

    def __init__(self, task: Any, examples: Any, values: Tensor, texts: Sequence[str]) -> None:
        self._task, self._texts = task, texts
        self._finite = bool(values.isfinite().all())
        self._values = values.nan_to_num(0.0)
        self._truth: Any = examples.answers if task.kind == "span" else _labels(examples)

    def resampled(self, random: torch.Generator) -> dict[str, float]:
        """Return the metrics of as many examples, drawn at random."""
        return self.metrics(torch.randint(len(self._values), (len(self._values),), generator=random))

    def metrics(self, chosen: Tensor | None = None) -> dict[str, float]:
        """Return the metrics, of some of the examples or all; all are NaN if a prediction is not finite."""
        some = torch.arange(len(self._values)) if chosen is None else chosen
        if self._task.kind == "span":
            metrics = span_metrics(
                [self._texts[i] for i in some.tolist()], [self._truth[i] for i in some.tolist()]
            )
        elif self._task.kind == "regression":
            metrics = regression_metrics(self._values[some], self._truth[some])
        else:
            predicted = self._values[some].long()
            labels = self._truth[some].long()
            metrics = classification_metrics(predicted, labels, self._task.num_labels)
        return metrics if self._finite else dict.fromkeys(metrics, math.nan)


def _labels(examples: Any) -> Tensor:
    return torch.tensor([float(e["label"]) for e in examples], dtype=torch.float64)


def _longest(task: Any) -> int:
    return int(max(e.lengths.max() for e in (task.train, *task.evaluation.values())))


def _baseline(task: Any) -> dict[str, dict[str, float]]:
    """Return the metrics of a baseline that knows only the training labels."""
    constant = 0.0
    if task.kind != "span":
        labels = _labels(task.train)
        constant = float(labels.mean() if task.kind == "regression" else labels.mode().values)
    found = {}
    for part, examples in task.evaluation.items():
        n = len(examples.contexts) if task.kind == "span" else len(examples)
        values = torch.full((n,), constant, dtype=torch.float64)
        found[part] = _Answers(task, examples, values, [""] * n).metrics()
    return found


def _chain(task: str, init_from: Mapping[str, str]) -> list[str]:
    """Return a task, the one from which it starts, and so on; the last one is in ``init_from`` if they are cyclic."""
    chain = [task]
    while (parent := init_from.get(chain[-1])) is not None and parent not in chain:
        chain.append(parent)
    return chain
