"""What the recurrent models share: the recipe that trains them, and how they are evaluated and resumed."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from lmdyn.models.allocator import keep_freed_memory
from lmdyn.models.module import IGNORED, LanguageModule, TokenMean
from lmdyn.models.stacked_lstm import RecurrentOutput, StackedLSTM, State, carry_state

__all__ = ["RecurrentModule"]

log = logging.getLogger(__name__)


class RecurrentModule(LanguageModule):
    """Embedding, stacked LSTM, linear decoder, and the published recipe of training them.

    The recipe: mean cross-entropy, back-propagation truncated to the window while the state goes on where the
    batch says ``continues``, gradients clipped by their norm, and a learning rate divided by
    ``anneal_factor`` whenever the validation loss fails to improve on the best so far.

    A subclass says what the labels of a batch are (:meth:`labels_of`) and how many outputs the decoder has
    (:meth:`num_outputs`). It calls ``save_hyperparameters(ignore=["optimizer"])`` in its own ``__init__``.

    A batch without ``continues`` starts from a zero state. Padding, if any, is on the right, with no labels.
    """

    def __init__(
        self,
        *,
        vocab_size: int | None,
        embedding_size: int,
        hidden_size: int,
        num_layers: int,
        dropout: float,
        optimizer: OptimizerCallable,
        anneal_factor: float | None,
        gradient_clip_val: float | None,
        init_range: float,
        tie_weights: bool = False,
    ) -> None:
        super().__init__(vocab_size=vocab_size, optimizer=optimizer, gradient_clip_val=gradient_clip_val)
        if tie_weights and embedding_size != hidden_size:
            raise ValueError(
                f"tie_weights expects embedding_size == hidden_size, got {embedding_size} and {hidden_size}; "
                "make them equal or set tie_weights to false"
            )
        if anneal_factor is not None and anneal_factor <= 1:
            raise ValueError(f"expected anneal_factor above 1, or null for no annealing, got {anneal_factor}")
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.tie_weights = tie_weights
        self.init_range = init_range
        self.anneal_factor = anneal_factor
        self.dropout = nn.Dropout(dropout)
        self.best_val_loss: float | None = None
        self._carried: State | None = None  # of training
        self._evaluated: State | None = None  # of validation, test and prediction
        self.evaluation_loss = TokenMean()

    # What a subclass says ---------------------------------------------------------------------------------

    def labels_of(self, batch: Mapping[str, Tensor]) -> Int[Tensor, "batch time"]:
        """The label of each token, -100 where it has none."""
        raise NotImplementedError

    def num_outputs(self) -> int:
        """The number of classes; called when ``vocab_size`` is known."""
        raise NotImplementedError

    def sizes_known(self) -> bool:
        """Whether the layers can be built without a datamodule."""
        return self.vocab_size is not None

    # Building ---------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Make the layers: embedding and decoder weights U(±init_range), the bias 0, PyTorch's own LSTMs."""
        assert self.vocab_size is not None
        self.embedding = nn.Embedding(self.vocab_size, self.embedding_size)
        self.lstm = StackedLSTM(self.embedding_size, self.hidden_size, self.num_layers, self.dropout.p)
        self.decoder = nn.Linear(self.hidden_size, self.num_outputs())
        nn.init.uniform_(self.embedding.weight, -self.init_range, self.init_range)
        nn.init.uniform_(self.decoder.weight, -self.init_range, self.init_range)
        nn.init.zeros_(self.decoder.bias)
        if self.tie_weights:
            self.decoder.weight = self.embedding.weight

    def configure_model(self) -> None:
        """Build the layers from the datamodule's tokenizer, once, and record the size found."""
        if hasattr(self, "decoder"):
            return
        if self.vocab_size is None:
            self.find_vocab_size()
        self.build()

    # Running ----------------------------------------------------------------------------------------------

    def forward(
        self,
        input_ids: Int[Tensor, "batch time"],
        state: State | None = None,
        continues: Bool[Tensor, " batch"] | None = None,
    ) -> RecurrentOutput:
        """Logits for each token, from the tokens up to and including it; keeps nothing between calls.

        Args:
            input_ids: tokens.
            state: what the call on the batch before answered as ``.state``; None is zeros.
            continues: rows that go on from ``state``, the others start from zero; None: all go on.
        """
        if continues is not None:
            state = carry_state(state, continues)
        hidden, after = self.lstm(self.dropout(self.embedding(input_ids)), state)
        return RecurrentOutput(logits=self.decoder(self.dropout(hidden)), state=after)

    def _start(self, previous: State | None, batch: Mapping[str, Tensor]) -> State | None:
        """The state in which this batch starts."""
        continues = batch.get("continues")
        if continues is None:
            return None
        if previous is None and bool(continues.any()):  # only at the start of a run or of an evaluation
            log.warning(
                "a batch continues a previous one, but no state was carried, so it starts from zero; "
                "a resumed run needs the RunState callback, in both the first run and this one"
            )
        return carry_state(previous, continues)

    # Training ---------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """A fit starts with no carried state and no best loss; a resumed one gets its own after this."""
        super().setup(stage)
        if stage == "fit":
            self._carried = None
            self.best_val_loss = None
            if self.trainer.strategy.root_device.type == "cpu":
                keep_freed_memory()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer that was asked for, over all parameters."""
        return self.optimizer(self.parameters())

    def training_step(self, batch: Mapping[str, Tensor], batch_idx: int) -> Tensor:
        """Mean cross-entropy over the labelled tokens (nats); logged as ``train_loss``."""
        output = self(batch["input_ids"], state=self._start(self._carried, batch))
        self._carried = tuple((h.detach(), c.detach()) for h, c in output.state)
        labels = self.labels_of(batch)
        losses = F.cross_entropy(output.logits.flatten(0, 1), labels.flatten(), reduction="sum")
        count = (labels != IGNORED).sum()
        loss = losses / count.clamp(min=1)
        self.log("train_loss", loss.detach(), prog_bar=True, logger=False)
        self.log_periodically({"train_loss": loss.detach()}, batch_idx)
        return loss * self.rank_weight(count)

    # Evaluation -------------------------------------------------------------------------------------------

    def evaluate(self, batch: Mapping[str, Tensor]) -> RecurrentOutput:
        """Run a batch in the state of this evaluation, which is never that of training."""
        output: RecurrentOutput = self(batch["input_ids"], state=self._start(self._evaluated, batch))
        self._evaluated = output.state
        return output

    def token_losses(
        self, logits: Float[Tensor, "batch time classes"], labels: Int[Tensor, "batch time"]
    ) -> Float[Tensor, "batch time"]:
        """Cross-entropy of each token in nats, 0 where the label is -100."""
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return losses.view(labels.shape)

    def evaluation_step(self, batch: Mapping[str, Tensor]) -> None:
        """Add the losses of a batch to the sums."""
        output, labels = self.evaluate(batch), self.labels_of(batch)
        self.update_metrics(output.logits, labels, self.token_losses(output.logits, labels))

    def update_metrics(self, logits: Tensor, labels: Tensor, losses: Tensor) -> None:
        """Add a batch to each metric; each token weighs the same."""
        self.evaluation_loss.update(losses, labels)

    def compute_metrics(self) -> dict[str, Tensor]:
        """The metrics over all batches and ranks since they were reset: at least ``loss``."""
        loss = self.evaluation_loss.compute()
        return {"loss": loss, "perplexity": loss.exp()}

    def on_validation_epoch_start(self) -> None:
        """An evaluation starts from zero."""
        self._evaluated = None

    def on_validation_epoch_end(self) -> None:
        """Log ``val_loss`` and ``val_perplexity``; divide the learning rate if the loss did not improve."""
        loss = self.finish_evaluation("val")["loss"]
        if self.trainer.state.fn == TrainerFn.FITTING and not self.trainer.sanity_checking:
            self.anneal(loss)

    def anneal(self, loss: float) -> None:
        """Divide the learning rate by ``anneal_factor`` unless ``loss`` is the lowest so far."""
        if self.best_val_loss is None or loss < self.best_val_loss:
            self.best_val_loss = loss
        elif self.anneal_factor is not None:
            for optimizer in self.trainer.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group["lr"] / self.anneal_factor

    on_test_epoch_start = on_validation_epoch_start
    on_predict_epoch_start = on_validation_epoch_start

    # Checkpoints ------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the best validation loss; the learning rate is in the optimizer's state."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["best_val_loss"] = self.best_val_loss

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the best validation loss."""
        super().on_load_checkpoint(checkpoint)
        self.best_val_loss = checkpoint.get("best_val_loss")

    def resume_state(self) -> dict[str, Tensor]:
        """What this rank needs besides the checkpoint to go on exactly: the carried recurrent state.

        Returns:
            ``{"h", "c"}``, each (layers, batch, hidden); empty before the first training batch.
        """
        if self._carried is None:
            return {}
        return {
            "h": torch.cat([h for h, _ in self._carried]),
            "c": torch.cat([c for _, c in self._carried]),
        }

    @staticmethod
    def redistribute_resume_state(
        states: Sequence[Mapping[str, Tensor]], rank: int, world_size: int
    ) -> dict[str, Tensor]:
        """What :meth:`resume_state` returned on each rank, for one of another number of ranks.

        Row b of a rank is row rank + b × ranks of the batch of all ranks, as
        :class:`~lmdyn.datamodules.StreamLoader` deals out its streams.

        Args:
            states: of rank 0, 1, …
            rank: this one.
            world_size: ranks there are now.

        Example:
            >>> of_two = [{"h": torch.tensor([[[0.0], [2.0]]])}, {"h": torch.tensor([[[1.0], [3.0]]])}]
            >>> RecurrentModule.redistribute_resume_state(of_two, 0, 1)["h"].flatten()
            tensor([0., 1., 2., 3.])
        """
        together = {}
        for name, first in states[0].items():
            rows = sum(state[name].shape[1] for state in states)
            together[name] = first.new_empty(first.shape[0], rows, first.shape[2])
            for r, state in enumerate(states):
                together[name][:, r :: len(states)] = state[name]
        return {name: tensor[:, rank::world_size].contiguous() for name, tensor in together.items()}

    def load_resume_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what :meth:`resume_state` returned on this rank."""
        if not state:
            self._carried = None
            return
        if set(state) != {"h", "c"} or len(state["h"]) != self.num_layers:
            shapes = {key: tuple(value.shape) for key, value in state.items()}
            raise ValueError(f"expected h and c of {self.num_layers} layers, got {shapes}")
        h, c = state["h"].to(self.device, copy=True), state["c"].to(self.device, copy=True)
        self._carried = tuple(zip(h.split(1), c.split(1), strict=True))
