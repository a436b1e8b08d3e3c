"""What observers declare of what they record, held against logged tags and stored values."""

import inspect
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import lmdyn.callbacks
from lmdyn.callbacks import Observer
from lmdyn.callbacks.observing.loggers import scalar_tags
from lmdyn.runs.schema import declared, pattern

UNITS = {"", "share", "count", "nats", "bits", "bits/label", "steps", "nats/step", "1/step", "degrees"}
ELSEWHERE = {
    "Sparsity": "attention",  # tests/callbacks/words/test_sparsity.py
    "Similarity": "attention",  # tests/callbacks/similarity/test_attention_heads.py
    "Landscape": "explained_variance",  # tests/callbacks/landscape/test_landscape.py
    "MinimalPairs": "ngram",  # tests/callbacks/words/test_minimal_pairs.py
    "ScaffoldRule": "probability_inside",  # tests/callbacks/interdependence/test_scaffold_rule.py
    "Downstream": "exact_match",  # tests/callbacks/probing/test_downstream.py
}
"""By observer, what is in the quantities of those forms of tags that runs of the registry do not log, and where a test
says that they are logged."""


def exported() -> dict[str, type[Observer]]:
    """All observers that can be used, by name."""
    names = {name: getattr(lmdyn.callbacks, name) for name in lmdyn.callbacks.__all__}
    return {
        name: cls
        for name, cls in names.items()
        if inspect.isclass(cls) and issubclass(cls, Observer) and not inspect.isabstract(cls)
    }


def logged_tags(cls: type[Observer], folder: Path) -> set[str]:
    """The tags of stored observations in loggers that have no lines."""
    table = pd.read_parquet(folder)
    rows = table[cls.is_scalar(table) & table["quantity"].ne("learning_rate")]
    return set(scalar_tags(folder.name, rows))


def in_tensorboard(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values that TensorBoard's own reader shows, by tag, of lines behind the name of their run."""
    found = {}
    for folder in (run, *sorted(run.glob("by/*"))):
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
        name = "" if folder == run else f"{folder.name}: "
        found |= {
            f"{name}{t}": [(e.step, e.value) for e in events.Scalars(t)] for t in events.Tags()["scalars"]
        }
    return found


def is_elsewhere(cls: type[Observer], quantity: str) -> bool:
    return cls.__name__ in ELSEWHERE and ELSEWHERE[cls.__name__] in quantity


def check_tags(
    cls: type[Observer],
    name: str,
    logged: Iterable[str],
    wanted: Callable[[str], bool] = lambda quantity: True,
) -> None:
    """Each tag has a form that is declared; each form that is declared, of the quantities that are wanted, has a tag.

    A tag that several forms fit is one of those with the most letters of their own.
    """
    forms = {form: q.name for q in cls.recorded for form in q.tags_of(name)}
    met = set()
    for tag in logged:
        fitting = [form for form in forms if pattern(form).fullmatch(tag)]
        assert fitting, f"{tag} is logged but not declared"
        own = {form: len(re.sub(r"<\w+>", "", form)) for form in fitting}
        met |= {form for form in fitting if own[form] == max(own.values())}
    missing = [form for form, quantity in forms.items() if wanted(quantity) and form not in met]
    assert not missing, f"{missing} are declared but not logged"


def check_elsewhere(observer: Observer, table: pd.DataFrame) -> None:
    """The forms that runs of the registry do not log are logged of this observation, and nothing undeclared is."""
    cls = type(observer)
    tags = scalar_tags(
        observer.name, table[observer.is_scalar(table) & table["quantity"].ne("learning_rate")]
    )
    check_tags(cls, observer.name, tags, lambda quantity: is_elsewhere(cls, quantity))
    check_values(cls, table)


def check_values(cls: type[Observer], table: pd.DataFrame) -> None:
    """Each quantity of a stored table is declared, and its values are in the declared range."""
    for name, values in table.groupby("quantity", observed=True)["value"]:
        if name == "learning_rate":  # each observer records it
            continue
        quantity = declared(cls.recorded, name)
        assert quantity is not None, f"{name} is recorded but not declared"
        low, high = quantity.low, quantity.high
        ends = -math.inf if low is None else low, math.inf if high is None else high
        outside = [value for value in values if value < ends[0] - 1e-6 or value > ends[1] + 1e-6]
        assert not outside, f"{name} has values {outside[:5]}, outside of {quantity.bounds}"
