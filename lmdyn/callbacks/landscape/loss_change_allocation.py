"""Who pays for a change of the loss: by parameter, layer and class of token (Lan et al. 2019)."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import lightning as L
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import observing, paths_of, plain_path
from lmdyn.analysis.inspection.batches import labels_of
from lmdyn.analysis.inspection.forward import call_module, device_of, is_sharded
from lmdyn.analysis.landscape.applications import repeated_modules
from lmdyn.analysis.landscape.class_slopes import TextOnLines, TokenClasses
from lmdyn.analysis.landscape.followed_path import AllocationSums, FollowedPath
from lmdyn.analysis.parameters.at_point import parameter_values, running_statistics
from lmdyn.analysis.words.concentration import CLOSED_CLASSES, OPEN_CLASSES, word_tags
from lmdyn.callbacks.observing.checked_fields import From
from lmdyn.callbacks.observing.findings import Cost, Foreseen
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import to_device
from lmdyn.callbacks.observing.reference import Previous
from lmdyn.callbacks.observing.run import SAVE_WEIGHTS, report
from lmdyn.callbacks.observing.streaming_observer import LSTM_SITES, Sites
from lmdyn.callbacks.observing.sums import Row, tabulate
from lmdyn.callbacks.observing.token_groups import FrequencySource, check_bands, frequency_bands, gold_layers
from lmdyn.callbacks.training.updates import updates
from lmdyn.runs.schema import Quantity, group_columns

__all__ = ["LossChangeAllocation"]

_KINDS = ("embedding", "block", "norm", "logits")
_MOST_APPLICATIONS = 64  # a cell that runs once for each token is no shared layer
_OTHER = "other"
_REST = "rest"
_FORMS = ("<site>", "<by>/<group>")
_LAYERS = (("parameter", ("",)), ("by", ("",)))
_nats = partial(Quantity, unit="nats")
_share = partial(Quantity, unit="share", low=0.0)
_number = partial(Quantity, unit="count", low=0.0, tags=())


class LossChangeAllocation(Observer):
    """Share of each parameter in the change of the loss: by layer, matrix, application, class of token.

    A parameter's share of a change of the probe set's mean loss is the integral of its gradient along the way, times
    its change. Below 0, the parameter helps; above, it hurts. All shares add up to the change, whatever the way: that
    they do tests the quadrature only (``residual``), not the shares. There are two ways, and two quantities:

    - ``chord``: the straight line from the run's preceding scheduled checkpoint to the current weights, by Simpson's
      rule with 3 to 17 gradients, until the estimated errors of the shares are at most 1 % of them or 1e-4 nats
      (summed without signs), and they add up as closely
      (:func:`~lmdyn.analysis.landscape.line_integral.integrate_line`). It is the same in replay. There is none at the
      first checkpoint. Save checkpoints at the steps of the observations: otherwise the chords do not join, and their
      sum is not the change of the loss since the start.
    - ``path``: the updates themselves, each as a line of its own, summed since the last observation. *Each update*
      costs two gradients of the probe set, more if three points are not enough for it, and each observation one. In
      training only: a replay does not know the updates. Here an observation depends on what came before it, which
      this observer keeps, and saves in full checkpoints.

    The shares of the two differ, also in sign. If the residuals of the lines exceed 5 % of their changes of the loss,
    or the estimated errors of the shares 5 % of the shares, all added without their signs (and 1e-4 nats), the shares
    are NaN, with a warning.

    Each row of a batch is read on its own: a recurrent state is not handed on to the next batch, since it would depend
    on the parameters unseen by the gradient. So ``loss`` is above that of ``LearningCurves`` for recurrent models.

    Shares are summed by layer (column ``site``), by application of a shared layer (``block@0`` …), and by matrix
    (column ``parameter``); parameters outside of the sites are in the layer ``other``. A tied matrix is one parameter,
    in the layer of its first use. In addition, they are divided by class of the predicted token (columns ``by`` and
    ``group``): the share of the layer in the part of the mean loss that the tokens of this class contribute. Over the
    classes, and ``rest`` for tokens in none, they add up to the layer's. Rows of the embedding are summed by band, and
    by the most frequent part of speech, of their token (``by`` is ``row_rank`` and ``row_upos``). ``helping_share``
    counts entries with a share below 0, of those with a share that is not 0, over all updates.

    Args:
        allocation: ``chord`` or ``path``.
        sites: layers: module path by display name; a pattern of paths; or ``auto`` for found ones. By default those
            of ``LSTMLanguageModel``, and found ones in other modules.
        layers: gold layers by which tokens are divided; the probe set's batches must have ``target_<layer>``. By
            default ``upos`` if available.
        bands: first frequency ranks of the bands after the first; empty for no bands. Special tokens are in none.
        frequency: count words in the training data (``train``) or in the probe set (``probe``); by default in the
            training data if its counts are known.
        most_points: maximum number of gradients of a chord, and of an update of a path: 3, 5, 9 or 17.
        max_tokens: approximate number of tokens to observe; None for all.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for an unknown allocation, layers that the probe set lacks, bands that do not increase, another
            number of points; a model with batch normalisation, whose running statistics change the loss as well;
            ``chord`` in a run that saves no weights; ``path`` in replay.

    Reference: Lan et al. 2019, "LCA: Loss Change Allocation for Neural Network Training"; Saphra 2021, equations 6.1
        to 6.3.
    """

    allocation: Literal["chord", "path"] = "chord"
    sites: Sites = None
    layers: Sequence[str] | None = None
    bands: Sequence[int] = (10, 100, 1000)
    frequency: FrequencySource | None = None
    most_points: Literal[3, 5, 9, 17] = 17
    max_tokens: Annotated[int, From(1)] | None = 10_000

    uses_labels = True
    in_step = True
    columns = {"parameter": "", "by": "", "group": ""}
    recorded = (
        _nats("loss", "Mean token loss of the probe set, each row read on its own.", low=0.0, better="lower"),
        _nats("loss_change", "Loss at this step less the loss at the start of the interval."),
        _nats(
            "allocation",
            "Part of loss_change that a layer, an application, a parameter or a class of rows of the embedding causes, "
            "for all tokens or for a class of tokens; a part below 0 lowers the loss.",
            tags=_FORMS,
            panel="by_layer",
            short="sum of the shares",
            where=_LAYERS,
        ),
        _nats(
            "first_order",
            "First order of the allocation: gradient at the start times difference of the weights.",
            tags=("", *_FORMS),
        ),
        _nats("residual", "Error of the quadrature: sum of all allocations less loss_change."),
        _share(
            "allocation_error",
            "Estimated absolute error of the allocations, divided by their absolute sum: over entries or over "
            "recorded rows, whichever is larger.",
        ),
        _nats(
            "gross_change", "Sum of the loss's absolute changes at the updates of a path.", low=0.0, tags=()
        ),
        _nats("gross_residual", "Sum of the absolute residuals at the updates of a path.", low=0.0, tags=()),
        _share(
            "helping_share",
            "Share of entries with an allocation below 0 among all entries with a nonzero allocation.",
            high=1.0,
            tags=("", "<site>"),
            panel="helping",
            short="entries that help",
            where=_LAYERS,
        ),
        _number("updates", "Number of updates since the start of the interval."),
        _number("points", "Number of gradients that the quadrature took, over all lines."),
        _number("class_tokens", "Number of tokens of the class in the probe set."),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bands(self.bands)
        self._path: FollowedPath | None = None
        self._saved: Mapping[str, Any] | None = None

    # ---------------------------------------------------------------- before training

    def prepare(self) -> None:
        """Check where the start of an interval comes from; determine the classes of tokens."""
        if self.allocation == "path" and not self.run.live:
            raise ValueError(
                f"{self.name}: `allocation: path` follows each update of the training, but a replay has no updates. "
                "Attach the observer to the training, leave the observer out with `--only`, or set `allocation: chord`"
            )
        if self.allocation == "chord" and self.run.live and self.run.checkpoint_folder is None:
            raise ValueError(
                f"{self.name}: `allocation: chord` starts at the run's preceding checkpoint, but the run saves no "
                f"checkpoints. Either {SAVE_WEIGHTS}, or set `allocation: path`"
            )
        layers = gold_layers(self, "shares")
        names = self.probe_set.label_names
        self._classes: dict[str, Sequence[str]] = {layer: names[layer] for layer in layers}
        self._vocabulary: dict[str, tuple[Sequence[str], Tensor]] = {}
        if self.bands:
            self._vocabulary["row_rank"] = frequency_bands(self, self.bands, self.frequency)
            self._classes["rank"] = self._vocabulary["row_rank"][0]
        if "upos" in layers and (tagged := self._tag_of()) is not None:
            self._vocabulary["row_upos"] = tagged
        self._classes = self._classes or {"": [""]}

    def _tag_of(self) -> tuple[list[str], Tensor] | None:
        """Return the tags, and the most frequent one of each token in training; None if it is not known."""
        table = self.run.token_counts
        tags = [tag for tag in (*OPEN_CLASSES, *CLOSED_CLASSES) if table is not None and tag in table]
        if table is None or not tags:
            return None
        counts = torch.from_numpy(table[tags].to_numpy(dtype="int64").copy())
        whole = torch.from_numpy(table["count"].to_numpy(dtype="int64").copy())
        return tags, word_tags(counts, whole, min_count=1)

    def check_module(self, module: nn.Module) -> None:
        """Find the layers; raise an error for sharded weights or running statistics."""
        if is_sharded(module):
            raise ValueError(
                f"{self.name}: {type(module).__name__} is sharded, so no rank has whole gradients. Set `allocation: "
                "chord` and observe the checkpoints with `lmdyn analyze`"
            )
        if normed := running_statistics(module):
            raise ValueError(
                f"{self.name}: the module {normed!r} has running statistics of activations, which change the loss in "
                "addition to the parameters. Use a model without batch normalisation"
            )
        self.choose_sites(module, {**LSTM_SITES, "logits": "decoder"}, kinds=_KINDS)
        batch = to_device(next(self.probe_set.batches()), device_of(module))  # the same on all ranks
        run = partial(call_module, module, batch, forward=self.forward)
        self._repeated = self._shared_layers(repeated_modules(module, run))
        self._find_parameters(module)

    def _find_parameters(self, module: nn.Module) -> None:
        """Find the layer of each parameter, the innermost one around it; the matrix of embeddings, and its rows."""
        layers = {path: name for name, path in self._repeated.items()}
        layers |= {plain_path(path): name for name, path in self.paths().items()}
        self._layer_of: dict[str, str] = {}
        for name, _ in module.named_parameters():
            around = [path for path in layers if f"{plain_path(name)}.".startswith(f"{path}.")]
            self._layer_of[name] = layers[max(around, key=len)] if around else _OTHER
        modules = paths_of(module)
        of_tokens = (modules[plain_path(p)] for n, p in self.paths().items() if n.endswith("embedding"))
        table = next((m.weight for m in of_tokens if isinstance(m, nn.Embedding)), torch.zeros(0))
        self._table = next((name for name, p in module.named_parameters() if p is table), "")
        self._row_classes = {}
        for division, (names, of_token) in self._vocabulary.items():  # it may have rows for no token
            of_row = F.pad(of_token[: len(table)], (0, max(0, len(table) - len(of_token))), value=-1)
            self._row_classes[division] = of_row, len(names)

    def _shared_layers(self, repeated: Mapping[str, int]) -> dict[str, str]:
        """Return the paths of modules that run several times, by the name of the layer."""
        found: dict[str, str] = {}
        for path, number in repeated.items():
            inside = [n for n, p in self.paths().items() if f"{plain_path(p)}.".startswith(f"{path}.")]
            name = inside[0] if inside else path.replace(".", "_") or "module"
            if number > _MOST_APPLICATIONS:
                report(
                    self.name, f"{path} runs {number} times for a batch: lmdyn does not tell the runs apart"
                )
            else:
                found.setdefault(name, path)
        return found

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report the memory of the parameters at the ends of a line, and of their shares."""
        size = sum(p.numel() for p in module.parameters())
        numbers = 72 if self.allocation == "path" else 64
        yield Cost(
            f"values, gradients and shares of {size:,} parameters",
            numbers * size,
            "observe a smaller model, or run on a machine with more memory",
        )

    # ---------------------------------------------------------------- an observation

    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Measure the shares of the interval that ends at ``step``."""
        text = self._text(module)
        if self.allocation == "path":
            path = self._followed(module, step, text)
            loss, sums = path.finish(text), path.sums
            updates = sums.lines
            path.sums = self._sums()
        else:
            before = self.run.checkpoints_before(step)
            sums, updates = self._sums(), 0
            for start in Previous().modules(module, self.run, step).values():
                updates = step - max(before)
                values = {n: v.to(device_of(module)) for n, v in parameter_values(start).items()}
                sums.add(text.between(values, parameter_values(module), self.most_points))
            loss = text.loss()
        why = "the model has diverged"
        if sums.void:
            remedy = "; save checkpoints at more steps" if self.allocation == "chord" else ""
            why = f"the errors of the shares are too large, see `residual` and `allocation_error`{remedy}"
        return tabulate(self._rows(sums, loss, updates, text), self.columns, self.name, step, why)

    def _text(self, module: nn.Module) -> TextOnLines:
        divisions = {
            division: TokenClasses(len(names), partial(self._class_of, division))
            for division, names in self._classes.items()
        }
        return TextOnLines(
            module,
            lambda: self.probe_set.of_this_rank(device_of(module)),
            partial(call_module, module, forward=self.forward),
            divisions,
            repeated=self._repeated,
        )

    def _class_of(self, division: str, batch: Mapping[str, Any]) -> Tensor:
        """Return the class of each token, below 0 for none."""
        labels = labels_of(batch)
        if division == "rank":
            bands = self._vocabulary["row_rank"][1].to(labels.device)
            return torch.where(labels >= 0, bands[labels.clamp(min=0)], -1)
        return torch.as_tensor(batch[f"target_{division}"]) if division else torch.zeros_like(labels)

    def _sums(self) -> AllocationSums:
        return AllocationSums(self._row_classes, self._table)

    # ---------------------------------------------------------------- its rows

    def _rows(self, sums: AllocationSums, loss: float, updates: int, text: TextOnLines) -> Iterator[Row]:
        """Yield the rows of an interval; only the loss of an observation without one before it."""
        yield {}, {"loss": loss}
        if not sums.lines:
            return
        error = sums.relative_error
        yield {}, {"loss_change": sums.loss_change, "residual": sums.residual, "allocation_error": error}
        if sums.lines > 1:  # of one line, they are the same without signs
            yield {}, {"gross_change": sums.gross_change, "gross_residual": sums.gross_residual}
        yield {}, {"first_order": sums.first_order, "updates": float(updates), "points": float(sums.points)}
        tokens = {division: counts.tolist() for division, counts in text.tokens().items()}
        worth = math.nan if sums.void else 1.0
        yield from self._shares("allocation", sums.parts, tokens, worth)
        yield from self._shares("first_order", sums.first_order_parts, tokens)
        for division, numbers in tokens.items():
            for group, number in _with_rest(self._classes[division], numbers):
                if division and number:
                    yield {"by": division, "group": group}, {"class_tokens": number}
        yield from self._helping(sums, worth)
        place = {"site": self._layer_of.get(self._table, ""), "parameter": self._table}
        for division, values in sums.row_parts.items():
            for group, value in _with_rest(self._vocabulary[division][0], values.tolist()):
                yield {**place, "by": division, "group": group}, {"allocation": value * worth}

    def _shares(
        self,
        quantity: str,
        parts: Mapping[tuple[str, str, str], Tensor],
        tokens: Mapping[str, Sequence[float]],
        worth: float = 1.0,
    ) -> Iterator[Row]:
        """Yield the shares of layers, applications and matrices, and those of layers by class, times their worth."""
        found: dict[tuple[str, str, str], Tensor] = {}
        still = {  # what did not move has the share 0
            (division, parameter, ""): torch.zeros(len(names) + 1, dtype=torch.float64)
            for division, names in self._classes.items()
            for parameter in self._layer_of
        }
        for (division, parameter, application), values in (*still.items(), *parts.items()):
            layer = self._layer_of[parameter]
            places = ("", ""), (layer, ""), (layer, parameter), (application or layer, "")
            for place in dict.fromkeys(places):  # in one order in every process
                found[division, *place] = found.get((division, *place), 0) + values
        first = next(iter(self._classes))
        for (division, site, parameter), values in found.items():
            at = {"site": site, "parameter": parameter}
            if division == first and site:  # every division adds up to the same
                yield at, {quantity: float(values.sum()) * worth}
            if division and not parameter:
                shares = _with_rest(self._classes[division], (values * worth).tolist())
                for (group, share), number in zip(shares, tokens[division], strict=True):
                    if number:
                        yield {**at, "by": division, "group": group}, {quantity: share}

    def _helping(self, sums: AllocationSums, worth: float) -> Iterator[Row]:
        counts: dict[tuple[str, str], Tensor] = {}
        for parameter, count in sums.helping.items():
            layer = self._layer_of[parameter]
            for place in (("", ""), (layer, ""), (layer, parameter)):
                counts[place] = counts.get(place, 0) + count
        for (site, parameter), count in counts.items():
            below, there = count.tolist()
            if there:
                yield {"site": site, "parameter": parameter}, {"helping_share": below / there * worth}

    # ---------------------------------------------------------------- the path

    def _followed(self, module: nn.Module, step: int, text: TextOnLines) -> FollowedPath:
        """Return the path up to ``step``; the first call begins it."""
        if self._path is None:
            self._path = FollowedPath(self._sums(), self.most_points)
            if self._saved is not None:
                self._path.sums.load(self._saved)
                self._saved = None
            self._path.begin(parameter_values(module), step)
        elif self._path.step != step:
            self._path.follow(text, parameter_values(module), step)
        return self._path

    @property
    def follows_updates(self) -> bool:
        """Whether it follows each update."""
        return self.allocation == "path"

    def follow(self, module: nn.Module, step: int) -> None:
        """Continue the path to the weights after an update."""
        self.ensure_bound(module)
        with observing(module):
            self._followed(module, step, self._text(module))

    def path_state(self, module: nn.Module, step: int) -> dict[str, Any]:
        """Return the sums of the path since the last observation, for :meth:`load_state_dict`."""
        self.follow(module, step)
        assert self._path is not None
        with observing(module):
            self._path.finish(self._text(module))
        return self._path.sums.state()

    def begin_anew(self) -> None:
        """Begin the path at the next update that is followed."""
        self._path = self._saved = None

    @property
    def state_key(self) -> str:
        """A key of its own for each observer."""
        return f"{type(self).__qualname__}/{self.name}"

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Forget the path of a previous fit; attach to the run."""
        if stage == "fit":
            self.begin_anew()
        super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin the path; observe the untrained model."""
        if self.follows_updates:
            step = updates(trainer)
            self.follow(pl_module, step)
            if step and trainer.strategy.broadcast(self.store.path(step).exists()):
                assert self._path is not None
                self._path.sums = self._sums()  # the checkpoint was saved before this observation
        super().on_train_start(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Follow an update; observe if the schedule contains this step."""
        if self.follows_updates:
            self.follow(pl_module, updates(trainer))
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save the sums of the path since the last observation."""
        if self.follows_updates:
            state = self.path_state(pl_module, updates(trainer))
            checkpoint.setdefault("callbacks", {})[self.state_key] = state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the path of a checkpoint."""
        self._saved = state_dict

    # ---------------------------------------------------------------- output

    @classmethod
    def is_scalar(cls, observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return the rows of layers, and those of classes over all layers."""
        crossed = observations["by"].ne("") & observations["site"].ne("")
        return super().is_scalar(observations) & ~crossed & observations["parameter"].eq("")

    @classmethod
    def figures(cls, observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw the standard panels, with shares summed since the start; void intervals are gaps."""
        keys = ["quantity", "site", *group_columns(observations)]
        sums = observations.groupby(keys, observed=True, dropna=False)["value"].cumsum()
        shares = observations["quantity"].eq("allocation")
        return super().figures(observations.assign(value=observations["value"].mask(shares, sums)), settings)

    @staticmethod
    def record_rows(observations: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows for a record of a run: its scalars, shares of matrices, of layers by class; the intervals."""
        kept = ["allocation", "updates", "class_tokens", "gross_change", "gross_residual"]
        return observations[
            LossChangeAllocation.is_scalar(observations) | observations["quantity"].isin(kept)
        ]


def _with_rest(names: Sequence[str], values: Sequence[float]) -> Iterator[tuple[str, float]]:
    """Return the values of classes with their names; the last value is of what is in none."""
    return zip([*names, _REST], values, strict=True)
