"""Predictions from the state of a masked language model's encoder at each time: tokens, and sentence similarity."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Annotated, Any, Literal, NamedTuple, cast

import lightning as L
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.inspection.activations import observing
from lmdyn.analysis.inspection.forward import IGNORED, device_of
from lmdyn.analysis.inspection.transformer import check_positions, encoder_of
from lmdyn.analysis.orbits.trajectories import exact_products
from lmdyn.analysis.probing.depth_heads import (
    ReadoutTraining,
    pooled_states,
    prediction_scores,
    readout_correlation,
    states_at,
    train_linear_readouts,
)
from lmdyn.analysis.probing.state_decoder import RetrainedDecoder, StateDecoder, States, retrain_decoders
from lmdyn.analysis.probing.tower_heads import HeadTraining
from lmdyn.analysis.statistics.distributed import all_reduce_sum, divided, rank_and_world_size
from lmdyn.analysis.statistics.grouped import GroupedMeans
from lmdyn.callbacks.dynamics.quantities import share, steps
from lmdyn.callbacks.observing.checked_fields import From
from lmdyn.callbacks.observing.findings import Cost, Foreseen
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import ProbeSet, TrainingPart, to_device
from lmdyn.callbacks.observing.protocols import FineTuningTasks, objective_of, require
from lmdyn.callbacks.observing.run import Run, open_data
from lmdyn.callbacks.observing.sums import Row, tabulate
from lmdyn.callbacks.training.fine_tuning import Budget, FineTuning, fine_tune, predict, settings_of
from lmdyn.runs.schema import Quantity

__all__ = ["TIMES", "DepthPerformance"]

TIMES = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96)
"""Default times, in addition to the model's own depth."""

_AT_DEPTH = ("<how>/t=<t>", "<how>/mask/t=<t>")
_SCORES = ("accuracy", "cross_entropy")
_WHERE = {None: slice(None), "mask": slice(1, 2)}  # groups of positions: others, and those that show the mask

Times = tuple[Annotated[int, From(0)], ...]


class DepthPerformance(Observer):
    """How well masked tokens, and the similarity of sentences, are predicted from the encoder's state at each time.

    The encoder is iterated as a map of all token vectors (:class:`~lmdyn.analysis.EncoderMap`), in
    float32 without tf32 or autocast and without attention mask; x_t is the state at time t, x_0 the embedding, x_L the
    final state of the model with L layers. If its layers differ, time ends with them.

    *Masked tokens.* For the labelled positions (those that a masked language model is trained to predict) of the
    validation split: the share whose token has the highest logit, and the mean −ln p. ``fixed``: the model's own
    decoder, applied to x_t. ``retrained``: a decoder trained for each t on the training split, those of all t from the
    same batches. It is a copy of the model's own decoder, that is, of all that follows the layers, with its initial
    weights, as published (:class:`~lmdyn.analysis.probing.state_decoder.RetrainedDecoder`): for ALBERT
    a dense layer, the layer norm after its activation, and the output layer with its bias, whose weights are tied to
    the word vectors; those of the copy are not, and the model is not changed. Padding takes part in attention, as all
    tokens do: in rows with padding, x_L differs from that of the model with its mask.

    *Baselines.* At t = 0 a decoder has only a token's own embedding and position, and no context: the accuracy of
    the decoder retrained there, and the share of the most frequent token among the labels, are the scores of a model
    without context. Some labelled positions show another token than the mask, and some of these the token itself,
    which is known at t = 0: rows with ``where`` equal to ``mask`` are for the positions that show the mask token of the
    run's tokenizer.

    *Similarity.* Pearson's correlation with the scores of the only regression among ``tasks`` (``STS-B``; the
    grammar's ``similarity``), on its development set. ``frozen``: a linear regression from the pooled output (the
    encoder's own pooler of the first token of x_t, or this token's vector if there is no pooler), trained for each
    t, all at once (:func:`~lmdyn.analysis.probing.depth_heads.train_linear_readouts`): as published by ten epochs of
    Adam from 0, which do not extract the information of nearly constant states, as in initial networks; in closed form
    with ``readout: {ridge: 0.001}``. ``fine_tuned``: a copy of the encoder with t layers is trained with its classifier
    (``fine_tune``). Examples of the same length are batched, so that there is no padding.

    All training uses its own seed, and observations of one model are equal (on a GPU up to the order of sums). If a
    state is not finite, its accuracy, cross-entropy and Pearson's correlation, and results of training on it, are
    NaN, with a warning. Pearson's correlation of equal predictions, as those after all sentences
    have the same state, is 0. With several processes, each reads its share of the examples; the fine-tuned t are
    divided among them.

    Rows have the columns ``how``, ``where`` and ``t``; ``where`` is ``mask``, or missing for all labelled positions.

    Args:
        times: times t, increasing, from 0; None for :data:`TIMES` and the model's depth, if its layers differ up to
            its depth.
        training: training of the decoders. At the model's own depth, retraining should be no worse than the
            model's decoder: a rate that makes it worse is too high (for ALBERT-mini on the grammar, fixed 0.442: 300
            updates of 32 rows give 0.446 at 3e-4, 0.436 at 1e-3). ``init_range`` and ``seed`` have no effect.
        start: only ``own``, the model's own decoder.
        batch_rows: rows of text per update, over all ranks, for a PretrainingCorpus. Other data is used in its own
            batches.
        tasks: datamodule with ``tasks``, of which one is a regression (``GlueTasks``, ``GrammarTasks``); it receives
            the run's tokenizer. None for no similarity.
        readout: training of the linear regressions.
        fine_tuned_times: times, which may differ from ``times``, for which a copy of the encoder is fine-tuned. Only
            for models with shared layers.
        fine_tuning: changes to its settings, attributes of ``FineTuning``; the
            learning rate is 1e-6 by default, the rest as in ``Downstream``.
        budget: limit on fine-tuning.
        seed: seed of fine-tuning.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for times that do not increase; when attached, for data that is not for masked language models or
            has no training split, and for ``tasks`` without a single regression; for a module whose logits are not from
            its encoder (ELECTRA), times beyond the depth if layers differ, and examples longer than it can read.

    Reference: Inoue et al. 2022, section II.A, figures 3A and 3B, appendices A and B.

    Example:
        >>> from lmdyn.analysis import HeadTraining
        >>> DepthPerformance(times=[0, 12, 24], training=HeadTraining(updates=100)).times
        (0, 12, 24)
    """

    times: Times | None = None
    training: HeadTraining = HeadTraining(updates=300, learning_rate=3e-4)
    start: Literal["own"] = "own"
    batch_rows: Annotated[int, From(1)] = 32
    tasks: L.LightningDataModule | None = None
    readout: ReadoutTraining = ReadoutTraining()
    fine_tuned_times: Times = ()
    fine_tuning: Mapping[str, Any] | None = None
    budget: Budget = Budget(epochs=10)
    seed: int = 0

    uses_labels = True
    reads = "masked"
    several_runs = True
    not_settings = Observer.not_settings | {"tasks"}
    recorded = (
        share(
            "accuracy",
            "Masked tokens to which the fixed or the retrained decoder gives the highest logit, at all labelled "
            "positions or only at mask tokens.",
            tags=_AT_DEPTH,
            better="higher",
            panel="masked_tokens",
            over="t",
            floor="floor",
        ),
        Quantity(
            "cross_entropy",
            "Mean −ln p for the decoder's probability p of a masked token.",
            "nats",
            low=0.0,
            better="lower",
            tags=_AT_DEPTH,
        ),
        share(
            "floor",
            "Accuracy of the decoder retrained at t = 0, or of predicting the most frequent label.",
            tags=("retrained", "most_frequent", "<how>/mask"),
        ),
        Quantity(
            "pearson",
            "Correlation of predicted and gold scores in the regression task, for frozen states or fine-tuned copies.",
            low=-1.0,
            high=1.0,
            better="higher",
            tags=("<how>/t=<t>",),
            panel="similarity",
            over="t",
        ),
        steps("depth", "Number of times that the model itself applies its layers.", low=1.0),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, times in (("times", self.times), ("fine_tuned_times", self.fine_tuned_times)):
            if times is not None and list(times) != sorted(set(times)):
                raise ValueError(f"{name} is {list(times)}: expected increasing whole numbers from 0")
        if self.times == ():
            raise ValueError("times is empty: expected numbers from 0, or null for the default")
        if self.fine_tuned_times and self.tasks is None:
            raise ValueError("`fine_tuned_times` requires data to fine-tune on: set `tasks`")
        if self.training.patience is not None:
            raise ValueError("the decoders train for `training.updates` updates: remove `training.patience`")
        self._task: Any = None
        self._development: Any = None

    # ---------------------------------------------------------------- before training

    def attach(self, run: Run) -> None:
        """Attach to the run, and open the tasks; see :meth:`~lmdyn.callbacks.Observer.attach`."""
        if self.tasks is not None:
            open_data(self.tasks, run, f"{self.name}: the data of the tasks")
        super().attach(run)

    def prepare(self) -> None:
        """Determine the training split and the task."""
        objective = objective_of(self.data)
        if objective not in (None, "masked"):
            raise ValueError(
                f"{self.name} requires data with masked tokens, but the data has the objective {objective!r}. Pass a "
                "`probe` with the objective 'masked'"
            )
        self._training_part = TrainingPart(self, self.batch_rows)
        self._found["train_set"] = self._training_part.fingerprint
        if self.tasks is not None:
            require([FineTuningTasks], f"{self.name}, as `tasks`,", datamodule=self.tasks)
            found = [t for t in cast(Any, self.tasks).tasks.values() if t.kind == "regression"]
            if len(found) != 1 or len(found[0].evaluation) != 1:
                raise ValueError(
                    f"{self.name}: expected `tasks` with one regression task, with one development set, got "
                    f"{', '.join(t.name for t in found) or 'none'} in {type(self.tasks).__name__}: use GlueTasks with "
                    "STS-B, or GrammarTasks with similarity"
                )
            self._task = found[0]
            (self._development,) = self._task.evaluation.values()
            how = vars(self.fine_tuning_settings())
            self._found |= {
                "task": self._task.fingerprint,
                "fine_tuning": how if self.fine_tuned_times else None,
            }

    def fine_tuning_settings(self) -> FineTuning:
        """Return the settings of fine-tuning."""
        changed = {"learning_rate": 1e-6, **(self.fine_tuning or {})}
        published = settings_of(self._task.name, "regression", {"all": changed})
        return self.budget.of(published, len(self._task.train))

    def check_module(self, module: Module) -> None:
        """Raise an error for a module that is no masked language model with one encoder, or has too few layers."""
        self._opened(module)
        if self._task is not None:
            longest = int(max(e.lengths.max() for e in (self._task.train, self._development)))
            remedy = "lower max_sequence_length of `tasks`"
            check_positions(module, longest, f"examples of {self._task.name}", remedy, self.name)

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report the memory of output layers of each time, and of fine-tuned copies."""
        parts = self._opened(module)
        encoder: Any = encoder_of(module)
        size = int(encoder.config.hidden_size)
        yield Cost(
            f"output layers of {len(parts.times)} times for {parts.vocab_size:,} tokens, with gradients and moments",
            4 * 4 * len(parts.times) * (size + 1) * parts.vocab_size,
            "name fewer `times`",
        )
        if self.fine_tuned_times:
            yield Cost(
                "a copy of the encoder with gradients and Adam's two moments",
                4 * 4 * sum(p.numel() for p in encoder.parameters()),
                "remove `fine_tuned_times`",
            )

    def _opened(self, module: Module) -> "_Parts":
        """Return the encoder as a map, the times, and the module's own decoder."""
        batch = next(iter(self.probe_set.batches()), {})
        if "labels" not in batch:
            raise ValueError(f"{self.name}: expected batches with `labels`, got {', '.join(sorted(batch))}")
        batch = to_device(batch, device_of(module))
        f = EncoderMap(module, batch, forward=self.forward)
        decoder = StateDecoder(module)
        times = self._times_of(f)
        with observing(module):
            logits = decoder.logits(batch, f.start(batch), batch["labels"] != IGNORED, self.forward)
        return _Parts(f, times, decoder, logits.shape[1])

    def _times_of(self, f: EncoderMap) -> tuple[int, ...]:
        """Return the times for this model."""
        depth = len(f.maps)
        if self.fine_tuned_times and not f.shared:
            raise ValueError(
                f"{self.name}: the {depth} layers of this model differ, so lmdyn cannot change their number for "
                "fine-tuning: remove `fine_tuned_times`"
            )
        if self.times is None:
            return tuple(sorted(t for t in {*TIMES, depth} if f.shared or t <= depth))
        if not f.shared and self.times[-1] > depth:
            raise ValueError(
                f"{self.name}: the layers of this model differ, so a time t is a layer: expected `times` up to "
                f"{depth}, got {list(self.times)}"
            )
        return self.times

    # ---------------------------------------------------------------- an observation

    def measure(self, module: Module, step: int) -> pd.DataFrame:
        """Measure masked tokens, then similarity."""
        with exact_products():
            parts = self._opened(module)
            rows = [({}, {"depth": float(len(parts.f.maps))}), *self._masked_tokens(module, parts)]
            if self._task is not None:
                rows += self._similarity(encoder_of(module), parts.times)
        why = "states are not finite at some t"
        return tabulate(rows, {"how": "", "where": None, "t": int}, self.name, step, why)

    @torch.no_grad()
    def _masked_tokens(self, module: Module, parts: "_Parts") -> Iterator[Row]:
        f, times, decoder, vocab_size = parts
        heads = self._retrained(module, parts)
        means = GroupedMeans(2, skip_nan=False)
        counts = torch.zeros(2, vocab_size, dtype=torch.float64)
        for batch, at in self._batches(self.probe_set, device_of(module)):
            positions = batch["labels"] != IGNORED
            labels = batch["labels"].flatten()[at]
            shown = self._show_mask(batch, at)
            for group in (0, 1):
                counts[group] += labels[shown == group].bincount(minlength=vocab_size).cpu()
            for t, x in states_at(f, batch, parts.with_floor):
                fixed = decoder.logits(batch, x, positions, self.forward)
                retrained = prediction_scores(heads[str(t)](batch, x, positions), labels)
                for how, scores in (("fixed", prediction_scores(fixed, labels)), ("retrained", retrained)):
                    values = zip(_SCORES, scores.T, strict=True)
                    means.update(shown, {f"{how} {t} {score}": value for score, value in values})
        means.reduce()
        counts = all_reduce_sum(counts)
        if not counts.any():
            raise ValueError(
                f"{self.name}: no position of the data has a label. Pass data with `labels` that are {IGNORED} except "
                "at masked tokens"
            )
        for where, groups in _WHERE.items():
            labels = counts[groups].sum(0)
            if not labels.any():
                continue
            n = labels.sum()
            mean = {name: float(means.sum(name)[groups].sum() / n) for name in means.names}
            for how, t in product(("fixed", "retrained"), times):
                place = {"how": how, "where": where, "t": t}
                yield place, {score: mean[f"{how} {t} {score}"] for score in _SCORES}
            yield {"how": "retrained", "where": where}, {"floor": mean["retrained 0 accuracy"]}
            yield {"how": "most_frequent", "where": where}, {"floor": float(labels.max() / n)}

    def _show_mask(self, batch: Mapping[str, Any], at: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """Return which labelled positions show the mask token: 0 or 1."""
        mask: int | None = getattr(self.run.tokenizer, "mask_token_id", None)
        ids: Tensor = batch["input_ids"].flatten()[at]
        return (ids == (-1 if mask is None else mask)).long()

    def _retrained(self, module: Module, parts: "_Parts") -> Mapping[str, RetrainedDecoder]:
        """Return the decoder of each time."""
        train = self._training_part.open()

        def updates() -> Iterator[States]:
            some = True
            while some:
                some = False
                for batch, at in self._batches(train, device_of(module)):
                    some = True
                    with torch.no_grad():
                        states = {str(t): x for t, x in states_at(parts.f, batch, parts.with_floor)}
                    labels = batch["labels"]
                    yield States(batch, labels != IGNORED, labels.flatten()[at], states)

        return retrain_decoders(updates(), parts.decoder, self.training, self.forward)[0]

    def _batches(
        self,
        part: ProbeSet,
        device: torch.device,
    ) -> Iterator[tuple[dict[str, Any], Int[Tensor, "n"]]]:
        """Yield this rank's batches, and the labelled positions in the flattened batch."""
        for batch in part.batches(*rank_and_world_size()):
            # before the transfer to the device, to avoid synchronization
            at = (batch["labels"] != IGNORED).flatten().nonzero()[:, 0]
            yield to_device(batch, device), at.to(device, non_blocking=True)

    def _similarity(self, encoder: Module, times: Sequence[int]) -> Iterator[Row]:
        features = pooled_states(encoder, self._task.train, times)
        targets = _scores(self._task.train)
        readouts = train_linear_readouts(features, targets, self.readout)
        features = pooled_states(encoder, self._development, times)
        scores = _scores(self._development)
        for t, predicted in zip(times, readouts(features).double().cpu(), strict=True):
            yield {"how": "frozen", "t": t}, {"pearson": readout_correlation(predicted, scores)}

        def tuned(t: int, copied: Any) -> Iterator[Row]:
            copied.config.num_hidden_layers = t
            model, _ = fine_tune(copied, self._task, self.fine_tuning_settings(), self.seed)
            found, _ = predict(model, self._task, self._development)
            yield {"how": "fine_tuned", "t": t}, {"pearson": readout_correlation(found, scores)}

        yield from divided(
            (partial(copy.deepcopy, encoder), partial(tuned, t)) for t in self.fine_tuned_times
        )


class _Parts(NamedTuple):
    f: EncoderMap
    times: tuple[int, ...]
    decoder: StateDecoder
    vocab_size: int

    @property
    def with_floor(self) -> tuple[int, ...]:
        """The times, and 0."""
        return tuple(sorted({0, *self.times}))


def _scores(examples: Any) -> Float[Tensor, "n"]:
    return torch.tensor([float(e["label"]) for e in examples], dtype=torch.float64)
