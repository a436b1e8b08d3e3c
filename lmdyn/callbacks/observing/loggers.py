"""Output of observations to the loggers: scalars and figures. An error in it does not end the training."""

import gc
import logging
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import pandas as pd
import pyarrow.compute as pc
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from matplotlib.figure import Figure

from lmdyn.callbacks.observing.drawing.named_charts import named_charts, scalar_tags
from lmdyn.callbacks.observing.drawing.sentences import Finding, finding
from lmdyn.callbacks.observing.drawing.step_axis import unit_of
from lmdyn.callbacks.observing.drawing.summary_picture import summary_picture
from lmdyn.callbacks.observing.drawing.tensorboard_lines import lines_of
from lmdyn.callbacks.observing.figures import MOST_STEPS, pixels, spread_out
from lmdyn.callbacks.training.lightning_internals import logged_name
from lmdyn.runs.schema import declarations

__all__ = [
    "LiveFigures",
    "draw",
    "log_figure",
    "publish",
    "scalar_tags",
    "takes_images",
    "where_curves_are",
]

log = logging.getLogger(__name__)

LogFigures = bool | Literal["every"]
"""Whether figures are drawn for loggers: at the end and seldom before it (:class:`LiveFigures`), or at every step."""


def publish(observer: Any, table: pd.DataFrame, loggers: Sequence[Any], step: int) -> None:
    """Send an observation's scalars to every logger, and draw figures if the observer draws them at each observation.

    An error does not end the run: it is logged with its traceback, once for each observer and failed output. The
    observation is already stored, so ``lmdyn report`` can draw its figures later.
    """
    with _survived(observer, "its scalars"):
        rows = table[observer.is_scalar(table) & (table["quantity"] != "learning_rate")]
        scalars = scalar_tags(observer.name, rows)
        for logger in loggers:
            with _survived(observer, f"scalars for {type(logger).__name__}"):
                if isinstance(logger, WandbLogger):
                    _plot_over_steps(logger, observer.name)
                lines = lines_of(logger)
                own, of_lines = (scalars, {}) if lines is None else lines.read(observer, rows)
                logger.log_metrics(own, step=step)
                if lines is not None:
                    lines.write(logger, of_lines, step)
                if isinstance(logger, CSVLogger):
                    logger.save()  # otherwise it buffers rows until a step that ends in 99, or the end
    if observer.log_figures == "every":
        draw(observer, loggers, step)


def draw(observer: Any, loggers: Sequence[Any], step: int) -> None:
    """Send figures of the observations up to a step to loggers of images, with errors as in :func:`publish`.

    If there are more than 300 observations, figures show 300, evenly spaced, including the last. A figure never has
    the tag of a scalar: TensorBoard would lose the figure, and the scalar from its step on.
    """
    if not observer.log_figures or not any(map(takes_images, loggers)):
        return
    with _survived(observer, "its figures"), _no_collection():
        steps = [s for s in observer.store.steps() if s <= step]
        # as in a report: drawing all of them takes long
        drawn = spread_out(steps, MOST_STEPS)
        rows = observer.figure_rows
        observations = observer.store.read(
            steps=frozenset(drawn), where=rows(drawn) if callable(rows) else rows
        )
        pictured = [logger for logger in loggers if takes_images(logger)]
        with unit_of(observations):
            for name, figure in observer.figures(observations, observer.settings).items():
                with _survived(observer, f"figure {name!r}"):
                    log_figure(pictured, f"{observer.name}/figures/{name}", figure, step)
            cards = list(filter(has_cards, pictured))
            if cards and (found := _found(observer, drawn)):
                log_figure(cards, f"_summary/{observer.name}", summary_picture(found), step)


def _found(observer: Any, steps: Sequence[int]) -> Finding | None:
    """Return what an observer found, from the rows of the quantity that comes first."""

    def scalars(of: Sequence[int], where: Any = None) -> Any:
        table = observer.store.read(steps=frozenset(of), where=where)
        return table[observer.is_scalar(table)]

    recorded = declarations(observer)
    first = next(named_charts(scalars(steps[-1:]), recorded), None)
    return finding(scalars(steps, pc.field("quantity") == first.quantity), recorded) if first else None


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: figures are so many objects that searches for it take a fifth of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class LiveFigures:
    """Decides when a training draws its figures: at its end, and before it as seldom as they are slow.

    Figures of several observers take seconds, as long as many training steps. They are drawn only after 100 times as
    long as the last time took. The first drawing is assumed to take 6 seconds: 10 minutes pass before it.
    """

    def __init__(self) -> None:
        self._undrawn: dict[Any, int] = {}
        self._next = time.monotonic() + _WAIT * _FIRST_S

    def observed(self, observers: Sequence[Any], loggers: Sequence[Any], step: int) -> None:
        """Note new observations; draw the figures of all observers that have any, if it is time to."""
        self._undrawn |= dict.fromkeys((o for o in observers if o.log_figures is True), step)
        if time.monotonic() >= self._next:
            began = time.monotonic()
            for observer in list(self._undrawn):
                self.finish(observer, loggers)
            self._next = time.monotonic() + _WAIT * (time.monotonic() - began)

    def finish(self, observer: Any, loggers: Sequence[Any]) -> None:
        """Draw the figures of an observer, if they do not show its last observation."""
        if (step := self._undrawn.pop(observer, None)) is not None:
            draw(observer, loggers, step)


_WAIT = 100  # times the duration of the last drawing: figures take 1 % of the time
_FIRST_S = 6.0
_SCREEN = 75.0  # dots per inch: letters are as large as text beside them, and more dots take longer


def takes_images(logger: Any) -> bool:
    """Return whether :func:`log_figure` can send figures to a logger."""
    return hasattr(logger, "log_image") or has_cards(logger)


def has_cards(logger: Any) -> bool:
    """Return whether a logger shows images as TensorBoard does."""
    return hasattr(getattr(logger, "experiment", None), "add_image")


def log_figure(loggers: Sequence[Any], tag: str, figure: Figure, step: int) -> None:
    """Send a figure to loggers of images: by TensorBoard's ``add_image``, or ``log_image``."""
    figure.set_dpi(min(figure.dpi, _SCREEN))
    picture = pixels(figure)
    for logger in loggers:
        if has_cards(logger):
            logger.experiment.add_image(tag, picture, step, dataformats="HWC")
        else:
            # the slider of Weights & Biases over images counts calls: the caption contains the step
            caption = {"caption": [f"step {step}"]} if isinstance(logger, WandbLogger) else {}
            logger.log_image(key=tag, images=[picture], step=step, **caption)


def where_curves_are(logger: Any) -> str:
    """Return how to view the curves of a logger: a command, an address or a path."""
    if isinstance(logger, TensorBoardLogger):
        return shlex.join([sys.executable, "-m", "tensorboard.main", "--logdir", str(logger.log_dir)])
    if isinstance(logger, WandbLogger):
        # no address offline
        return str(logger.experiment.url or f"wandb sync {Path(logger.experiment.dir).parent}")
    return f"{type(logger).__name__}: {logger.log_dir or logger.save_dir or logger.version}"


def _plot_over_steps(logger: WandbLogger, name: str) -> None:
    """Let Weights & Biases draw an observer's curves over the training steps, in any order.

    Its own steps count calls and must increase. The logger adds the training step to each entry and declares it as the
    axis of all curves, but only in runs that it has started itself.
    """
    logger.experiment.define_metric("trainer/global_step")
    curves = f"{logged_name(logger, name)}/*"
    logger.experiment.define_metric(curves, step_metric="trainer/global_step", step_sync=True)


_FAILED: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""By observer, the outputs that have failed before."""


@contextmanager
def _survived(observer: Any, what: str) -> Iterator[None]:
    """Log an error in this context, the first time, instead of raising it."""
    try:
        yield
    except Exception:
        failed = _FAILED.setdefault(observer, set())
        if what not in failed:
            failed.add(what)
            log.exception(
                "%s: %s could not be logged. lmdyn stored the observation and the run continues (logged once)",
                observer.name, what,
            )  # fmt: skip
