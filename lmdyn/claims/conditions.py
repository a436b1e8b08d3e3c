"""What a run is a case of: its seeds, and its configuration without them."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

__all__ = ["SeedPair", "condition_of", "seeds_of"]


class SeedPair(NamedTuple):
    """The seeds of a run.

    Attributes:
        init: of initialisation and dropout (``seed_everything``); None where it is not known.
        order: of the order of the training data (``order_seed``); None where the data has none.
    """

    init: int | None = None
    order: int | None = None

    def __str__(self) -> str:
        init = "?" if self.init is None else str(self.init)
        return init if self.order in (None, self.init) else f"{init}/{self.order}"


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


def seeds_of(config: Mapping[str, Any]) -> SeedPair:
    """The seeds in a run's configuration: ``seed_everything`` and ``data.init_args.order_seed``.

    Example:
        >>> seeds_of({"seed_everything": 2, "data": {"class_path": "X", "init_args": {"order_seed": 3}}})
        SeedPair(init=2, order=3)
    """
    data = config.get("data")
    arguments = data.get("init_args") if isinstance(data, Mapping) else None
    order = arguments.get("order_seed") if isinstance(arguments, Mapping) else None
    return SeedPair(_whole(config.get("seed_everything")), _whole(order))


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def condition_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a run is a case of: its ``model``, ``data`` and ``trainer`` by dotted names, ready to be compared.

    A class is the last part of its name, what is null is left out, lists are JSON. Left out is what tells runs of one
    condition apart (seeds) and what changes no number (loggers, progress bars, observers). Of a path the last two parts
    are kept, without a seed at the end of a name: the folder of another machine or seed is no other condition.

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
    found: dict[str, Any] = {}
    for part in ("model", "data", "trainer"):
        for name, value in _flat(config.get(part), part):
            ours = any(name == left or name.startswith(f"{left}.") for left in _NO_CONDITION)
            if value is not None and not ours and name.rpartition(".")[2] not in _SEEDS:
                found[name] = _without_place(value, seeds) if isinstance(value, str) else value
    return found


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every plain value by its name with dots; a class by the name of what it is given as."""
    if isinstance(value, Mapping) and "class_path" in value:
        yield name, str(value["class_path"]).rpartition(".")[2]
        for arguments in ("init_args", "dict_kwargs"):
            yield from _flat(value.get(arguments) or {}, name)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(part, f"{name}.{key}")
    elif value is None or isinstance(value, (str, int, float)):
        yield name, value
    else:
        yield name, json.dumps(value, default=str)


def _without_place(value: str, seeds: SeedPair) -> str:
    """A path by its last two parts, without the seeds in names of folders; any other text as it is.

    A name on the hub has one slash (``Salesforce/wikitext``), and a path more, or it is absolute, or ends in a suffix.
    """
    if "/" not in value or (value.count("/") == 1 and not re.search(r"^[/~.]|\.\w{2,8}$", value)):
        return value
    own = [s for s in seeds if s is not None]
    suffix = "|".join([f"_{own[0]}_{own[-1]}", *(f"_{s}" for s in own)]) if own else "$^"
    parts = [re.sub(rf"({suffix})$", "", part) for part in value.split("/") if part not in ("", ".", "..")]
    return "/".join(parts[-2:])
