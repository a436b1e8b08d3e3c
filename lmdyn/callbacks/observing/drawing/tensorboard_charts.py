"""TensorBoard's custom scalars: the curves of one quantity in one chart, in place of a card for each curve."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from lmdyn.callbacks.observing.schema import Quantity, declared, pattern
from lmdyn.callbacks.training.lightning_internals import logged_name

__all__ = ["charts_of", "keep_charts", "log_charts", "takes_charts"]

Charts = dict[str, str]
"""Title to the regular expression of its tags."""

_BESIDE = ("_error", "_low", "_high")  # what goes with a value has no chart of its own


def charts_of(observer: str, recorded: Sequence[Quantity], quantity: str) -> Charts:
    """The charts of a quantity: one for each form of its tags; of one that is not declared, one for all of them.

    Standard errors and ends of intervals have none.

    Args:
        observer: name of the observer, with which tags begin.
        recorded: what it declares.
        quantity: as recorded.

    Example:
        >>> loss = Quantity("loss", "Mean token loss.", "nats", tags=("", "<layer>/<tag>", "rank/<band>"))
        >>> for title, tags in charts_of("curves", [loss], "loss").items():
        ...     print(f"{title}: {tags}")
        loss (nats): ^curves/loss$
        loss (nats) by layer, tag: ^(?!curves/loss/rank/[^/]+$)curves/loss/[^/]+/[^/]+$
        loss (nats) by rank, band: ^curves/loss/rank/[^/]+$
    """
    if quantity.endswith(_BESIDE):
        return {}
    found = declared(recorded, quantity)
    if found is None or not found.tags:
        return {quantity.replace("_", " "): f"^{re.escape(f'{observer}/{quantity}')}(/.*)?$"}
    forms = {
        tag: pattern(form).pattern for tag, form in zip(found.tags, found.tags_of(observer), strict=True)
    }
    charts: dict[str, list[str]] = {}  # forms of equal expressions share a chart
    for tag, expression in forms.items():
        # of several forms that fit, a tag has the one with the most letters of its own
        closer = [
            other
            for form, other in forms.items()
            if pattern(form).fullmatch(tag) is None and pattern(tag).fullmatch(form)
        ]
        excluded = "".join(f"(?!{other}$)" for other in closer)
        charts.setdefault(f"^{excluded}{expression}$", []).append(tag)
    return {_title(found, tags): expression for expression, tags in charts.items()}


def _title(quantity: Quantity, tags: Sequence[str]) -> str:
    """Words, the unit, and by what the curves differ."""
    by = [", ".join(part.strip("<>").partition("=")[0] for part in tag.split("/")) for tag in tags if tag]
    return f"{quantity.label} by {' or '.join(by)}" if by else quantity.label


_CHARTS: WeakKeyDictionary[Any, dict[str, dict[str, Charts]]] = WeakKeyDictionary()
"""By logger, observer and quantity."""
_WRITTEN: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""By logger, the observers whose charts this process has written."""


def takes_charts(logger: Any) -> bool:
    """Whether a logger is TensorBoard's."""
    return hasattr(getattr(logger, "experiment", None), "add_custom_scalars")


def keep_charts(
    logger: Any, observer: str, recorded: Sequence[Quantity], quantities: Callable[[], Iterable[str]]
) -> None:
    """Know the charts of an observer's earlier observations, so that they are written with those of others.

    TensorBoard shows the last layout of a run only: that of a process which goes on with a run names all.
    """
    known = _CHARTS.setdefault(logger, {})
    if observer not in known:
        known[observer] = {q: charts_of(logged_name(logger, observer), recorded, q) for q in quantities()}


def log_charts(logger: Any, observer: str, recorded: Sequence[Quantity], quantities: Iterable[str]) -> None:
    """Write the charts of all observers that are known, where these quantities have not been written yet."""
    known = _CHARTS.setdefault(logger, {})
    own, written = known.setdefault(observer, {}), _WRITTEN.setdefault(logger, set())
    new = [q for q in dict.fromkeys(quantities) if q not in own]
    if not new and observer in written:
        return
    own |= {q: charts_of(logged_name(logger, observer), recorded, q) for q in new}
    written |= known.keys()
    layout = {
        logged_name(logger, name): {
            title: ["Multiline", [tags]] for charts in of.values() for title, tags in charts.items()
        }
        for name, of in known.items()
    }
    logger.experiment.add_custom_scalars({name: charts for name, charts in layout.items() if charts})
