"""The runs on which a claim is judged: their interface, a run's folder, and runs by their seeds."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import pandas as pd

from lmdyn.runs.provenance import Record, Settings, read_provenance, read_record
from lmdyn.runs.run_identity import identity_condition, mapping


class NotMeasured(LookupError):  # noqa: N818 (not an error of a user)
    """The data on which a claim would be judged are missing; the message says what is missing."""


class OtherCondition(NotMeasured):
    """The runs observed with this seed have other conditions than those of the claim."""


class SeedPair(NamedTuple):
    """The seeds of a run.

    Attributes:
        init: seed of initialisation and dropout (``seed_everything``); None if unknown.
        order: seed of the order of the training data (``order_seed``); None if the data has none.
    """

    init: int | None = None
    order: int | None = None

    def __str__(self) -> str:
        init = "?" if self.init is None else str(self.init)
        return init if self.order in (None, self.init) else f"{init}/{self.order}"


class ObservedRun(Protocol):
    """The interface of a run: its folder, or its record in ``docs/records``."""

    @property
    def name(self) -> str:
        """Its name among the runs."""

    @property
    def seeds(self) -> SeedPair:
        """Its seeds."""

    @property
    def condition(self) -> Settings:
        """Model, data and trainer, flat (``data.familiar``), without seeds, places, callbacks and loggers."""

    @property
    def registered(self) -> Mapping[str, Mapping[str, str]]:
        """By study and claim, the fingerprint recorded before anything that the claim reads was observed."""

    @property
    def tested(self) -> Mapping[str, float]:
        """The metrics of ``lmdyn test``; empty if it was not tested."""

    def observers(self) -> Mapping[str, str]:
        """Return the public name of the class (``lmdyn.callbacks.Sparsity``) for each folder of observations."""

    def settings(self, observer: str) -> Settings:
        """Return the settings of a folder's observations."""

    def read(self, observer: str, *, quantities: Iterable[str] | None = None) -> pd.DataFrame:
        """Return the observations of a folder, all steps in one table, or only some quantities."""


class RunFolder:
    r"""A run's folder: ``config.yaml`` or ``run.json``, ``provenance.json``, ``test.json`` and ``observations/``.

    Each may be missing.

    Args:
        path: the folder.
        name: its name among the runs; default: that of the folder.

    Raises:
        FileNotFoundError: if the folder does not exist.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "small_2"
        >>> folder.mkdir()
        >>> _ = (folder / "config.yaml").write_text("seed_everything: 2\nmodel: {class_path: my.LSTM}")
        >>> run = RunFolder(folder)
        >>> run.name, run.seeds, dict(run.condition), dict(run.observers())
        ('small_2', SeedPair(init=2, order=None), {'model': 'LSTM'}, {})
    """

    def __init__(self, path: str | Path, name: str = "") -> None:
        self.path = Path(path)
        self._name = name
        if not self.path.is_dir():
            raise FileNotFoundError(
                f"{self.path} is not a folder: expected the folder of a run, with observations/"
            )
        self._tables: dict[tuple[str, tuple[str, ...] | None], pd.DataFrame] = {}

    @property
    def name(self) -> str:
        """The given name, or the folder's."""
        return self._name or self.path.resolve().name

    @cached_property
    def _config(self) -> Settings:
        from lmdyn.runs.yaml_files import read_yaml

        path = self.path / "config.yaml"
        return mapping(read_yaml(path) if path.is_file() else None)

    @cached_property
    def seeds(self) -> SeedPair:
        """Seeds in ``config.yaml``; else that in ``run.json``; without both, in the name of a published model."""
        given = seeds_of(self._config)
        if given.init is not None:
            return given
        known = _whole(mapping(read_record(self.path / "run.json").get("seed")).get("value"))
        return given._replace(init=self._published_seed() if known is None and not self._config else known)

    def _published_seed(self) -> int | None:
        """Return the seed of the analyzed model, from ``provenance.json``; None if sessions have none, or several."""
        commands = [session.get("command") for session in read_provenance(self.path)["sessions"]]
        models = {str(c[2]) for c in commands if isinstance(c, list) and len(c) > 2 and c[1] == "analyze"}
        seeds = {name_seed(model) for model in models}
        return seeds.pop() if len(seeds) == 1 else None

    @cached_property
    def condition(self) -> Settings:
        """The condition in ``config.yaml``; without it, that in ``run.json``."""
        if self._config:
            return condition_of(self._config)
        return identity_condition(read_record(self.path / "run.json"))

    @cached_property
    def registered(self) -> Mapping[str, Mapping[str, str]]:
        """``claims`` in ``provenance.json``."""
        claims: Mapping[str, Mapping[str, str]] = read_provenance(self.path)["claims"]
        return claims

    @cached_property
    def tested(self) -> Mapping[str, float]:
        """The numbers in ``test.json``."""
        content = read_record(self.path / "test.json")
        return {k: float(v) for k, v in content.items() if isinstance(v, (int, float))}

    @cached_property
    def _about(self) -> dict[str, Record]:
        from lmdyn.runs.store import ObservationStore  # slow import

        folders = sorted(p for p in (self.path / "observations").glob("*") if p.is_dir())
        found = {p.name: ObservationStore(p).about() for p in folders}
        return {name: about for name, about in found.items() if about}

    def observers(self) -> Mapping[str, str]:
        """Return the non-empty folders below ``observations/``."""
        return {name: str(about["observer"]) for name, about in self._about.items()}

    def settings(self, observer: str) -> Settings:
        """Return the settings of a folder's observations."""
        found: Settings = self._of(observer)["settings"]
        return found

    def read(self, observer: str, *, quantities: Iterable[str] | None = None) -> pd.DataFrame:
        """Return the observations of ``observations/<observer>``; the result is cached."""
        from lmdyn.runs.store import ObservationStore

        self._of(observer)
        wanted = None if quantities is None else tuple(sorted(set(quantities)))
        if (observer, wanted) not in self._tables:
            store = ObservationStore(self.path / "observations" / observer)
            self._tables[observer, wanted] = store.read(quantities=wanted)
        return self._tables[observer, wanted]

    def _of(self, observer: str) -> Record:
        if observer not in self._about:
            raise NotMeasured(
                f"{self.name} has no observations {observer!r}: it has {', '.join(self._about) or 'none'}"
            )
        return self._about[observer]


# ------------------------------------------------------------------------------------------ configurations


_SEEDS = frozenset({"seed", "order_seed", "seed_everything"})
_NO_CONDITION = frozenset(
    {
        "trainer.accelerator",
        "trainer.barebones",
        "trainer.callbacks",
        "trainer.callbacks+",
        "trainer.default_root_dir",
        "trainer.detect_anomaly",
        "trainer.enable_autolog_hparams",
        "trainer.enable_checkpointing",
        "trainer.enable_model_summary",
        "trainer.enable_progress_bar",
        "trainer.log_every_n_steps",
        "trainer.logger",
        "trainer.num_sanity_val_steps",
        "trainer.profiler",
        "trainer.strategy",
        "data.cache_dir",
    }
)


def seeds_of(config: Settings) -> SeedPair:
    """Return the seeds in a run's configuration: ``seed_everything`` and ``data.init_args.order_seed``.

    Example:
        >>> seeds_of({"seed_everything": 2, "data": {"class_path": "X", "init_args": {"order_seed": 3}}})
        SeedPair(init=2, order=3)
    """
    arguments = mapping(mapping(config.get("data")).get("init_args"))
    return SeedPair(_whole(config.get("seed_everything")), _whole(arguments.get("order_seed")))


def name_seed(name: str) -> int | None:
    """Return the seed in a published model's name: the number after ``seed``.

    Example:
        >>> name_seed("EleutherAI/pythia-70m-seed3"), name_seed("google/multiberts-seed_0-step_{}")
        (3, 0)
    """
    found = re.search(r"seed[_-]?(\d+)", name)
    return int(found[1]) if found else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def condition_of(config: Settings) -> Record:
    """Return a run's condition: its ``model``, ``data`` and ``trainer`` by dotted names, ready for comparison.

    A class is the last part of its name, null values are left out, lists are JSON. Excluded are settings that
    distinguish runs of one condition (seeds) and those that change no number (loggers, progress bars, observers). The
    last two parts of a path are kept, without a seed at the end of a name: the folder of another machine or seed is not
    another condition. For a fork, ``forked.run``, ``forked.step`` and ``forked.rate`` are its origin and the multiple
    of that run's learning rate; other changes are among its settings.

    Example:
        >>> condition_of({
        ...     "seed_everything": 3,
        ...     "model": {"class_path": "lmdyn.models.LSTM", "init_args": {"hidden_size": 8, "vocab_size": None}},
        ...     "data": {"class_path": "Text", "init_args": {"train": "/home/me/wikitext-2/train.txt", "seed": 3}},
        ...     "trainer": {"max_epochs": 2, "logger": False, "callbacks": []},
        ... })
        {'model': 'LSTM', 'model.hidden_size': 8, 'data': 'Text', 'data.train': 'wikitext-2/train.txt',
         'trainer.max_epochs': 2}
    """
    seeds = seeds_of(config)
    found: Record = {}
    for part in ("model", "data", "trainer"):
        for name, value in flat_configuration(config.get(part), part):
            ours = any(name == left or name.startswith(f"{left}.") for left in _NO_CONDITION)
            if not ours and name.rpartition(".")[2] not in _SEEDS:
                found[name] = value
    return {
        name: _without_place(value, seeds) if isinstance(value, str) else value
        for name, value in (*found.items(), *_forked(config))
        if value is not None
    }


def _forked(config: Settings) -> Iterator[tuple[str, Any]]:
    """Yield the origin of a fork, according to its ``ForkedFrom``."""
    callbacks = mapping(config.get("trainer")).get("callbacks")
    for callback in map(mapping, callbacks if isinstance(callbacks, list) else ()):
        if str(callback.get("class_path")).rpartition(".")[2] == "ForkedFrom":
            about = mapping(callback.get("init_args"))
            yield from ((f"forked.{key}", about.get(key)) for key in ("run", "step", "rate"))


def is_fork(run: "ObservedRun") -> bool:
    """Return whether a run continued from a checkpoint of another one with other settings."""
    return "forked.step" in run.condition


def flat_configuration(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield every plain value of a configuration by its dotted name; a class by the name of its argument.

    Example:
        >>> dict(flat_configuration({"class_path": "my.LSTM", "init_args": {"size": 8, "sites": ["h1"]}}, "model"))
        {'model': 'LSTM', 'model.size': 8, 'model.sites': '["h1"]'}
    """
    if isinstance(value, Mapping) and "class_path" in value:
        yield name, str(value["class_path"]).rpartition(".")[2]
        for arguments in ("init_args", "dict_kwargs"):
            yield from flat_configuration(value.get(arguments) or {}, name)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from flat_configuration(part, f"{name}.{key}")
    elif value is None or isinstance(value, (str, int, float)):
        yield name, value
    else:
        yield name, json.dumps(value, default=str)


def _without_place(value: str, seeds: SeedPair) -> str:
    """Return the last two parts of a path, without seeds in names of folders; any other text unchanged.

    A name on the hub has one slash (``Salesforce/wikitext``); a path has more, or is absolute, or ends in a suffix.
    """
    if "/" not in value or (value.count("/") == 1 and not re.search(r"^[/~.]|\.\w{2,8}$", value)):
        return value
    own = [s for s in seeds if s is not None]
    suffix = "|".join([f"_{own[0]}_{own[-1]}", *(f"_{s}" for s in own)]) if own else "$^"
    parts = [re.sub(rf"({suffix})$", "", part) for part in value.split("/") if part not in ("", ".", "..")]
    return "/".join(parts[-2:])


# ------------------------------------------------------------------------------------------ several runs


R = TypeVar("R", bound=ObservedRun)


def by_seed(runs: Iterable[R]) -> dict[SeedPair, list[R]]:
    """Group runs that share their seeds, in the order of seeds: the conditions of a study (familiar, unfamiliar, …).

    A run without a seed of order (e.g. a tagger among language models) belongs to each group with its initialisation.
    Runs with unknown seeds are one group.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> found = by_seed([Fake(seeds=SeedPair(2, 2)), Fake(seeds=SeedPair(2, 3)), Fake(seeds=SeedPair(2))])
        >>> {str(seeds): len(runs) for seeds, runs in found.items()}
        {'2': 2, '2/3': 2}
    """
    found: dict[SeedPair, list[R]] = {}
    for run in runs:
        found.setdefault(SeedPair(*run.seeds), []).append(run)
    for seeds in [s for s in found if s.order is None and s.init is not None]:
        if ordered := [s for s in found if s.init == seeds.init and s.order is not None]:
            without = found.pop(seeds)
            for s in ordered:
                found[s] += without
    return {seeds: found[seeds] for seeds in sorted(found, key=_in_order)}


def _in_order(seeds: SeedPair) -> tuple[float, ...]:
    return tuple(-1.0 if s is None else float(s) for s in seeds)


def independent_seeds(seeds: Iterable[SeedPair]) -> list[SeedPair]:
    """Return seeds of which no two share a number: the independent draws among those of a crossed design.

    If one of both numbers never varies, the other defines the draws. Otherwise seeds with two equal numbers come first,
    then others that share none, in order.

    Example:
        >>> crossed = [SeedPair(i, j) for i in (2, 3) for j in (2, 3)]
        >>> [str(s) for s in independent_seeds(crossed)]
        ['2', '3']
        >>> [str(s) for s in independent_seeds([SeedPair(2), SeedPair(3)])]
        ['2', '3']
    """
    found = sorted(set(seeds), key=_in_order)
    varies = [len({s[i] for s in found}) > 1 for i in (0, 1)]
    if not all(varies):
        return found
    chosen: list[SeedPair] = []
    for s in sorted(found, key=lambda s: (s.init != s.order, *_in_order(s))):
        if all(s.init != c.init and s.order != c.order for c in chosen):
            chosen.append(s)
    return sorted(chosen, key=_in_order)


def differences(runs: Sequence[ObservedRun]) -> list[str]:
    """Return how the conditions of runs differ: ``data.length: 4 in a_2, 8 in b_2``; empty if they are equal."""
    names = dict.fromkeys(name for run in runs for name in run.condition)
    found = []
    for name in names:
        values: dict[str, str] = {}
        for run in runs:
            values.setdefault(repr(run.condition.get(name)), run.name)
        if len(values) > 1:
            found.append(f"{name}: " + ", ".join(f"{value} in {run}" for value, run in values.items()))
    return found
