"""Preference of words for a tower of a two-tower language model, and its emergence in training."""

import hashlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import resolve_sites
from lmdyn.analysis.inspection.forward import device_of
from lmdyn.analysis.preference.preference import (
    PreferenceVariant,
    leading_towers,
    preference_standard_error,
    split_half_reliability,
    token_preference,
)
from lmdyn.analysis.preference.tower_predictions import Predictions
from lmdyn.analysis.probing.tower_heads import HeadTraining
from lmdyn.analysis.statistics.correlation import pearson, spearman
from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.callbacks.conditions.amounts import site_widths
from lmdyn.callbacks.conditions.finding import Cost, Foreseen, expected
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import TrainingPart
from lmdyn.callbacks.observing.protocols import objective_of
from lmdyn.callbacks.observing.reference import Previous
from lmdyn.callbacks.observing.store import ObservationStore
from lmdyn.callbacks.observing.token_groups import (
    FrequencySource,
    frequency_ranks,
    special_tokens,
    token_frequencies,
)
from lmdyn.callbacks.preference.tower_preference_figures import preference_figures
from lmdyn.callbacks.preference.tower_preference_quantities import TOWER_PREFERENCE
from lmdyn.callbacks.preference.tower_preference_tables import preference_tables
from lmdyn.callbacks.preference.tower_reader import TowerReader, tags_in, tags_of
from lmdyn.callbacks.training.checkpoint_files import weights_digest

__all__ = ["TowerPreference"]

log = logging.getLogger(__name__)

TOWERS: Mapping[str, str] = {"tower1": "encodings.0", "tower2": "encodings.1"}
"""Encodings of the two towers of a ``TwoTowerLanguageModel``."""


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
    tag, in
    the training data, else in a probe set with ``target_upos``), ``count``, the word's frequency, and
    ``standard_error`` of the variant ``mean_probability``. Two instances are
    compared by a report of both runs: ``lmdyn report RUN1 RUN2 --out FOLDER``.

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
        references: folders of other runs, by name; correlate with the last preference that each recorded.
        seed: seed of the halves of the text, for the reliability.
        second_seed: seed of the initial weights of a second training of the output layers; None for no second training.
        **kwargs: see :class:`~lmdyn.callbacks.Observer`.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for fewer than two sites, numbers out of range, or a ``second_seed`` equal to the first; when
            attached, for data without a training split, a tokenizer or counts, for references without observations, and
            for ``previous`` without scheduled checkpoints.

    Reference: He & Toyoizumi 2022, section 3.2, equations 2 to 4; figures 3, 4 and 8, tables 2 and 4.

    Example:
        >>> from lmdyn.analysis import HeadTraining
        >>> TowerPreference(training=HeadTraining(updates=100), top=1000).sites
        {'tower1': 'encodings.0', 'tower2': 'encodings.1'}
    """

    uses_labels = True

    recorded = TOWER_PREFERENCE
    several_runs = True

    legacy_settings: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"second_seed": None, "training.patience": None}
    )

    def __init__(
        self,
        *,
        sites: Mapping[str, str] | None = None,
        training: HeadTraining = HeadTraining(updates=300),  # noqa: B008 (frozen)
        batch_rows: int = 32,
        variant: PreferenceVariant = "mean_probability",
        top: int = 5000,
        min_count: int = 5,
        frequency: FrequencySource | None = None,
        previous: bool = False,
        references: Mapping[str, str] | None = None,
        seed: int = 0,
        second_seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.sites = dict(TOWERS if sites is None else sites)
        if len(self.sites) < 2:
            raise ValueError(f"expected the sites of two towers or more, got {list(self.sites)}")
        if variant not in get_args(PreferenceVariant):
            raise ValueError(f"variant is {variant!r}: expected one of {list(get_args(PreferenceVariant))}")
        if frequency is not None and frequency not in get_args(FrequencySource):
            raise ValueError(f"frequency is {frequency!r}: expected one of {list(get_args(FrequencySource))}")
        if batch_rows < 1 or top < 3 or min_count < 1 or training.updates < 1:
            raise ValueError(
                "expected batch_rows, min_count and training.updates from 1 and top from 3, got "
                f"{batch_rows}, {min_count}, {training.updates}, {top}"
            )
        if second_seed == training.seed:
            raise ValueError(
                f"second_seed is {second_seed}, equal to training.seed, which gives the same output layers: use another"
            )
        if "previous" in (references or {}):
            raise ValueError(
                "a reference is named 'previous', which is the name of the run's preceding checkpoint: use another"
            )
        self.training = training
        self.batch_rows = batch_rows
        self.variant: PreferenceVariant = variant
        self.top = top
        self.min_count = min_count
        self.frequency = frequency
        self.previous = Previous() if previous else None
        self.references = dict(references or {})
        self.seed = seed
        self.second_seed = second_seed
        self._training_part: TrainingPart | None = None
        self._reader: TowerReader | None = None
        self._recorded: dict[str, pd.Series[float]] = {}
        self._digests: dict[str, str] = {}
        self._known: dict[str, Predictions] = {}

    # ---------------------------------------------------------------- before training

    def prepare(self) -> None:
        """Determine the training split, the words to observe, and the records of other runs."""
        if self.run.tokenizer is None:
            raise ValueError(
                f"{self.name}: expected a tokenizer of the datamodule or the module, for the number of words"
            )
        self._training_part = TrainingPart(self, self.batch_rows)
        own, objective = objective_of(self.run.datamodule), objective_of(self.data)
        if self.probe is not None and own is not None and own != objective:
            raise ValueError(
                f"{self.name}: the model is trained for the objective {own!r}, but the probe is for {objective!r}: use "
                "the same for both, otherwise a position would have to predict a token that it reads"
            )
        if self.previous is not None:
            self.previous.check(self.run)
        self._known.clear()
        counts = token_frequencies(self, self.frequency)
        special = special_tokens(self, len(counts))
        frequency_rank = frequency_ranks(counts, special)
        self._counts = counts
        self._eligible = (frequency_rank > 0) & (frequency_rank <= self.top) & (counts > 0)
        self._words = np.array(
            self.run.tokenizer.convert_ids_to_tokens(list(range(len(counts)))), dtype=object
        )
        known = tags_of(self.run.token_counts, len(counts))
        self._tags = known if known is not None else tags_in(self.probe_set, len(counts), self.name)
        mask_id = self.run.tokenizer.mask_token_id if objective == "masked" else None
        self._reader = TowerReader(self.sites, self.forward, mask_id, len(counts), self.seed)
        for name, folder in self.references.items():
            self._recorded[name], self._digests[name] = self._read(name, Path(folder).expanduser())

    def _read(self, name: str, folder: Path) -> "tuple[pd.Series[float], str]":
        """Return the last preference that another run recorded, by word, and a hash of it."""
        store = ObservationStore(folder / "observations" / self.name)
        steps = store.steps()
        if not steps:
            raise ValueError(
                f"{self.name}: reference {name!r} has no observations {store.folder}: observe that run first "
                f"(`lmdyn analyze {folder}`), under the same name"
            )
        table = store.read()
        rows = table[
            table["step"].eq(steps[-1]) & table["quantity"].eq("preference") & table["by"].eq("token")
        ]
        recorded = rows.set_index("group")["value"]
        digest = hashlib.blake2b(pd.util.hash_pandas_object(recorded).to_numpy().tobytes(), digest_size=16)
        return recorded, digest.hexdigest()

    def check_module(self, module: nn.Module) -> None:
        """Raise an error for sites that are not modules, and for default sites that omit a tower."""
        if self.sites == TOWERS and not set(TOWERS.values()) & {path for path, _ in module.named_modules()}:
            raise ValueError(
                f"{self.name} compares towers, that is, parallel encoders, but {type(module).__name__} has none at "
                f"{', '.join(TOWERS.values())}: name the sites of their encodings by `sites`"
            )
        resolve_sites(module, self.sites)
        self.found("sites", lambda: self.sites)
        further = f"encodings.{len(TOWERS)}"
        if self.sites == TOWERS and further in dict(module.named_modules()):
            raise ValueError(
                f"{self.name}: the module has a third tower, {further}: name the sites of all towers by `sites`"
            )

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report fewer than the three words that a correlation requires; output layers and their optimizer."""
        counts = torch.zeros_like(self._counts)
        for batch in self.probe_set.batches():
            labels, size = batch["labels"], len(counts)
            counts += torch.bincount(labels[(labels >= 0) & (labels < size)].cpu(), minlength=size)
        words = int((self._eligible & (counts >= self.min_count)).sum())
        if words < 3:
            yield expected(
                f"three of the {self.top} most frequent words with {self.min_count} occurrences in the probe set",
                f"{words}",
                "lower `min_count`, or observe more text",
            )
        widths = site_widths(module, self.probe_set, self.sites, self.forward)
        size = len(counts) * (sum(widths.values()) + len(widths))
        yield Cost(
            f"{len(widths)} output layers for {len(counts):,} words, with gradients and Adam's two moments",
            4 * 4 * size,
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments, the content of both splits, and the records of the references."""
        train = self._training_part.fingerprint if self._training_part is not None else None
        return {**super().settings, "sites": self.sites, "train_set": train, "references": self._digests}

    # ---------------------------------------------------------------- an observation

    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Train the output layers, average their probabilities, and compare them."""
        found = self._predictions(module)
        towers = [str(k + 1) for k in range(len(self.sites))]
        if found is None:
            if rank_and_world_size()[0] == 0:
                log.warning(
                    "%s at step %d: encodings or the output layers trained on them are not finite: no preference",
                    self.name, step,
                )  # fmt: skip
            return _table([_Row("head_loss", "tower", tower, float("nan")) for tower in towers])
        rows = [
            _Row(quantity, "tower", tower, float(value))
            for quantity, values in (
                ("mean_probability", found.mean_probability),
                ("head_loss", found.cross_entropy),
            )
            for tower, value in zip(towers, values, strict=True)
        ]
        pair = leading_towers(found)._asdict()
        rows.append(_Row("primary_tower", "", "", pair["primary"] + 1.0))
        chosen = self._chosen(found, **pair)
        preference = token_preference(found, self.variant, **pair)
        values = preference[chosen].numpy()
        rows += self._overall(found, pair, chosen, values)
        if self.second_seed is not None:
            rows.append(self._head_reliability(module, pair, chosen, values))
        for name, recorded in self._recorded.items():
            theirs = recorded.reindex(self._words[chosen]).to_numpy(dtype="float64")
            rows += _correlations(name, values, theirs)
        if self.previous is not None:
            rows += self._with_previous(found, module, step)
        errors = None
        if self.variant == "mean_probability":
            errors = preference_standard_error(found, **pair)[chosen].numpy()
        words, counts = self._words[chosen], self._counts[chosen].numpy()
        tags = self._tags[chosen] if self._tags is not None else [None] * len(words)
        for i, (word, tag) in enumerate(zip(words, tags, strict=True)):
            rows.append(_Row("preference", "token", word, float(values[i]), tag))
            rows.append(_Row("count", "token", word, float(counts[i])))
            if errors is not None:
                rows.append(_Row("standard_error", "token", word, float(errors[i])))
        return _table(rows)

    def _chosen(self, found: Predictions, primary: int, other: int) -> Int[Tensor, "n"]:
        """Return the observed words, the most frequent first."""
        preference = token_preference(found, self.variant, primary=primary, other=other)
        chosen = (self._eligible & (found.count >= self.min_count) & preference.isfinite()).nonzero()[:, 0]
        return chosen[torch.argsort(self._counts[chosen], descending=True, stable=True)]

    def _overall(
        self, found: Predictions, pair: Mapping[str, int], chosen: Int[Tensor, "n"], values: Any
    ) -> list["_Row"]:
        rows = []
        if len(values) > 1:
            rows.append(_Row("spread", "", "", float(values.std(ddof=1))))
        if self.variant != "printed":
            reliability = split_half_reliability(found, chosen, self.variant, **pair).reliability
            rows.append(_Row("reliability", "", "", reliability))
        ranks = -self._counts[chosen].numpy()  # order of their ranks: the most frequent is the first
        rows.append(_Row("frequency_rank_correlation", "", "", spearman(values, ranks)))
        if self._tags is not None:
            by_tag = pd.Series(values).groupby(self._tags[chosen]).mean()
            rows += [_Row("preference", "upos", str(tag), float(mean)) for tag, mean in by_tag.items()]
        return rows

    def _head_reliability(
        self, module: nn.Module, pair: Mapping[str, int], chosen: Int[Tensor, "n"], values: Any
    ) -> "_Row":
        """Correlate the preference with that of output layers of another seed, with the towers in the same order."""
        assert self.second_seed is not None
        again = self._trained(module, replace(self.training, seed=self.second_seed))
        r = float("nan")
        if again is not None:
            theirs = token_preference(again, self.variant, **pair)[chosen].numpy()
            both = np.isfinite(values) & np.isfinite(theirs)
            r = pearson(values[both], theirs[both])
        return _Row("head_reliability", "", "", r)

    def _with_previous(self, found: Predictions, module: nn.Module, step: int) -> list["_Row"]:
        assert self.previous is not None
        rows: list[_Row] = []
        pair = {"primary": 0, "other": 1} if len(self.sites) == 2 else leading_towers(found)._asdict()
        for before in self.previous.modules(module, self.run, step).values():
            device = device_of(module)
            theirs = self._predictions(before.to(device))
            if theirs is not None:
                chosen = self._chosen(found, **pair)
                now, then = (
                    token_preference(p, self.variant, **pair)[chosen].numpy() for p in (found, theirs)
                )
                rows += _correlations("previous", now, then)
        return rows

    def _predictions(self, module: nn.Module) -> Predictions | None:
        """Return the predictions of the towers, which depend only on the weights.

        If ``previous`` is set, the last two are cached: one is the previous one of the next.
        """
        key = weights_digest(module.state_dict()) if self.previous is not None else ""
        if key in self._known:
            return self._known[key]
        found = self._trained(module, self.training)
        if key and found is not None:
            self._known = {**dict(list(self._known.items())[-1:]), key: found}
        return found

    def _trained(self, module: nn.Module, training: HeadTraining) -> Predictions | None:
        assert self._reader is not None
        assert self._training_part is not None
        return self._reader.predictions(
            module, self._training_part.open(), self.probe_set, training, printed=self.variant == "printed"
        )

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

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw preference of frequent words, by part of speech, by frequency, over training, and between runs."""
        return preference_figures(observations, settings)

    @staticmethod
    def tables(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
        """Return agreement of runs, with the frequency rank and shuffled words as controls; preference by POS tag."""
        return preference_tables(observations, settings)


class _Row(NamedTuple):
    quantity: str
    by: str
    group: str
    value: float
    upos: str | None = None


def _table(rows: list[_Row]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=list(_Row._fields))
    table.insert(1, "site", "")
    return table[["quantity", "site", "by", "group", "upos", "value"]].astype(
        {"value": "float64", "upos": object}
    )


def _correlations(name: str, ours: Any, theirs: Any) -> list[_Row]:
    both = np.isfinite(ours) & np.isfinite(theirs)
    found = {"correlation": pearson, "rank_correlation": spearman}
    values = {quantity: f(ours[both], theirs[both]) for quantity, f in found.items()}
    return [_Row(quantity, "reference", name, value) for quantity, value in values.items()]
