"""TensorBoard's charts, with a coloured, labelled line for each group: each line is a run below the logger's folder."""

import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pandas as pd

from lmdyn.callbacks.observing.drawing.named_charts import named_charts, scalar_tags
from lmdyn.callbacks.training.lightning_internals import hidden_from, logged_name
from lmdyn.runs.schema import Quantity

__all__ = ["charted", "lines_folder", "write_lines"]

_MOST_CARDS = 12  # of an observer; the rest is behind a prefix
_LONGEST = 80  # letters of a folder's name
_SUFFIX = ".lmdyn"


def charted(
    observer: str, recorded: Sequence[Quantity], scalars: pd.DataFrame
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return what TensorBoard shows of an observation: values of the run itself, and of the lines of charts.

    An observer has at most 12 charts. Values that have no place in them are in ``<observer>_details``.

    Args:
        observer: name of the observer.
        recorded: its quantities.
        scalars: its rows.

    Example:
        >>> rows = {"step": 1, "quantity": "loss", "site": "", "upos": ["", "NOUN", "DET"], "value": [2.0, 3.0, 1.0]}
        >>> charted("curves", (), pd.DataFrame(rows))
        ({'curves/loss': 2.0}, {'curves/loss by part of speech': {'nouns': 3.0, 'determiners': 1.0}})
    """
    own: dict[str, float] = {}
    lines: dict[str, dict[str, float]] = {}
    rest = scalar_tags(f"{observer}_details", scalars)
    for chart in islice(named_charts(scalars, recorded), _MOST_CARDS):
        name = f"{observer}/{chart.title.replace('/', '∕')}"
        known = chart.rows[chart.rows["value"].notna()]
        if chart.by:
            lines[name] = dict(zip(known["line"], known["value"], strict=True))
        else:
            own |= dict.fromkeys([name], *known["value"])
        for tag in scalar_tags(f"{observer}_details", chart.rows.drop(columns="line")):
            rest.pop(tag, None)
    return own | rest, lines


def lines_folder(logger: Any) -> Path | None:
    """Return the folder of a TensorBoard logger or SummaryWriter; None for other loggers."""
    experiment = getattr(logger, "experiment", None)
    folder = getattr(experiment, "log_dir", None)
    return Path(folder) if isinstance(folder, (str, Path)) and hasattr(experiment, "add_scalar") else None


_OPEN: WeakKeyDictionary[Any, "_LineFiles"] = WeakKeyDictionary()


def write_lines(logger: Any, folder: Path, charts: Mapping[str, Mapping[str, float]], step: int) -> None:
    """Write values of lines as runs below the folder of a logger: ``<folder>/by/<line>``."""
    files = _OPEN.setdefault(logger, _LineFiles(folder, hidden_from(logger)))
    of_line: dict[str, dict[str, float]] = {}
    for chart, values in charts.items():
        for line, value in values.items():
            of_line.setdefault(line, {})[logged_name(logger, chart)] = value
    for line, of_chart in of_line.items():
        files.write(line, of_chart, step)


class _LineFiles:
    """The event files of one process, opened for each observation only: a model may have hundreds of lines.

    Args:
        folder: folder of the logger.
        hidden_from: the first step of which TensorBoard hides what earlier processes wrote; None to hide nothing.
    """

    def __init__(self, folder: Path, hidden_from: int | None) -> None:
        self.folder = folder
        self.name = (
            f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}{_SUFFIX}"
        )
        self._begun: set[Path] = set()
        for line in {path.parent for path in folder.glob(f"by/*/events.out.tfevents.*{_SUFFIX}")}:
            if hidden_from is not None:
                self._append(line, [_start(hidden_from)])

    def write(self, line: str, values: Mapping[str, float], step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        found = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=found))
        name = re.sub(r'[/\\:*?"<>|\x00-\x1f]', "_", line)[:_LONGEST]
        self._append(self.folder / "by" / (name if name.strip(".") else f"_{name}"), [event])

    def _append(self, folder: Path, events: Sequence[Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        if folder not in self._begun:
            folder.mkdir(parents=True, exist_ok=True)
            self._begun.add(folder)
            events = [Event(wall_time=time.time(), file_version="brain.Event:2"), *events]
        with (folder / self.name).open("ab") as file:
            writer = RecordWriter(file)
            for event in events:
                writer.write(event.SerializeToString())


def _start(step: int) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    return Event(wall_time=time.time(), step=step, session_log=SessionLog(status=SessionLog.START))
