"""Preference of words for a tower of a two-tower language model, and its emergence in training."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.inspection.activations import resolve_sites
from lmdyn.analysis.inspection.forward import device_of
from lmdyn.analysis.preference.preference import (
    Pair,
    PreferenceVariant,
    leading_towers,
    most_frequent_tag,
    preference_standard_error,
    split_half_reliability,
    token_preference,
)
from lmdyn.analysis.preference.tower_predictions import Predictions
from lmdyn.analysis.probing.tower_heads import HeadTraining
from lmdyn.analysis.statistics.correlation import pearson, spearman
from lmdyn.callbacks.observing.amounts import count_labels, site_widths
from lmdyn.callbacks.observing.checked_fields import From
from lmdyn.callbacks.observing.findings import Cost, Foreseen, expected
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import TrainingPart
from lmdyn.callbacks.observing.protocols import objective_of
from lmdyn.callbacks.observing.reference import Previous
from lmdyn.callbacks.observing.run import report
from lmdyn.callbacks.observing.sums import Row, tabulate
from lmdyn.callbacks.observing.token_groups import FrequencySource, ranked_tokens, token_names
from lmdyn.callbacks.preference.tower_preference_figures import preference_figures
from lmdyn.callbacks.preference.tower_preference_tables import oriented, preference_tables
from lmdyn.callbacks.preference.tower_reader import TowerReader
from lmdyn.runs.checkpoint_files import weights_digest
from lmdyn.runs.schema import Quantity

__all__ = ["TOWERS", "TowerPreference"]

TOWERS: Mapping[str, str] = {"tower1": "encodings.0", "tower2": "encodings.1"}
"""Encodings of the two towers of a ``TwoTowerLanguageModel``."""

_LEAST = 3  # words of a correlation
_COLUMNS = {"by": "", "group": "", "upos": None}
_of_tower = partial(Quantity, low=0.0, tags=("tower/<number>",))
_over_training = partial(Quantity, panel="over_training")
_correlation = partial(Quantity, low=-1.0, high=1.0)
_agreement = partial(_correlation, tags=("reference/<name>",), panel="agreement_over_training", lines="group")


class TowerPreference(Observer):
    """Which tower of a frozen two-tower model predicts each word better by itself: the token preference score.

    The model is frozen and in eval mode. An output layer is trained for each tower from the same batches of the
    training text at once (:func:`~lmdyn.analysis.train_tower_heads`); then each tower's probabilities of
    the words of the validation text are averaged by word, and the preference of a word is the logarithm of the ratio of
    the two means: above 0 if the primary tower is better, which is the one with the higher mean probability over
    the text. The training of the output layers starts from fixed weights and uses fixed batches: for the same model
    the observation is always the same (on a GPU up to rounding, since the order of sums varies).

    For a custom module, ``encodings[b, t]`` of each tower is the encoding from which ``labels[b, t]`` is predicted, and
    must not depend on it; towers may differ in width.

    For masked language models, only positions count that the model reads as the mask token: at the other positions to
    predict, BERT's training text contains a random token or the word itself.

    With more than two towers, the primary is compared with the one that has the next highest mean probability.

    Rows by word (``by`` is ``token``) are stored but not logged, for the ``top`` most frequent words that occur at
    least ``min_count`` times in the validation text: ``preference`` (the column ``upos`` has the word's most frequent
    tag, in the training data, else in a probe set with ``target_upos``), ``count``, the word's frequency, and
    ``standard_error`` of the variant ``mean_probability``. A number that is not defined has no row, such as a
    correlation with a constant preference. Two instances are compared by a report of both runs:
    ``lmdyn report RUN1 RUN2 --out FOLDER``.

    Args:
        sites: module paths of the towers' encodings by name, two or more.
        training: training of the output layers. Short trainings suffice to find the emergence of a preference; for
            the numbers of a trained model, train until they stop improving (``patience``), or longer, by another
            observer with another name.
        batch_rows: rows of text per update, over all ranks, for a PretrainingCorpus. Other data is used in its own
            batches; for a DataLoader or a stream, the first batches are used, and every rank uses others.
        variant: the averaged quantity: see :func:`~lmdyn.analysis.token_preference`.
        top: number of most frequent words, without special tokens, whose preference counts.
        min_count: minimum number of occurrences of a word in the validation text; for a masked language model, of
            masked ones.
        frequency: count words in the training data (``train``) or in the probe set (``probe``); by default
            in the training data if its counts are known.
        previous: whether to correlate also with the preference of the run's preceding scheduled checkpoint, with the
            towers in the order of the sites. Requires a ``ScheduledCheckpoint``.
        references: only None: a report of several runs correlates their preferences.
        seed: seed of the halves of the text, for the reliability.
        second_seed: seed of the initial weights of a second training of the output layers; None for no second training.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for fewer than two sites, numbers out of range, or a ``second_seed`` equal to the first; when
            attached, for data without a training split, a tokenizer or counts, and for ``previous`` without scheduled
            checkpoints.

    Reference: He & Toyoizumi 2022, section 3.2, equations 2 to 4; figures 3, 4 and 8, tables 2 and 4.

    Example:
        >>> from lmdyn.analysis import HeadTraining
        >>> TowerPreference(training=HeadTraining(updates=100), top=1000).towers
        {'tower1': 'encodings.0', 'tower2': 'encodings.1'}
    """

    sites: Mapping[str, str] | None = None
    training: HeadTraining = HeadTraining(updates=300)
    batch_rows: Annotated[int, From(1)] = 32
    variant: PreferenceVariant = "mean_probability"
    top: Annotated[int, From(_LEAST)] = 5000
    min_count: Annotated[int, From(1)] = 5
    frequency: FrequencySource | None = None
    previous: bool = False
    references: None = None
    seed: int = 0
    second_seed: int | None = None

    uses_labels = True
    several_runs = True
    recorded = (
        _of_tower(
            "mean_probability",
            "Mean over all positions of the probability that a tower's output layer gives to the correct word, "
            "with towers numbered as `sites` lists them.",
            high=1.0,
            better="higher",
        ),
        _of_tower("head_loss", "Mean −ln p of a tower's output layer.", "nats", better="lower"),
        Quantity("primary_tower", "Number of the tower with the higher mean probability.", low=1.0),
        _over_training(
            "spread",
            "Standard deviation of the preference over words.",
            "nats",
            low=0.0,
            short="spread of preference",
        ),
        _over_training(
            "reliability",
            "Split-half reliability of the preference (Spearman–Brown), which reflects only the "
            "noise of the text; may be near 1 for an untrained model.",
            high=1.0,
            short="split-half reliability",
        ),
        _correlation(
            "head_reliability",
            "Pearson's correlation of the preferences from output layers trained with two seeds (`second_seed`).",
            panel="over_training",
            short="correlation of output\nlayers of two seeds",
        ),
        _correlation(
            "frequency_rank_correlation",
            "Spearman's correlation of preference and frequency rank; rank 1 is the most frequent word.",
            panel="over_training",
            short="correlation with\nfrequency rank",
        ),
        Quantity(
            "preference",
            "Logarithm of the ratio of the towers' mean probabilities, above 0 if the primary tower is "
            "better; logged as the mean over words by most frequent tag, stored by word.",
            "nats",
            tags=("upos/<tag>",),
            panel="tags_over_training",
            short="mean preference by tag",
            lines="group",
            where=(("by", ("upos",)),),
        ),
        _agreement(
            "correlation",
            "Pearson's correlation of the preference with that of a reference.",
            short="Pearson's correlation\nof preference",
        ),
        _agreement(
            "rank_correlation",
            "Spearman's correlation of the preference with that of a reference.",
            short="Spearman's correlation\nof preference",
        ),
        Quantity("count", "Count of a word in the text named by `frequency`.", "count", low=1.0, tags=()),
        Quantity(
            "standard_error", "Standard error of a word's preference, over texts.", "nats", low=0.0, tags=()
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._known: dict[str, Predictions] = {}
        self.towers: dict[str, str] = self.found("sites", lambda: dict(TOWERS))
        if len(self.towers) < 2:
            raise ValueError(f"expected two towers or more in `sites`, got {len(self.towers)}")
        if self.second_seed == self.training.seed:
            raise ValueError(
                f"second_seed is {self.second_seed}, equal to training.seed, and would give the same output layers: "
                "use another seed"
            )

    # ---------------------------------------------------------------- before training

    def prepare(self) -> None:
        """Determine the training split and the words to observe."""
        tokenizer = self.run.required_tokenizer(self.name)
        self._training_part = TrainingPart(self, self.batch_rows)
        own = objective_of(self.run.datamodule)
        objective = objective_of(self.data)
        if self.probe is not None and own is not None and own != objective:
            raise ValueError(
                f"{self.name}: the model is trained for the objective {own!r}, but the probe is for {objective!r}: "
                f"pass a `probe` with the objective {own!r}"
            )
        if self.previous:
            Previous().check(self.run)
        self._counts, ranks = ranked_tokens(self, self.frequency)
        size = len(ranks)
        self._eligible = (ranks > 0) & (ranks <= self.top)
        self._words = np.array(token_names(tokenizer, size), dtype=object)
        self._tags = self._most_frequent_tags(size)
        mask_id = tokenizer.mask_token_id if objective == "masked" else None
        self._reader = TowerReader(self.towers, self.forward, mask_id, size, self.seed)
        self._found |= {"train_set": self._training_part.fingerprint, "references": {}}

    def _most_frequent_tags(self, size: int) -> Any:
        """Return the most frequent tag of each token type, in training or in the probe set; None without tags."""
        counted = self.run.token_counts
        names = [] if counted is None else [c for c in counted.columns if c not in ("token", "count")]
        if counted is not None and names and len(counted) >= size:
            counts = torch.from_numpy(counted[names].to_numpy(dtype="int64")[:size].copy())
        else:
            names = list(self.probe_set.label_names.get("upos") or [])
            counts = torch.zeros(size * len(names), dtype=torch.int64)
            for batch in self.probe_set.batches() if names else ():
                if "target_upos" not in batch:
                    return None
                labels = batch["labels"].cpu()
                tags = batch["target_upos"].cpu()
                known = (labels >= 0) & (labels < size) & (tags >= 0)
                counts += torch.bincount(labels[known] * len(names) + tags[known], minlength=len(counts))
            if not names:
                return None
            report(self.name, "training counts of tags are unknown: lmdyn counts tags in the probe set")
        best = most_frequent_tag(counts.view(size, len(names)))
        return np.array([*names, None], dtype=object)[best.numpy()]

    def check_module(self, module: Module) -> None:
        """Raise an error for sites that are not modules, and for default sites that omit a tower."""
        paths = {path for path, _ in module.named_modules()}
        if self.towers == TOWERS and not set(TOWERS.values()) & paths:
            raise ValueError(
                f"{self.name} compares towers, that is, parallel encoders, but {type(module).__name__} has no towers "
                f"at {', '.join(TOWERS.values())}: name the towers' outputs with `sites`"
            )
        resolve_sites(module, self.towers)
        further = f"encodings.{len(TOWERS)}"
        if self.towers == TOWERS and further in paths:
            raise ValueError(
                f"{self.name}: the module has a third tower, {further}: name the outputs of all towers with `sites`"
            )

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report fewer than the three words that a correlation requires; output layers and their optimizer."""
        counts = count_labels(self.probe_set, ["labels"])["labels"]
        words = int((self._eligible[: len(counts)] & (counts >= self.min_count)).sum())
        if words < _LEAST:
            yield expected(
                f"three of the {self.top} most frequent words with {self.min_count} occurrences in the probe set",
                f"{words}",
                "lower `min_count`, or observe more text",
            )
        widths = site_widths(module, self.probe_set, self.towers, self.forward)
        size = len(self._counts) * (sum(widths.values()) + len(widths))
        yield Cost(
            f"{len(widths)} output layers for {len(self._counts):,} words, with gradients and Adam's two moments",
            4 * 4 * size,
        )

    # ---------------------------------------------------------------- an observation

    def measure(self, module: Module, step: int) -> pd.DataFrame:
        """Train the output layers, average their probabilities, and compare them."""
        why = "encodings, or output layers trained on encodings, are not finite"
        return tabulate(self._rows(module, step), _COLUMNS, self.name, step, why)

    def _rows(self, module: Module, step: int) -> Iterator[Row]:
        towers = [{"by": "tower", "group": str(k + 1)} for k in range(len(self.towers))]
        found = self._predictions(module)
        if found is None:  # encodings or output layers are not finite
            yield from ((tower, {"head_loss": math.nan}) for tower in towers)
            return
        means = {"mean_probability": found.mean_probability, "head_loss": found.cross_entropy}
        for quantity, values in means.items():
            yield from ((tower, {quantity: v}) for tower, v in zip(towers, values.tolist(), strict=True))
        pair = leading_towers(found)
        yield {}, {"primary_tower": pair.primary + 1}
        chosen = self._chosen(found, pair)
        preference = self._preference(found, pair)[chosen].numpy()
        if len(preference) > 1:
            yield {}, {"spread": preference.std(ddof=1)}
        halves = split_half_reliability(found, chosen, self.variant, **pair._asdict())
        yield {}, {"reliability": _if_defined(halves.reliability)}
        ranks = -self._counts[chosen].numpy()  # order of their ranks: the most frequent is the first
        yield {}, {"frequency_rank_correlation": _if_defined(spearman(preference, ranks))}
        if self._tags is not None:
            by_tag = pd.Series(preference).groupby(self._tags[chosen]).mean()
            for tag, mean in by_tag.items():
                yield {"by": "upos", "group": str(tag)}, {"preference": mean}
        if self.second_seed is not None:
            again = self._trained(module, replace(self.training, seed=self.second_seed))
            if again is None:
                yield {}, {"head_reliability": math.nan}
            else:
                theirs = self._preference(again, pair)[chosen].numpy()
                yield {}, {"head_reliability": _correlations(preference, theirs)["correlation"]}
        if self.previous:
            leading = Pair(0, 1) if len(self.towers) == 2 else pair
            for before in Previous().modules(module, self.run, step).values():
                earlier = self._predictions(before.to(device_of(module)))
                if earlier is not None:
                    same = self._chosen(found, leading)
                    now, then = (self._preference(p, leading)[same].numpy() for p in (found, earlier))
                    yield {"by": "reference", "group": "previous"}, _correlations(now, then)
        further = {"count": self._counts[chosen].tolist()}
        if self.variant == "mean_probability":
            further["standard_error"] = preference_standard_error(found, **pair._asdict())[chosen].tolist()
        tags = self._tags[chosen] if self._tags is not None else [None] * len(chosen)
        for i, (word, tag) in enumerate(zip(self._words[chosen], tags, strict=True)):
            place = {"by": "token", "group": word}
            yield {**place, "upos": tag}, {"preference": preference[i]}
            yield place, {quantity: _if_defined(values[i]) for quantity, values in further.items()}

    def _preference(self, found: Predictions, pair: Pair) -> Tensor:
        return token_preference(found, self.variant, primary=pair.primary, other=pair.other)

    def _chosen(self, found: Predictions, pair: Pair) -> Int[Tensor, "n"]:
        """Return the observed words, the most frequent first."""
        finite = self._preference(found, pair).isfinite()
        chosen = (self._eligible & (found.count >= self.min_count) & finite).nonzero()[:, 0]
        return chosen[torch.argsort(self._counts[chosen], descending=True, stable=True)]

    def _predictions(self, module: Module) -> Predictions | None:
        """Return the predictions of the towers, which depend only on the weights.

        If ``previous`` is set, the last two are cached: one is the previous one of the next.
        """
        key = weights_digest(module.state_dict()) if self.previous else ""
        if key in self._known:
            return self._known[key]
        found = self._trained(module, self.training)
        if key and found is not None:
            self._known = {**dict(list(self._known.items())[-1:]), key: found}
        return found

    def _trained(self, module: Module, training: HeadTraining) -> Predictions | None:
        return self._reader.predictions(module, self._training_part.open(), self.probe_set, training)

    # ---------------------------------------------------------------- output

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return all rows except those by word."""
        return observations["by"].ne("token")

    @staticmethod
    def record_rows(observations: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows for a record of a run: its scalars, and each word's preference at the first and last step.

        Words are in the order of their frequency. Their preferences are rounded to float32, which takes a third of the
        space.
        """
        words = observations["by"].eq("token") & observations["quantity"].eq("preference")
        ends = observations["step"].isin([observations["step"].min(), observations["step"].max()])
        kept = observations[TowerPreference.is_scalar(observations) | (words & ends)].copy()
        of_words = kept["by"].eq("token")
        kept.loc[of_words, "value"] = kept.loc[of_words, "value"].astype("float32").astype("float64")
        return kept

    @classmethod
    def figures(cls, observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw figures 3, 4 and 8 of the publication, and preference over training."""
        figures = preference_figures(observations, settings)
        return figures | super().figures(oriented(observations), settings)

    @staticmethod
    def tables(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
        """Return agreement of runs, with shuffled words as a control."""
        return preference_tables(observations, settings)


def _if_defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def _correlations(ours: Any, theirs: Any) -> dict[str, float | None]:
    both = np.isfinite(ours) & np.isfinite(theirs)
    found = {"correlation": pearson, "rank_correlation": spearman}
    return {quantity: _if_defined(f(ours[both], theirs[both])) for quantity, f in found.items()}
