"""Who pays for a change of the loss: by parameter, layer and class of token (Lan et al. 2019)."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import lightning as L
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import observing, plain_path
from lmdyn.analysis.inspection.batches import labels_of
from lmdyn.analysis.inspection.forward import call_module, device_of, is_sharded
from lmdyn.analysis.landscape.applications import repeated_modules
from lmdyn.analysis.landscape.class_slopes import TokenClasses
from lmdyn.analysis.landscape.followed_path import AllocationSums, FollowedPath
from lmdyn.analysis.landscape.linear_head import splits_at
from lmdyn.analysis.landscape.text_line import TextOnLines
from lmdyn.analysis.parameters.at_point import parameter_values, running_statistics
from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.analysis.words.sparsity import CLOSED_CLASSES, OPEN_CLASSES, word_tags
from lmdyn.callbacks.conditions.finding import Cost, Foreseen
from lmdyn.callbacks.landscape.loss_change_figures import loss_change_figures
from lmdyn.callbacks.landscape.loss_change_quantities import LOSS_CHANGE
from lmdyn.callbacks.landscape.loss_change_table import Divisions, Places, first_table, interval_table
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import to_device
from lmdyn.callbacks.observing.reference import Previous
from lmdyn.callbacks.observing.run import announce
from lmdyn.callbacks.observing.streaming_observer import LSTM_SITES, given_sites
from lmdyn.callbacks.observing.token_groups import (
    FrequencySource,
    check_bands,
    frequency_bands,
    gold_layers,
)

__all__ = ["LossChangeAllocation"]

log = logging.getLogger(__name__)

Allocation = Literal["chord", "path"]

_KINDS = ("embedding", "block", "norm", "logits")
_MOST_APPLICATIONS = 64  # a cell that runs once for each token is no shared layer


class LossChangeAllocation(Observer):
    """Share of each parameter in the change of the loss: by layer, matrix, application, class of token.

    A parameter's share of a change of the probe set's mean loss is the integral of its gradient along the way, times
    its change. Below 0, the parameter helps; above, it hurts. All shares add up to the change, whatever the way: that
    they do tests the quadrature only (``residual``), not the shares. There are two ways, and two quantities:

    - ``chord``: the straight line from the run's preceding scheduled checkpoint to the current weights, by Simpson's
      rule with 3 to 17 gradients, until the shares add up within 1 % or 1e-4 nats. It is the same in replay. There is
      none at the first checkpoint. Save checkpoints at the steps of the observations: otherwise the chords do not
      join, and their sum is not the change of the loss since the start.
    - ``path``: the updates themselves, each as a line of its own, summed since the last observation. *Each update*
      costs two gradients of the probe set, more if three points are not enough for it, and each observation one. In
      training only: a replay does not know the updates. Here an observation depends on what came before it, which
      this observer keeps, and saves in full checkpoints.

    The shares of the two differ, also in sign. If the residuals of the lines exceed 5 % of their changes of the loss,
    both added without their signs (and 1e-4 nats), the shares are NaN, with a warning.

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
        **kwargs: see :class:`~lmdyn.callbacks.Observer`.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for an unknown allocation, layers that the probe set lacks, bands that do not increase, another
            number of points; a model with batch normalisation, whose running statistics change the loss as well;
            ``chord`` in a run that saves no weights; ``path`` in replay.

    Reference: Lan et al. 2019, "LCA: Loss Change Allocation for Neural Network Training"; Saphra 2021, equations 6.1
        to 6.3.
    """

    uses_labels = True
    recorded = LOSS_CHANGE
    in_step = True

    def __init__(
        self,
        *,
        allocation: Allocation = "chord",
        sites: Mapping[str, str] | str | None = None,
        layers: Sequence[str] | None = None,
        bands: Sequence[int] = (10, 100, 1000),
        frequency: FrequencySource | None = None,
        most_points: int = 17,
        max_tokens: int | None = 10_000,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_tokens=max_tokens, **kwargs)
        if allocation not in ("chord", "path"):
            raise ValueError(f"allocation is {allocation!r}: expected 'chord' or 'path'")
        if most_points not in (3, 5, 9, 17):
            raise ValueError(f"most_points is {most_points}: expected 3, 5, 9 or 17")
        self.allocation = allocation
        self.sites = given_sites(sites, {**LSTM_SITES, "logits": "decoder"})
        self.layers = tuple(layers or ())
        self.bands = check_bands(bands)
        self.frequency = frequency
        self.most_points = most_points
        self._divisions = Divisions({}, {})
        self._band_of: Tensor | None = None
        self._places = Places({}, {}, "")
        self._repeated: dict[str, str] = {}
        self._head: str | None = None
        self._path: FollowedPath | None = None
        self._saved: Mapping[str, Any] | None = None

    # ---------------------------------------------------------------- before training

    def prepare(self) -> None:
        """Check where the start of an interval comes from; determine the classes of tokens."""
        if self.allocation == "path" and not self.run.live:
            raise ValueError(
                f"{self.name}: allocation 'path' follows each update, which a replay does not know: observe it during "
                "training, leave it out (`--only`), or set `allocation: chord`"
            )
        if self.allocation == "chord" and self.run.live and self.run.checkpoint_folder is None:
            raise ValueError(
                f"{self.name}: allocation 'chord' starts at the run's preceding checkpoint, but none are saved: attach "
                "a ScheduledCheckpoint, or set `allocation: path`"
            )
        self.layers = gold_layers(self, "shares")
        names = self.probe_set.label_names
        tokens = {layer: list(names[layer]) for layer in self.layers}
        rows: dict[str, tuple[list[str], Tensor]] = {}
        if self.bands:
            bands, self._band_of = frequency_bands(self, self.bands, self.frequency)
            tokens["rank"] = bands
            rows["row_rank"] = bands, self._band_of
        if "upos" in self.layers and (tagged := self._tag_of()) is not None:
            rows["row_upos"] = tagged
        self._divisions = Divisions(tokens or {"": [""]}, rows)

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
        """Find the layers and the output layer; raise an error for sharded weights or running statistics."""
        if is_sharded(module):
            raise ValueError(
                f"{self.name}: the weights of {type(module).__name__} are sharded over ranks, which have no whole "
                "gradients: replay with `allocation: chord` after training, `lmdyn analyze`"
            )
        if normed := running_statistics(module):
            raise ValueError(
                f"{self.name}: {normed!r} has running statistics of activations, which change the loss besides the "
                "parameters: expected a model without batch normalisation"
            )
        default = {**LSTM_SITES, "logits": "decoder"}
        self.sites = self.choose_sites(module, default, kinds=_KINDS)
        batch = to_device(next(self.probe_set.batches()), device_of(module))  # the same on all ranks
        self._repeated = self._shared_layers(repeated_modules(module, lambda: self._call(module, batch)))
        self._places = Places.of(module, self.sites, self._repeated)
        self._head = self._output_layer(module, batch)
        if self.allocation == "path":
            announce(
                self.name,
                "each update is followed: two gradients of the probe set, or more, in addition to its own",
            )

    def _call(self, module: nn.Module, batch: Mapping[str, Any]) -> Any:
        return call_module(module, batch, forward=self.forward)

    def _shared_layers(self, repeated: Mapping[str, int]) -> dict[str, str]:
        """Return the paths of modules that run several times, by the name of the layer."""
        found: dict[str, str] = {}
        for path, number in repeated.items():
            inside = [n for n, p in self.sites.items() if f"{plain_path(p)}.".startswith(f"{path}.")]
            name = inside[0] if inside else path.replace(".", "_") or "module"
            if number > _MOST_APPLICATIONS:
                announce(
                    self.name, f"{path} runs {number} times for a batch: its applications are not told apart"
                )
            elif name not in found:
                found[name] = path
        return found

    def _output_layer(self, module: nn.Module, batch: Mapping[str, Any]) -> str | None:
        """Return the path of the linear layer from which backward passes of classes begin, tried on a batch."""
        path = plain_path(self.sites.get("logits", ""))
        outside = not any(f"{path}.".startswith(f"{p}.") for p in self._repeated.values())
        if path and outside and splits_at(module, batch, lambda b: self._call(module, b), path):
            return path
        classes = sum(map(len, self._divisions.tokens.values()))
        if classes > 1:
            announce(
                self.name,
                f"no linear output layer through which all losses pass: up to {classes} whole backward passes a batch, "
                "one for each class",
            )
        return None

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report the memory of the parameters at the ends of a line, and of their shares."""
        size = sum(p.numel() for p in module.parameters())
        numbers = 64 if self.allocation == "path" else 56
        yield Cost(
            f"values, gradients and shares of {size:,} parameters", numbers * size,
            "observe a smaller model, or run on a machine with more memory",
        )  # fmt: skip

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
        if not sums.lines:
            return first_table(loss)
        if sums.void and rank_and_world_size()[0] == 0:
            log.warning(
                "%s: at step %d the shares add up to %.3g nats, and the loss changes by %.3g (without signs, residuals "
                "of %.3g and changes of %.3g): they are void%s",
                self.name, step, sums.total, sums.loss_change, sums.gross_residual, sums.gross_change,
                "; save checkpoints at more steps" if self.allocation == "chord" else "",
            )  # fmt: skip
        return interval_table(sums, loss, updates, text.tokens(), self._divisions, self._places)

    def _text(self, module: nn.Module) -> TextOnLines:
        divisions = {
            name: TokenClasses(len(of), self._class_of(name)) for name, of in self._divisions.tokens.items()
        }
        return TextOnLines(
            module, lambda: self.probe_set.of_this_rank(device_of(module)), lambda batch: self._call(module, batch),
            divisions, repeated=self._repeated, head=self._head,
        )  # fmt: skip

    def _class_of(self, division: str) -> Any:
        def by_rank(batch: Mapping[str, Any]) -> Tensor:
            labels = labels_of(batch)
            assert self._band_of is not None
            bands = self._band_of.to(labels.device)
            return torch.where(labels >= 0, bands[labels.clamp(min=0)], -1)

        if division == "rank":
            return by_rank
        if division:
            return lambda batch: batch[f"target_{division}"]
        return lambda batch: torch.zeros_like(labels_of(batch))

    def _sums(self) -> AllocationSums:
        rows = {name: (of_row, len(names)) for name, (names, of_row) in self._divisions.rows.items()}
        return AllocationSums(self._places.row_classes(rows), self._places.embedding)

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

    def _follow(self, trainer: L.Trainer, module: nn.Module) -> None:
        self.ensure_met(module)
        with observing(module):
            self._followed(module, trainer.global_step, self._text(module))

    @property
    def state_key(self) -> str:
        """A key of its own for each observer."""
        return f"{type(self).__qualname__}/{self.name}"

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Forget the path of a previous fit; attach to the run."""
        if stage == "fit":
            self._path = self._saved = None
        super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin the path; observe the untrained model."""
        if self.allocation == "path":
            self._follow(trainer, pl_module)
            step = trainer.global_step
            if step and trainer.strategy.broadcast(self.store.path(step).exists()):
                assert self._path is not None
                self._path.sums = self._sums()  # the checkpoint was saved before this observation
        super().on_train_start(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Follow an update; observe if the schedule contains this step."""
        if self.allocation == "path":
            self._follow(trainer, pl_module)
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save the sums of the path since the last observation."""
        if self.allocation == "path":
            self._follow(trainer, pl_module)
            assert self._path is not None
            with observing(pl_module):
                self._path.finish(self._text(pl_module))
            checkpoint.setdefault("callbacks", {})[self.state_key] = self._path.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the path of a checkpoint."""
        self._saved = state_dict

    # ---------------------------------------------------------------- output

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return the rows of layers, and those of classes over all layers."""
        counts = observations["quantity"].isin(
            ["updates", "points", "class_tokens", "gross_change", "gross_residual"]
        )
        crossed = observations["by"].ne("") & observations["site"].ne("")
        return ~counts & ~crossed & observations["parameter"].eq("")

    @staticmethod
    def record_rows(observations: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows for a record of a run: its scalars, shares of matrices, of layers by class; the intervals."""
        crossed = observations["quantity"].eq("allocation")
        intervals = observations["quantity"].isin(
            ["updates", "class_tokens", "gross_change", "gross_residual"]
        )
        return observations[LossChangeAllocation.is_scalar(observations) | crossed | intervals]

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw shares by layer over steps, summed and by interval, and by layer and class in the last interval."""
        return loss_change_figures(observations, settings.get("allocation", "chord"))
