"""Base of all models: sizes from the data, gradient clipping, evaluation and logging."""

import logging
from collections.abc import Mapping
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torchmetrics import Metric

from lmdyn.models.allocator import keep_freed_memory

log = logging.getLogger(__name__)

Batch = Mapping[str, Tensor]  # in the names of Hugging Face

IGNORED = -100
"""Label of a token without a label, as in all libraries of Hugging Face."""


class TokenMean(Metric):
    """Mean of a quantity over the labelled tokens of all batches and ranks, with equal weight for each token.

    Sums are in float64 (float32 on MPS, which does not support it), so that rounding does not affect annealing. NaN is
    propagated: a diverged run must not report the loss of the batches that did not diverge. MeanMetric of torchmetrics
    is not suitable: with ``nan_strategy="disable"`` it ignores its weights (1.9).

    Example:
        >>> mean = TokenMean()
        >>> mean.update(torch.tensor([[2.0, 4.0, 9.0]]), labels=torch.tensor([[5, 6, -100]]))
        >>> mean.compute()
        tensor(3., dtype=torch.float64)
    """

    total: Tensor
    tokens: Tensor

    def __init__(self) -> None:
        super().__init__()
        precision = torch.float32 if torch.backends.mps.is_available() else torch.float64
        self.add_state("total", torch.zeros((), dtype=precision), dist_reduce_fx="sum")
        self.add_state("tokens", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, values: Tensor, labels: Int[Tensor, "batch time"]) -> None:
        """Add the values of the tokens that have a label."""
        labelled = labels != IGNORED
        # not in place: an evaluation before a fit leaves tensors in inference mode
        self.total = self.total + values.to(self.total.dtype).where(labelled, 0.0).sum()
        self.tokens = self.tokens + labelled.sum()

    def compute(self) -> Tensor:
        """Compute the mean; NaN if no token had a label."""
        return self.total / self.tokens


class MajorityShare(Metric):
    """Share of the most frequent label among the labelled tokens of all batches and ranks, the score of a constant.

    Args:
        num_labels: number of classes.

    Example:
        >>> majority = MajorityShare(3)
        >>> majority.update(torch.tensor([[2, 2, 0, -100]]))
        >>> majority.compute()
        tensor(0.6667, dtype=torch.float64)
    """

    counts: Tensor

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.add_state("counts", torch.zeros(num_labels, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, labels: Int[Tensor, "batch time"]) -> None:
        """Count the labels."""
        self.counts = self.counts + torch.bincount(labels[labels != IGNORED], minlength=len(self.counts))

    def compute(self) -> Tensor:
        """Compute the share; NaN if no token had a label."""
        precision = torch.float32 if self.counts.device.type == "mps" else torch.float64
        share: Tensor = self.counts.max().to(precision) / self.counts.sum()
        return share


class LanguageModule(L.LightningModule):
    """A language model whose vocabulary may be the datamodule's, with evaluation by torchmetrics.

    Its arguments and those of a subclass are the hyperparameters of checkpoints, except for the optimizer. A subclass
    defines :meth:`build`, :meth:`training_loss` and :meth:`evaluate`, or the steps that call them.

    Args:
        vocab_size: number of token types; None uses that of the datamodule's tokenizer.
        optimizer: creates the optimizer from the parameters.
        gradient_clip_val: maximum norm of the gradient; None does not clip. The Trainer's setting takes precedence.
    """

    _logger_failed = False
    _objective: str | None = None  # the objective of data for which the model is made; None accepts any

    _given: tuple[str, ...] = ()  # arguments of a base class that a subclass sets

    def __init__(
        self, *, vocab_size: int | None, optimizer: OptimizerCallable, gradient_clip_val: float | None
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["optimizer", *self._given])
        self.vocab_size = vocab_size
        self.optimizer = optimizer
        self.gradient_clip_val = gradient_clip_val
        self.evaluation_loss = TokenMean()

    # Sizes ------------------------------------------------------------------------------------------------

    def from_datamodule(self, name: str, size: str) -> Any:
        """Return attribute ``name`` of the datamodule, from which the unknown ``size`` is read."""
        datamodule = self._datamodule
        found = getattr(datamodule, name, None)
        if found is None:
            owner = "no datamodule" if datamodule is None else f"{type(datamodule).__name__}"
            raise ValueError(
                f"{type(self).__name__}({size}={getattr(self, size)}) requires a trainer with a datamodule that has a "
                f"`{name}`, got {owner}. Set {size} to a number"
            )
        return found

    def labels_of(self, batch: Batch) -> Int[Tensor, "batch time"]:
        """Return the label of each token, -100 for none.

        Raises:
            ValueError: if the batch lacks them.
        """
        if "labels" not in batch:
            raise ValueError(
                f"expected `labels` in the batch, got {', '.join(sorted(batch))}: use a datamodule that creates labels"
            )
        return batch["labels"]

    @property
    def _datamodule(self) -> Any:
        return None if self._trainer is None else getattr(self._trainer, "datamodule", None)

    def sizes_known(self) -> bool:
        """Return whether the layers can be built without a datamodule."""
        return self.vocab_size is not None

    def build(self) -> None:
        """Create the layers, once the sizes are known."""
        raise NotImplementedError

    def configure_model(self) -> None:
        """Build the layers with the datamodule's vocabulary, once, and record the size found.

        Raises:
            ValueError: if the datamodule has another objective (a model that reads its labels only copies them), or
                its tokenizer more token types than the model.
        """
        if next(self.parameters(), None) is None:
            if self.vocab_size is None:
                self.vocab_size = len(self.from_datamodule("tokenizer", "vocab_size"))
                self.hparams["vocab_size"] = self.vocab_size
            self.build()
        found = getattr(self._datamodule, "objective", self._objective)
        if self._objective is not None and found != self._objective:
            raise ValueError(f"the data is for {found!r}: set data.init_args.objective to {self._objective}")
        size = self.vocab_size or 0
        tokenizer = getattr(self._datamodule, "tokenizer", None)
        if tokenizer is not None and len(tokenizer) > size:
            raise ValueError(
                f"the tokenizer has {len(tokenizer)} token types, but the model has {size}: use the tokenizer of the "
                "weights, or set vocab_size: null for a new model"
            )

    def check_positions(self, length: int, most: int | None) -> None:
        """Raise an error for rows that are longer than the model's number of positions.

        Raises:
            ValueError: if they are.
        """
        if most is not None and length > most:
            raise ValueError(
                f"rows of {length} tokens are longer than the model's {most} positions: use shorter rows "
                "(sequence_length; max_pieces of a SpanCorpus), or a larger max_position_embeddings (n_positions of "
                "GPT-2)"
            )

    # Training ---------------------------------------------------------------------------------------------

    def rank_weight(self, count: Tensor | int) -> Tensor | float:
        """Return the factor of a rank's mean loss that gives the mean over the batch of all ranks.

        Strategies train with the mean over ranks. If ranks have unequal numbers of labels, for example at the end of a
        text, this differs from the mean over tokens; with this weight, the mean over ranks of mean × weight is the
        mean over all tokens. Every rank must call it.

        Args:
            count: number of terms of this rank's mean.
        """
        ranks = 1 if self._trainer is None else self.trainer.world_size
        if ranks == 1:
            return 1.0
        # not bfloat16, whatever the model
        precision = torch.float64 if self.dtype == torch.float64 else torch.float32
        own = torch.as_tensor(count, dtype=precision, device=self.device)
        mean = self.trainer.strategy.reduce(own.clone(), reduce_op="mean")
        return own / mean.clamp(min=1 / ranks)

    def setup(self, stage: str) -> None:
        """Keep freed memory in a fit on CPU."""
        if stage == "fit" and self.trainer.strategy.root_device.type == "cpu":
            keep_freed_memory()

    def configure_optimizers(self) -> Any:
        """Return the configured optimizer, over all parameters."""
        return self.optimizer(self.parameters())

    def training_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the sum of the losses of a batch in nats, and the number of its labelled tokens."""
        raise NotImplementedError

    def loss(self, batch: Batch) -> Tensor:
        """Compute the mean loss over the labelled tokens of a batch, in nats."""
        total, count = self.training_loss(batch)
        return total / count.clamp(min=1)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Compute the mean loss over the labelled tokens, in nats, 0 for a batch without labels: ``train_loss``."""
        return self.finish_training_step(*self.training_loss(batch), batch_idx)

    def finish_training_step(self, total: Tensor, count: Tensor, batch_idx: int, **others: Tensor) -> Tensor:
        """Log the mean of a sum, and other metrics, and return the mean weighted by :meth:`rank_weight`."""
        loss = total / count.clamp(min=1)
        self.log("train_loss", loss.detach(), prog_bar=True, logger=False)
        self.log_periodically({"train_loss": loss.detach(), **others}, batch_idx)
        return loss * self.rank_weight(count)

    def write(self, metrics: dict[str, float]) -> None:
        """Write to every logger, at the number of completed updates (``self.log`` writes one step earlier).

        An error of a logger does not stop the training: it is logged once, with its traceback.
        """
        for logger in self.loggers:
            try:
                logger.log_metrics(metrics, step=self.trainer.global_step)
            except Exception:
                if not self._logger_failed:
                    log.exception("%s failed; the training continues (logged once)", type(logger).__name__)
                self._logger_failed = True

    def log_periodically(self, metrics: dict[str, Tensor], batch_idx: int) -> None:
        """Write metrics in a training step every ``log_every_n_steps`` updates, for the weights after these updates.

        ``.item()`` synchronizes with the device, so it is not called in each step.
        """
        step = self.trainer.global_step
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and step % every == 0 and batch_idx % self.trainer.accumulate_grad_batches == 0:
            self.write({name: value.item() for name, value in metrics.items()})

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by the norm of all gradients, unless the Trainer has a setting, which takes precedence."""
        if gradient_clip_val is None:
            gradient_clip_val = self.gradient_clip_val
        if gradient_clip_val is not None:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm or "norm")

    # Evaluation -------------------------------------------------------------------------------------------

    def evaluate(self, batch: Batch) -> tuple[Tensor, Tensor, Float[Tensor, "..."]]:
        """Return logits, labels and losses in nats, 0 for a token without a label, each (batch, time)."""
        logits = self.logits_of(batch)
        labels = self.labels_of(batch)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # float64 stays
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return logits, labels, losses.view(labels.shape)

    def evaluate_labelled(self, batch: Batch) -> tuple[Tensor, Tensor, Float[Tensor, "n"]]:
        """Return the same for labelled tokens only, of a module that projects what it is told."""
        logits, labels, _ = predict_labels(self, self.labels_of(batch), batch)
        return logits, labels, F.cross_entropy(logits, labels, reduction="none")

    def logits_of(self, batch: Batch) -> Tensor:
        """Return the logits of a batch, (batch, time, classes)."""
        raise NotImplementedError

    def evaluation_step(self, batch: Batch) -> None:
        """Add a batch to the metrics."""
        self.update_metrics(*self.evaluate(batch))

    def update_metrics(self, logits: Tensor, labels: Tensor, losses: Tensor) -> None:
        """Add logits, labels and losses to each metric, with equal weight for each token."""
        self.evaluation_loss.update(losses, labels)

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Compute the surprisal of each label, −log p(labels), in nats; NaN for none, (batch, time)."""
        _, labels, losses = self.evaluate(batch)
        if labels.shape == batch["labels"].shape:
            return losses.masked_fill(labels == IGNORED, torch.nan)
        surprisal = losses.new_full(batch["labels"].shape, torch.nan)
        surprisal[batch["labels"] != IGNORED] = losses
        return surprisal

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Add a batch to the validation metrics."""
        self.evaluation_step(batch)

    def on_validation_epoch_end(self) -> None:
        """Log ``val_loss`` and the other metrics."""
        self.finish_evaluation("val")

    test_step = validation_step

    def on_test_epoch_end(self) -> None:
        """Log ``test_loss`` and the other metrics."""
        self.finish_evaluation("test")

    def compute_metrics(self) -> dict[str, Tensor]:
        """Compute loss and perplexity, over all batches and ranks since the last reset."""
        loss = self.evaluation_loss.compute()
        return {"loss": loss, "perplexity": loss.exp()}

    def finish_evaluation(self, prefix: str) -> dict[str, float]:
        """Log each metric as ``<prefix>_<name>`` and reset the sums."""
        metrics = {name: float(value) for name, value in self.compute_metrics().items()}
        for metric in self.children():
            if isinstance(metric, Metric):
                metric.reset()
        named = {f"{prefix}_{name}": value for name, value in metrics.items()}
        fitting = self.trainer.state.fn == TrainerFn.FITTING
        # The values are already equal on all ranks; sync_dist only informs Lightning. trainer.validate() and test()
        # return what goes to the loggers; in a fit, we write at our own step.
        self.log_dict(named, prog_bar=True, logger=False if fitting else None, sync_dist=True)
        if fitting and not self.trainer.sanity_checking:
            self.write(named)
        return metrics


def row_inputs(batch: Batch) -> dict[str, Tensor | None]:
    """Return mask and token types of a batch, None if it has none."""
    return {key: batch.get(key) for key in ("attention_mask", "token_type_ids")}


def predict_labels(
    module: nn.Module, labels: Int[Tensor, "batch time"], batch: Batch
) -> tuple[Float[Tensor, "n vocab"], Int[Tensor, "n"], Any]:
    """Return logits and labels of the labelled tokens, and the output, of a module that projects what it is told.

    Args:
        module: a module whose ``forward`` takes ``predict``.
        labels: labels of the batch, -100 for none.
        batch: the batch.
    """
    predict = labels != IGNORED
    output = module(batch["input_ids"], predict=predict, **row_inputs(batch))
    return output.logits.float(), labels[predict], output
