"""Which tower of a two-tower language model predicts which words better, and when that emerges."""

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
"""The encodings of the two towers of a ``TwoTowerLanguageModel``."""


class TowerPreference(Observer):
    """Which tower of a frozen two-tower model predicts each word better by itself: the token preference score.

    The model is frozen and in eval mode. An output layer is trained for each tower from the same batches of the
    training text at once (:func:`~lmdyn.analysis.train_tower_heads`); then each tower's probabilities of
    the words of the validation text are averaged by word, and the preference of a word is the logarithm of the two
    means' ratio: above 0 where the primary tower is better, which is the one with the higher mean probability over
    the text. The training of the output layers starts from fixed weights and sees fixed batches: for the same model
    the observation is always the same (on a GPU up to rounding, since sums are added in any order there).

    Of a module of one's own, ``encodings[b, t]`` of each tower is what ``labels[b, t]`` is predicted from, and must not
    have seen it; towers may differ in width.

    Of masked language models those positions count that the model reads as the mask token: at the others that it is to
    predict, a random token and the word itself stand in BERT's training text.

    With more than two towers, the primary is compared with the one that has the next highest mean probability.

    Rows by word (``by`` is ``token``) are stored and not logged, of the ``top`` most frequent words that occur at least
    ``min_count`` times in the validation text: ``preference`` (the column ``upos`` has the word's most frequent tag, of
    the training data, else of a probe set that serves ``target_upos``), ``count``, the word's frequency, and
    ``standard_error`` of the variant ``mean_probability``. Two instances are
    compared by a report of both runs: ``lmdyn report RUN1 RUN2 --out FOLDER``.

    Args:
        sites: the towers' encodings: name to module path, two or more.
        training: how the output layers are trained. Short trainings suffice to see when a preference emerges; for
            the numbers of a trained model train until they stop improving (``patience``), or longer, by another
            observer under another name.
        batch_rows: rows of text of an update, over all ranks; of a PretrainingCorpus. Other data is taken in its own
            batches, and of a DataLoader or a stream, whose first batches are taken, every rank takes others.
        variant: what is averaged: see :func:`~lmdyn.analysis.token_preference`.
        top: most frequent words, specials apart, whose preference counts.
        min_count: occurrences in the validation text below which a word is left out; of a masked language model those
            that are masked.
        frequency: count words in the training data (``train``) or in the probe set (``probe``); by default
            in the training data where its counts are known.
        previous: also correlate with the preference of the run's preceding scheduled checkpoint, the towers in the
            order of the sites. Needs a ``ScheduledCheckpoint``.
        references: folders of other runs, by name; correlate with the last preference that each recorded.
        seed: halves of the text, for the reliability, are drawn by it.
        second_seed: train the output layers once more, from first weights of this seed; None does not.
        **kwargs: see :class:`~lmdyn.callbacks.Observer`.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: fewer than two sites; numbers out of range; a ``second_seed`` that is the first; when attached, data
            without a training part, a tokenizer or counts; references that recorded nothing, ``previous`` without
            scheduled checkpoints.

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
            raise ValueError(f"variant is one of {list(get_args(PreferenceVariant))}, got {variant!r}")
        if frequency is not None and frequency not in get_args(FrequencySource):
            raise ValueError(f"frequency is one of {list(get_args(FrequencySource))}, got {frequency!r}")
        if batch_rows < 1 or top < 3 or min_count < 1 or training.updates < 1:
            raise ValueError(
                "expected batch_rows, min_count and training.updates from 1 and top from 3, got "
                f"{batch_rows}, {min_count}, {training.updates}, {top}"
            )
        if second_seed == training.seed:
            raise ValueError(
                f"second_seed is {second_seed}, and so is training.seed: the same output layers twice; give another"
            )
        if "previous" in (references or {}):
            raise ValueError(
                "a reference cannot be called 'previous': that is the run's preceding checkpoint"
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
        """Find the training part, the words to look at, and what other runs recorded."""
        if self.run.tokenizer is None:
            raise ValueError(
                f"{self.name}: expected a tokenizer, of the datamodule or of the module, for the number of words"
            )
        self._training_part = TrainingPart(self, self.batch_rows)
        own, objective = objective_of(self.run.datamodule), objective_of(self.data)
        if self.probe is not None and own is not None and own != objective:
            raise ValueError(
                f"{self.name}: the model is trained for the objective {own!r}, the probe is for {objective!r}: give "
                "both the same, or a position would be asked for a token that it reads"
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
        """The last preference that another run recorded, by word, and a hash of it."""
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
        """Refuse sites that name no module, and default ones that miss a tower."""
        if self.sites == TOWERS and not set(TOWERS.values()) & {path for path, _ in module.named_modules()}:
            raise ValueError(
                f"{self.name} compares towers, encoders side by side, and {type(module).__name__} has none at "
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
        """Fewer than the three words that a correlation needs; output layers and their optimizer."""
        counts = torch.zeros_like(self._counts)
        for batch in self.probe_set.batches():
            labels, size = batch["labels"], len(counts)
            counts += torch.bincount(labels[(labels >= 0) & (labels < size)].cpu(), minlength=size)
        words = int((self._eligible & (counts >= self.min_count)).sum())
        if words < 3:
            yield expected(
                f"three of the {self.top} most frequent words with {self.min_count} occurrences in the probe set",
                f"{words}",
                "lower `min_count`, or look at more text",
            )
        widths = site_widths(module, self.probe_set, self.sites, self.forward)
        size = len(counts) * (sum(widths.values()) + len(widths))
        yield Cost(
            f"{len(widths)} output layers for {len(counts):,} words, with gradients and Adam's two moments",
            4 * 4 * size,
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments, the content of both parts, and what the references recorded."""
        train = self._training_part.fingerprint if self._training_part is not None else None
        return {**super().settings, "sites": self.sites, "train_set": train, "references": self._digests}

    # ---------------------------------------------------------------- an observation

    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Train the output layers, average their probabilities, compare."""
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
        """The words that are looked at, the most frequent first."""
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
        ranks = -self._counts[chosen].numpy()  # their ranks: the most frequent is the first
        rows.append(_Row("frequency_rank_correlation", "", "", spearman(values, ranks)))
        if self._tags is not None:
            by_tag = pd.Series(values).groupby(self._tags[chosen]).mean()
            rows += [_Row("preference", "upos", str(tag), float(mean)) for tag, mean in by_tag.items()]
        return rows

    def _head_reliability(
        self, module: nn.Module, pair: Mapping[str, int], chosen: Int[Tensor, "n"], values: Any
    ) -> "_Row":
        """How the preference correlates with that by output layers of another seed, the towers in the same order."""
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
        """What the towers predict: a function of the weights alone.

        Where the previous checkpoint is asked for, the last two are remembered: one is the next one's previous.
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

    # ---------------------------------------------------------------- what is shown of it

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """All but the rows by word."""
        return observations["by"].ne("token")

    @staticmethod
    def record_rows(observations: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
        """What a record of a run keeps: its scalars, and of the first and the last step each word's preference.

        Words stand in the order of their frequency. Their preferences are rounded to float32, which is a third of the
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
        """Preference of frequent words, by part of speech, by frequency, over training, and between runs."""
        return preference_figures(observations, settings)

    @staticmethod
    def tables(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
        """Agreement of runs, with the frequency rank and shuffled words as controls; preference by part of speech."""
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
