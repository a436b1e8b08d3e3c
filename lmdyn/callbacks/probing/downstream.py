"""Downstream scores of the model during training by fine-tuning on GLUE, SQuAD 2.0 and other tasks."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast, get_args

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import nn

from lmdyn.analysis.inspection.transformer import check_positions, encoder_of
from lmdyn.analysis.probing.task_metrics import (
    Metrics,
    classification_metrics,
    regression_metrics,
    span_metrics,
    task_score,
)
from lmdyn.analysis.statistics.distributed import gather, rank_and_world_size
from lmdyn.callbacks.conditions.finding import Cost, Foreseen, expected
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.protocols import FineTuningTasks
from lmdyn.callbacks.observing.run import announce
from lmdyn.callbacks.probing.downstream_figures import downstream_figures
from lmdyn.callbacks.probing.downstream_quantities import DOWNSTREAM
from lmdyn.callbacks.training.fine_tuning import (
    PUBLISHED_WIDTH,
    Budget,
    FineTuning,
    fine_tune,
    predict,
    settings_of,
)

__all__ = ["PUBLISHED_INIT", "Downstream"]

log = logging.getLogger(__name__)

PUBLISHED_INIT: Mapping[str, str] = {"RTE": "MNLI", "STS-B": "MNLI", "MRPC": "MNLI"}
"""Tasks that start from the encoder fine-tuned on another task: Chiang, Huang & Lee 2020, appendix E.2."""

_NOT_AVERAGED = ("WNLI",)
_RESAMPLES = 200


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
        budget: limit on the published training; it is announced what it reduces when the observer is attached.
        metrics: ``chiang2020`` or ``glue``.
        init_from: for a task, the task whose encoder it starts from; None for the published ones, if both exist.
        seed: seed of heads, orders and dropout.
        **kwargs: see :class:`~lmdyn.callbacks.Observer`; ``probe`` is required. To use fewer examples, set
            the probe's ``train_limit`` and ``evaluation_limit``.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for a probe without tasks, unknown tasks, a cyclic ``init_from`` or one of missing tasks, and
            examples longer than the model can read.

    Reference: Chiang, Huang & Lee 2020, section 5 and appendix E, figures 5, 12 and 13; Wang et al. 2018.
    """

    uses_labels = False

    recorded = DOWNSTREAM
    several_runs = True
    needs = (FineTuningTasks,)

    def __init__(
        self,
        *,
        tasks: Sequence[str] | None = None,
        fine_tuning: Mapping[str, Mapping[str, Any]] | None = None,
        budget: Budget = Budget(),  # noqa: B008 (frozen)
        metrics: Metrics = "chiang2020",
        init_from: Mapping[str, str] | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if metrics not in get_args(Metrics):
            raise ValueError(f"metrics is {metrics!r}: expected one of {list(get_args(Metrics))}")
        if self.max_tokens is not None or self.forward is not None or self.split != "validation":
            raise ValueError(
                f"{self.name} calls the encoder itself and evaluates on development sets: remove max_tokens, forward "
                "and split; the probe's train_limit and evaluation_limit limit the number of examples"
            )
        self.task_names = None if tasks is None else tuple(tasks)
        self.fine_tuning = fine_tuning
        self.budget = budget
        self.metrics: Metrics = metrics
        self.asked_init = init_from
        self.seed = seed
        self.tasks: dict[str, Any] = {}
        self.init_from: dict[str, str] = {}

    def prepare(self) -> None:
        """Determine the tasks, and check the settings of each."""
        there = cast(FineTuningTasks, self.data).tasks
        names = list(there if self.task_names is None else self.task_names)
        if not names or (set(names) - set(there)):
            raise ValueError(f"{self.name}: expected tasks of {list(there)}, got {names}")
        self.tasks = {name: there[name] for name in there if name in names}
        unknown = sorted(set(self.fine_tuning or {}) - {"all", *there})
        if unknown:
            raise ValueError(
                f"{self.name}: expected fine_tuning by name of a task, among {list(there)}, or 'all', got {unknown}"
            )
        self.init_from = self._checked_init()
        within = {name: self.fine_tuning_of(name).updates for name in self.tasks}
        whole = {
            name: settings_of(name, task.kind, self.fine_tuning).updates for name, task in self.tasks.items()
        }
        if left_out := [name for name in self.tasks if within[name] < whole[name]]:
            cut = ", ".join(f"{name} {within[name]:,} of {whole[name]:,}" for name in left_out)
            announce(self.name, f"the budget allows fewer updates of fine-tuning than published: {cut}")

    def _checked_init(self) -> dict[str, str]:
        if self.asked_init is None:
            missing = [
                t for t, parent in PUBLISHED_INIT.items() if t in self.tasks and parent not in self.tasks
            ]
            if missing:
                log.warning(
                    "%s: %s start from the pretrained weights, not from an MNLI encoder as published: MNLI is not "
                    "among the tasks",
                    self.name,
                    missing,
                )
            published = PUBLISHED_INIT.items()
            return {t: parent for t, parent in published if t in self.tasks and parent in self.tasks}
        chosen = dict(self.asked_init)
        unknown = sorted({*chosen, *chosen.values()} - set(self.tasks))
        spans = [t for t in {*chosen, *chosen.values()} & set(self.tasks) if self.tasks[t].kind == "span"]
        if unknown or spans:
            raise ValueError(
                f"{self.name}: init_from names {unknown or spans}: expected tasks of sentences among {list(self.tasks)}"
            )
        for task in chosen:
            if _root(task, chosen) is None:
                raise ValueError(f"{self.name}: init_from is cyclic at {task!r}: {chosen}")
        return chosen

    def fine_tuning_of(self, name: str) -> FineTuning:
        """Return the settings of the fine-tuning on a task, within the budget."""
        task = self.tasks[name]
        how = self.budget.of(settings_of(name, task.kind, self.fine_tuning), len(task.train))
        longest = self._longest(name)
        if longest > how.max_sequence_length:
            raise ValueError(
                f"{self.name}: {name} has examples of {longest} positions, expected at most "
                f"{how.max_sequence_length}: lower the probe's max_sequence_length, or raise that of `fine_tuning`"
            )
        return how

    def _own_rate(self, name: str) -> bool:
        given = self.fine_tuning or {}
        return any("learning_rate" in given.get(key, {}) for key in ("all", name))

    def _longest(self, name: str) -> int:
        task = self.tasks[name]
        return int(max(e.lengths.max() for e in (task.train, *task.evaluation.values())))

    def check_module(self, module: nn.Module) -> None:
        """Raise an error for a module without an encoder, or one that cannot read examples of the tasks' lengths."""
        try:
            encoder_of(module)
        except ValueError as error:
            raise ValueError(f"{self.name} requires an encoder of transformers: {error}") from error
        for name in self.tasks:
            check_positions(
                module, self._longest(name), f"examples of {name}", "lower the probe's max_sequence_length",
                self.name,
            )  # fmt: skip

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report tasks with one label, sets without examples, rates of larger models; encoder copies with optimizer."""
        for name, task in self.tasks.items():
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
        width = getattr(encoder_of(module).config, "hidden_size", PUBLISHED_WIDTH)
        published = [name for name in self.tasks if not self._own_rate(name)]
        if published and 2 * width <= PUBLISHED_WIDTH:
            yield expected(
                f"a model of about the published width, {PUBLISHED_WIDTH}, for published learning rates",
                f"one of {width} for {', '.join(published)}, whose weights they change very little",
                "choose a rate by the training loss of another run: `fine_tuning: {all: {learning_rate: "
                "3.0e-4}}` was found in this way for a width of 128",
                of="module",
                stops=False,
            )
        size = sum(4 * p.numel() for p in encoder_of(module).parameters())
        kept = len(set(self.init_from.values()))
        yield Cost(
            f"a copy of the encoder with gradients and Adam's two moments{f', {kept} kept copies' if kept else ''}",
            size * (4 + kept),
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments, the settings of each task's fine-tuning, and the content of all tasks."""
        return {
            **super().settings,
            "fine_tuning": {name: vars(self.fine_tuning_of(name)) for name in self.tasks},
            "init_from": self.init_from,
            "probe_set": {name: task.fingerprint for name, task in self.tasks.items()},
        }

    # ---------------------------------------------------------------- measurement

    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Fine-tune on this process's tasks, evaluate, and gather all processes' numbers."""
        self.check_module(module)
        rank, world_size = rank_and_world_size()
        mine = [name for name, r in self._ranks(world_size).items() if r == rank]
        found = {
            name: values for part in gather(self._fine_tune(module, mine)) for name, values in part.items()
        }
        return self._table(found, step)

    def _ranks(self, world_size: int) -> dict[str, int]:
        """Return the process that fine-tunes each task, parents before those that start from them."""
        cost = {
            name: self.fine_tuning_of(name).updates * self.fine_tuning_of(name).batch_size
            for name in self.tasks
        }
        families: dict[str, list[str]] = {}
        for name in self.tasks:
            root = _root(name, self.init_from)
            assert root is not None
            families.setdefault(root, []).append(name)
        load = [0] * world_size
        ranks = {}
        total = {root: sum(cost[name] for name in names) for root, names in families.items()}
        for root in sorted(families, key=lambda root: (-total[root], root)):  # the longest first
            rank = load.index(min(load))
            load[rank] += total[root]
            for name in sorted(families[root], key=lambda name: _depth(name, self.init_from)):
                ranks[name] = rank
        return ranks

    def _fine_tune(self, module: nn.Module, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        encoder = encoder_of(module)
        tuned: dict[str, nn.Module] = {}
        found = {}
        for i, name in enumerate(names):
            task = self.tasks[name]
            parent = self.init_from.get(name)
            start = encoder if parent is None else tuned[parent]
            model, loss = fine_tune(start, task, self.fine_tuning_of(name), self.seed)
            tuned[name] = model.encoder
            answers = {part: _Answers(e, *predict(model, task, e)) for part, e in task.evaluation.items()}
            found[name] = {
                "train_loss": loss,
                "metrics": {part: given.metrics(task) for part, given in answers.items()},
                "error": _error(task, answers, self.metrics),
            }
            needed = {self.init_from.get(later) for later in names[i + 1 :]}
            tuned = {name: kept for name, kept in tuned.items() if name in needed}
        return found

    def _table(self, found: Mapping[str, Any], step: int) -> pd.DataFrame:
        rows: list[tuple[str, str, float]] = []
        scores, baselines, errors = {}, {}, {}
        for name, task in self.tasks.items():
            metrics = found[name]["metrics"]
            scores[name] = task_score(name, task.kind, metrics, self.metrics)
            baselines[name] = task_score(name, task.kind, _baseline(task), self.metrics)
            errors[name] = found[name]["error"]
            rows += [
                ("score", name, scores[name]),
                ("score_error", name, errors[name]),
                ("baseline", name, baselines[name]),
            ]
            rows += [
                (metric, f"{name}-{part}" if part else name, value)
                for part, values in metrics.items()
                for metric, value in values.items()
            ]
            rows.append(("train_loss", name, found[name]["train_loss"]))
        broken = [name for name, score in scores.items() if score != score]
        if broken and rank_and_world_size()[0] == 0:
            log.warning(
                "%s at step %d: the outputs of fine-tuning on %s are not finite: no score",
                self.name,
                step,
                broken,
            )
        averaged = [n for n, task in self.tasks.items() if n not in _NOT_AVERAGED and task.kind != "span"]
        if averaged:
            together = "+".join(averaged)
            for quantity, values in (("average", scores), ("average_baseline", baselines)):
                rows.append((quantity, together, sum(values[n] for n in averaged) / len(averaged)))
            variance = sum(errors[n] ** 2 for n in averaged)
            rows.append(("average_error", together, math.sqrt(variance) / len(averaged)))
        table = pd.DataFrame(rows, columns=["quantity", "task", "value"]).assign(site="")
        return table[["quantity", "site", "task", "value"]].astype({"value": "float64"})

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw scores and their average over steps, with their errors; for several runs, one line each."""
        return downstream_figures(observations)


class _Answers:
    """Answers of a model, or of a baseline that knows only the training labels, to the examples of one set."""

    def __init__(self, examples: Any, values: torch.Tensor, texts: Sequence[str]) -> None:
        self.examples, self.values, self.texts = examples, values, texts
        self._labels: torch.Tensor | None = None

    def metrics(self, task: Any, chosen: torch.Tensor | None = None) -> dict[str, float]:
        """Return the metrics, of some of the examples or all; all are NaN if a prediction is not finite."""
        finite = bool(self.values.isfinite().all())
        values = self.values if finite else self.values.nan_to_num(0.0)
        some = torch.arange(len(values)) if chosen is None else chosen
        if task.kind == "span":
            metrics = span_metrics(
                [self.texts[i] for i in some.tolist()], [self.examples.answers[i] for i in some.tolist()]
            )
        else:
            if self._labels is None:
                self._labels = torch.tensor([float(e["label"]) for e in self.examples], dtype=torch.float64)
            labels = self._labels[some]
            metrics = (
                regression_metrics(values[some], labels)
                if task.kind == "regression"
                else classification_metrics(values[some].long(), labels.long(), task.num_labels)
            )
        return metrics if finite else dict.fromkeys(metrics, float("nan"))


def _error(task: Any, answers: Mapping[str, _Answers], metrics: Metrics) -> float:
    """Return the standard deviation of the score over resamples of the examples of each set."""
    random = torch.Generator().manual_seed(0)
    scores = []
    for _ in range(_RESAMPLES):
        drawn = {
            part: given.metrics(
                task, torch.randint(len(given.values), (len(given.values),), generator=random)
            )
            for part, given in answers.items()
        }
        scores.append(task_score(task.name, task.kind, drawn, metrics))
    return float(torch.tensor(scores, dtype=torch.float64).std())


def _baseline(task: Any) -> dict[str, dict[str, float]]:
    """Return the metrics of a baseline that knows only the training labels."""
    constant = 0.0
    if task.kind != "span":
        labels = torch.tensor([float(e["label"]) for e in task.train])
        constant = float(labels.mean() if task.kind == "regression" else labels.mode().values)
    found = {}
    for part, examples in task.evaluation.items():
        n = len(examples.contexts) if task.kind == "span" else len(examples)
        found[part] = _Answers(examples, torch.full((n,), constant, dtype=torch.float64), [""] * n).metrics(
            task
        )
    return found


def _root(task: str, init_from: Mapping[str, str]) -> str | None:
    """Return the first of the tasks from which a task starts; None if they are cyclic."""
    for _ in range(len(init_from) + 1):
        if task not in init_from:
            return task
        task = init_from[task]
    return None


def _depth(task: str, init_from: Mapping[str, str]) -> int:
    depth = 0
    while task in init_from:
        task, depth = init_from[task], depth + 1
    return depth
