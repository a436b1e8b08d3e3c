"""TensorBoard's custom scalars: the curves of one quantity in a few charts instead of one card per curve."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

from lmdyn.callbacks.training.lightning_internals import logged_name
from lmdyn.runs.schema import ENDS, Quantity, declared, pattern

__all__ = ["charts_of", "know_charts_of", "log_charts", "takes_charts"]

_CURVES = 24  # per chart: the curves of one run have one colour, and symbols distinguish them
_DETAIL = "{}, in detail"


def charts_of(observer: str, recorded: Sequence[Quantity], tags: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the charts of an observer: one for each form of a quantity's tags.

    Charts of more than 24 curves are split by some of their parts, such as a site, in a separate category.
    Standard errors and ends of intervals have no charts, quantities that are not declared one each.
    Tags of no form, such as those of a site with a slash in its name, have a separate chart.

    Args:
        observer: name of the observer, with which tags begin.
        recorded: quantities that it declares.
        tags: logged tags.

    Returns:
        For each category, the regular expression of the tags of each chart by title.

    Example:
        >>> loss = Quantity("loss", "Mean token loss.", "nats", tags=("", "<layer>/<tag>", "rank/<band>"))
        >>> tags = ["curves/loss", "curves/loss/upos/NOUN", "curves/loss/rank/1-9", "curves/other/h1"]
        >>> for title, expression in charts_of("curves", [loss], tags)["curves"].items():
        ...     print(f"{title}: {expression}")
        loss (nats): ^curves/loss$
        loss (nats) by layer, tag: ^(?!curves/loss/rank/[^/]+$)curves/loss/[^/]+/[^/]+$
        loss (nats) by rank, band: ^curves/loss/rank/[^/]+$
        other: ^curves/other(/.*)?$
    """
    by_quantity: dict[str, list[list[str]]] = {}
    for tag in tags:
        quantity, *parts = tag.removeprefix(f"{observer}/").split("/")
        by_quantity.setdefault(quantity, []).append(parts)
    accompanying = {f"{quantity}{end}" for quantity in by_quantity for end in ENDS}  # they have no chart
    places = {q.name: i for i, q in enumerate(recorded)}
    order = {name: i for i, name in enumerate(by_quantity)}
    charts: dict[str, dict[str, str]] = {observer: {}, _DETAIL.format(observer): {}}
    for quantity in sorted(
        by_quantity.keys() - accompanying, key=lambda name: (places.get(name, len(places)), order[name])
    ):
        start = f"{observer}/{quantity}"
        found = declared(recorded, quantity)
        if found is None or not found.tags:
            charts[observer][quantity.replace("_", " ")] = f"^{re.escape(start)}(/.*)?$"
            continue
        forms = _forms(found.tags)
        for form in forms:
            curves = [parts for parts in by_quantity[quantity] if form.holds("/".join(parts))]
            if len(curves) > _CURVES:
                charts[_DETAIL.format(observer)] |= form.cut(found.label, start, curves)
            elif curves:
                charts[observer][form.title(found.label)] = form.expression(start)
        if not all(any(form.holds("/".join(parts)) for form in forms) for parts in by_quantity[quantity]):
            charts[observer][f"{found.label}, others"] = _of_no_form(start, found.tags)
    return {category: found for category, found in charts.items() if found}


class _Form:
    """A form of tags after a quantity, ``<site>/<role>``, without tags of the more specific forms ``others``."""

    def __init__(self, form: str, others: Sequence[str]) -> None:
        self.parts = form.split("/") if form else []
        self._form, self._others = pattern(form), [pattern(other) for other in others]

    def holds(self, tag: str) -> bool:
        return bool(self._form.fullmatch(tag)) and not any(other.fullmatch(tag) for other in self._others)

    def title(self, label: str, fixed: Sequence[int] = ()) -> str:
        """Return what is drawn, and by what the curves of a chart differ."""
        by = [part.strip("<>").partition("=")[0] for i, part in enumerate(self.parts) if i not in fixed]
        return f"{label} by {', '.join(by)}" if by else label

    def expression(self, start: str, fixed: Mapping[int, str] = MappingProxyType({})) -> str:
        """Return the expression for all tags of this form, or for those with some fixed parts."""
        start = re.escape(start)
        excluded = "".join(f"(?!{start}/{other.pattern}$)" for other in self._others)
        parts = [
            re.escape(fixed[i]) if i in fixed else pattern(part).pattern for i, part in enumerate(self.parts)
        ]
        return f"^{excluded}{'/'.join([start, *parts])}$"

    def cut(self, label: str, start: str, curves: Sequence[Sequence[str]]) -> dict[str, str]:
        """Return title and expression of charts of fewer curves, with few fixed parts and few charts."""
        places = range(len(self.parts))
        ways = [fixed for n in places for fixed in combinations(places, n)]
        sizes = {fixed: Counter(tuple(parts[i] for i in fixed) for parts in curves) for fixed in ways}
        best = min(ways, key=lambda fixed: (max(_CURVES, *sizes[fixed].values()), len(sizes[fixed])))
        charts = {}
        for values in sorted(sizes[best]):
            title = f"{self.title(label, best)}: {', '.join(values)}"
            charts[title] = self.expression(start, dict(zip(best, values, strict=True)))
        return charts


def _of_no_form(start: str, tags: Sequence[str]) -> str:
    """Return the expression of the tags of a quantity that have none of these forms."""
    start = re.escape(start)
    excluded = "".join(f"(?!{start}{f'/{pattern(tag).pattern}' if tag else ''}$)" for tag in tags)
    return f"^{excluded}{start}(/.*)?$"


def _forms(tags: Sequence[str]) -> list[_Form]:
    """Return the forms, each with the more specific forms: those with more fixed letters that match the same tags."""
    unique = {pattern(tag).pattern: tag for tag in reversed(tags)}
    forms = sorted(unique.values(), key=tags.index)
    fits = {form: [o for o in forms if o and pattern(form).fullmatch(o)] for form in forms}
    return [_Form(form, [o for o in fits[form] if not pattern(o).fullmatch(form)]) for form in forms]


_TAGS: WeakKeyDictionary[Any, dict[str, tuple[Sequence[Quantity], dict[str, None]]]] = WeakKeyDictionary()
"""By logger and observer, its declared quantities and known tags."""
_WRITTEN: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
"""By logger, the last layout that this process has written."""


def takes_charts(logger: Any) -> bool:
    """Return whether a logger is TensorBoard's."""
    return hasattr(getattr(logger, "experiment", None), "add_custom_scalars")


def know_charts_of(
    logger: Any, observer: str, recorded: Sequence[Quantity], tags: Callable[[], Iterable[str]]
) -> None:
    """Register the tags of an observer's earlier observations, so that its charts are written with those of others.

    TensorBoard shows only the last layout of a run: a process that continues a run must include all charts.
    """
    known = _TAGS.setdefault(logger, {})
    if observer not in known:
        known[observer] = (recorded, dict.fromkeys(tags()))


def log_charts(logger: Any, observer: str, recorded: Sequence[Quantity], tags: Iterable[str]) -> None:
    """Write the charts of all known observers, if this process has not written them yet."""
    known = _TAGS.setdefault(logger, {})
    _, own = known.setdefault(observer, (recorded, {}))
    before = len(own)
    own |= dict.fromkeys(tags)
    if len(own) == before and logger in _WRITTEN:
        return
    layout: dict[str, Any] = {}
    for name, (declarations, there) in known.items():
        named = logged_name(logger, name)
        found = charts_of(named, declarations, [logged_name(logger, tag) for tag in there])
        layout |= {
            category: {title: ["Multiline", [expression]] for title, expression in charts.items()}
            for category, charts in found.items()
        }
    if layout != _WRITTEN.get(logger):
        _WRITTEN[logger] = layout
        logger.experiment.add_custom_scalars(layout)
