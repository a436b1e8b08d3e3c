"""TensorBoard's charts, with a coloured, labelled line for each group: each line is a run below the logger's folder."""

import hashlib
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd

from lmdyn.callbacks.observing.drawing.named_charts import named_charts, scalar_tags
from lmdyn.callbacks.training.lightning_internals import hidden_from, logged_name, shown_points
from lmdyn.runs.schema import Quantity, declarations, is_number_column

_MOST_CHARTS = 12  # of an observer; the rest is behind a prefix
_LONGEST = 80  # bytes of a folder's name
_MOST_LINES = 24  # of a chart
_SUFFIX = ".lmdyn"
_Values = dict[str, float]
_Shown = tuple[_Values, dict[str, _Values]]
"""Values of the run itself, and of the lines of each chart."""


def charted(observer: str, recorded: Sequence[Quantity], scalars: pd.DataFrame, charts: set[str]) -> _Shown:
    """Return what TensorBoard shows of an observation: values of the run itself, and of the lines of charts.

    An observer has at most 12 charts. Values that have no place in them are in ``<observer>_details``.

    Args:
        observer: name of the observer.
        recorded: its quantities.
        scalars: its rows.
        charts: names of its charts so far, to which new ones are added.

    Example:
        >>> rows = {"step": 1, "quantity": "loss", "site": "", "upos": ["", "NOUN", "DET"], "value": [2.0, 3.0, 1.0]}
        >>> charted("curves", (), pd.DataFrame(rows), set())
        ({'curves/loss': 2.0}, {'curves/loss by part of speech': {'nouns': 3.0, 'determiners': 1.0}})
    """
    own: _Values = {}
    lines: dict[str, _Values] = {}
    rest = scalar_tags(f"{observer}_details", scalars)
    for chart in named_charts(scalars, recorded):
        name = f"{observer}/{chart.title.replace('/', '∕')}"
        if name not in charts and len(charts) == _MOST_CHARTS:
            continue
        charts.add(name)
        few = chart.rows[chart.rows["line"].isin(chart.rows["line"].unique()[:_MOST_LINES])]
        known = few[few["value"].notna()]
        if chart.by:
            lines[name] = dict(zip(known["line"], known["value"], strict=True))
        elif len(known):
            own[name] = float(known["value"].iloc[0])
        for tag in scalar_tags(f"{observer}_details", few.drop(columns="line")):
            rest.pop(tag, None)
    return own | rest, lines


def lines_of(logger: Any) -> "Lines | None":
    """Return the lines of a TensorBoard logger or SummaryWriter; None for other loggers."""
    experiment = getattr(logger, "experiment", None)
    folder = getattr(experiment, "log_dir", None)
    if not isinstance(folder, str | Path) or not hasattr(experiment, "add_scalar"):
        return None
    hidden = hidden_from(logger)
    if logger not in _LINES or _LINES[logger].hidden is not hidden:
        _LINES[logger] = Lines(Path(folder), hidden)
    return _LINES[logger]


_LINES: "WeakKeyDictionary[Any, Lines]" = WeakKeyDictionary()


class Lines:
    """Runs below a logger's folder, ``<folder>/by/<line>``: their event files of this process, open while it writes.

    Args:
        folder: folder of the logger.
        hidden: the first step of which TensorBoard hides what earlier processes wrote; None to hide nothing.
    """

    def __init__(self, folder: Path, hidden: Sequence[int] | None) -> None:
        self._folder, self.hidden = folder / "by", hidden
        self._file = (
            f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}{_SUFFIX}"
        )
        self._charts: dict[str, set[str]] = {}
        self._places: dict[str, tuple[pd.DataFrame, _Shown]] = {}
        for line in {path.parent for path in self._folder.glob(f"*/events.out.tfevents.*{_SUFFIX}")}:
            if hidden:
                self._append(line, step=hidden[0], session_log={"status": "START"})

    def read(self, observer: Any, scalars: pd.DataFrame) -> _Shown:
        """Return the values of the run itself, and of the lines of each chart."""
        recorded = declarations(observer)
        charts = self._charts.get(observer.name)
        if charts is None:  # the charts of a continued run are those that it began with
            charts = self._charts[observer.name] = set()
            steps = [s for s in observer.store.steps() if s not in set(scalars["step"])]  # stored before
            for earlier in dict.fromkeys([*steps[:2], *steps[-1:]]):
                table = observer.store.read(steps=frozenset([earlier]))
                charted(observer.name, recorded, table[observer.is_scalar(table)], charts)
        # where each row is shown depends on its names only, and most observations have the same rows
        values = scalars["value"].to_numpy(dtype=float)
        names = scalars.drop(columns=["step", "tokens", "value"], errors="ignore").reset_index(drop=True)
        known = self._places.get(observer.name)
        if known is None or not names.equals(known[0]):
            texts = names[[c for c in names if not is_number_column(names[c])]]
            if texts.fillna("").duplicated().any():  # the mean of rows that differ in numbers is shown
                return charted(observer.name, recorded, scalars, charts)
            rows = scalars.assign(value=np.arange(len(names), dtype=float))
            known = self._places[observer.name] = names, charted(observer.name, recorded, rows, charts)

        def there(rows: _Values) -> _Values:
            return {
                name: float(values[int(row)]) for name, row in rows.items() if not np.isnan(values[int(row)])
            }

        own, lines = known[1]
        return there(own), {chart: there(rows) for chart, rows in lines.items()}

    def write(self, logger: Any, lines: Mapping[str, Mapping[str, float]], step: int) -> None:
        """Write values of lines."""
        of_line: dict[str, list[dict[str, Any]]] = {}
        for chart, values in lines.items():
            for line, value in values.items():
                point = {"tag": logged_name(logger, chart), "simple_value": value}
                of_line.setdefault(line, []).append(point)
        failed: OSError | None = None
        for line, points in of_line.items():
            folder = self._folder / _folder_name(line)
            if self.hidden and step == self.hidden[0] - 1:  # what a killed process did not write
                there = shown_points(folder, {step})
                points = [point for point in points if (point["tag"], step) not in there]
            try:
                self._append(folder, step=step, summary={"value": points})
            except OSError as error:  # the other lines are written
                failed = error
        if failed is not None:
            raise failed

    def _append(self, folder: Path, **event: Any) -> None:
        """Append an event, given by its fields, to the file of a line."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        path, events = folder / self._file, [event]
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            events = [{"file_version": "brain.Event:2"}, event]
        with path.open("ab") as file:
            writer = RecordWriter(file)
            for each in events:
                writer.write(Event(wall_time=time.time(), **each).SerializeToString())


def _folder_name(line: str) -> str:
    """Return a line's name as that of a folder; one that is changed ends with a hash, so that lines stay apart.

    Example:
        >>> _folder_name("nouns"), _folder_name("a/b"), _folder_name("..")
        ('nouns', 'a_b c14cdd', '__ 5ec1f7')
    """
    raw = line.encode("utf-8", "replace")
    name = re.sub(r'[/\\:*?"<>|\x00-\x1f]', "_", raw[:_LONGEST].decode("utf-8", "ignore"))
    name = name if name.strip(". ") else re.sub(r"[. ]", "_", name)
    return name if name == line else f"{name} {hashlib.sha256(raw).hexdigest()[:6]}"
