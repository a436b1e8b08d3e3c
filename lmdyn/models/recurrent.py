"""Base of the recurrent models: their training recipe, evaluation and resuming."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from lmdyn.models.module import IGNORED, Batch, LanguageModule
from lmdyn.models.stacked_lstm import RecurrentOutput, StackedLSTM, State, carry_state

log = logging.getLogger(__name__)


class RecurrentModule(LanguageModule):
    """Embedding, stacked LSTM, linear decoder, and the published training recipe.

    The recipe is mean cross-entropy, back-propagation truncated to the window while the state is carried in rows that
    the batch marks as ``continues``, gradients clipped by their norm, and a learning rate divided by ``anneal_factor``
    whenever the validation loss fails to improve on the best so far.

    A subclass may define the labels of a batch (:meth:`labels_of`) and the number of outputs of the decoder
    (:meth:`num_outputs`).

    A batch without ``continues`` starts from a zero state. Padding, if any, is on the right, without labels.
    """

    def __init__(
        self,
        vocab_size: int | None = None,
        embedding_size: int = 200,
        hidden_size: int = 200,
        num_layers: int = 2,
        dropout: float = 0.2,
        tie_weights: bool = False,
        optimizer: OptimizerCallable = lambda params: torch.optim.SGD(params, lr=20.0),
        anneal_factor: float | None = 4.0,
        gradient_clip_val: float | None = 0.25,
        init_range: float = 0.1,
    ) -> None:
        super().__init__(vocab_size=vocab_size, optimizer=optimizer, gradient_clip_val=gradient_clip_val)
        if tie_weights and embedding_size != hidden_size:
            raise ValueError(
                f"tie_weights requires embedding_size == hidden_size, got {embedding_size} and {hidden_size}. Set "
                "equal sizes, or set tie_weights to false"
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
        self._carried: State | None = None  # state of training
        self._evaluated: State | None = None  # state of validation, test and prediction
        if self.sizes_known():
            self.build()

    # What a subclass says ---------------------------------------------------------------------------------

    def num_outputs(self) -> int:
        """Return the number of classes, by default that of words; called when ``vocab_size`` is known."""
        assert self.vocab_size is not None
        return self.vocab_size

    # Building ---------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Create the layers: embedding and decoder weights U(±init_range), bias 0, LSTMs with PyTorch's defaults."""
        assert self.vocab_size is not None
        self.embedding = nn.Embedding(self.vocab_size, self.embedding_size)
        self.lstm = StackedLSTM(self.embedding_size, self.hidden_size, self.num_layers, self.dropout.p)
        self.decoder = nn.Linear(self.hidden_size, self.num_outputs())
        nn.init.uniform_(self.embedding.weight, -self.init_range, self.init_range)
        nn.init.uniform_(self.decoder.weight, -self.init_range, self.init_range)
        nn.init.zeros_(self.decoder.bias)
        if self.tie_weights:
            self.decoder.weight = self.embedding.weight

    # Running ----------------------------------------------------------------------------------------------

    def forward(
        self,
        input_ids: Int[Tensor, "batch time"],
        state: State | None = None,
        continues: Bool[Tensor, " batch"] | None = None,
    ) -> RecurrentOutput:
        """Compute logits for each token, from the tokens up to and including it; keeps nothing between calls.

        Args:
            input_ids: tokens.
            state: ``.state`` of the output for the previous batch; None means zeros.
            continues: whether each row continues from ``state``; other rows start from zero. None: all continue.
        """
        if continues is not None:
            state = carry_state(state, continues)
        hidden, after = self.lstm(self.dropout(self.embedding(input_ids)), state)
        return RecurrentOutput(logits=self.decoder(self.dropout(hidden)), state=after)

    def _start(self, previous: State | None, batch: Batch) -> State | None:
        """Return the state in which this batch starts."""
        continues = batch.get("continues")
        if continues is None:
            return None
        if previous is None and continues.any():  # only at the start of a run or an evaluation
            log.warning(
                "a batch continues a previous batch, but the model has no previous state, so the batch starts from "
                "zero. Add the RunState callback to both the first run and the resumed run"
            )
        return carry_state(previous, continues)

    # Training ---------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Start a fit without a carried state and a best loss; a resumed fit restores its own after this."""
        super().setup(stage)
        if stage == "fit":
            self._carried = None
            self.best_val_loss = None

    def training_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the sum of the cross-entropies of a batch, and the number of labelled tokens."""
        output = self(batch["input_ids"], state=self._start(self._carried, batch))
        self._carried = tuple((h.detach(), c.detach()) for h, c in output.state)
        labels = self.labels_of(batch)
        losses = F.cross_entropy(output.logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return losses, (labels != IGNORED).sum()

    # Evaluation -------------------------------------------------------------------------------------------

    def logits_of(self, batch: Batch) -> Tensor:
        """Return the logits of a batch, in the state of this evaluation, which is never that of training."""
        output: RecurrentOutput = self(batch["input_ids"], state=self._start(self._evaluated, batch))
        self._evaluated = output.state
        return output.logits

    def on_validation_epoch_start(self) -> None:
        """Start an evaluation from a zero state."""
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
        checkpoint["best_val_loss"] = self.best_val_loss

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the best validation loss."""
        self.best_val_loss = checkpoint.get("best_val_loss")

    def resume_state(self) -> dict[str, Tensor]:
        """Return this rank's carried recurrent state, which exact resuming requires in addition to the checkpoint.

        Returns:
            ``{"h", "c"}``, each (layers, batch, hidden); empty before the first training batch.
        """
        if self._carried is None:
            return {}
        return {"h": torch.cat([h for h, _ in self._carried]), "c": torch.cat([c for _, c in self._carried])}

    @staticmethod
    def redistribute_resume_state(
        states: Sequence[Mapping[str, Tensor]], rank: int, world_size: int
    ) -> dict[str, Tensor]:
        """Convert the results of :meth:`resume_state` on each rank to those of another number of ranks.

        Row b of a rank is row rank + b × ranks of the batch of all ranks, as :class:`~lmdyn.datamodules.StreamLoader`
        distributes its streams.

        Args:
            states: states of rank 0, 1, …
            rank: this rank.
            world_size: present number of ranks.

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
        """Restore the result of :meth:`resume_state` on this rank."""
        if not state:
            self._carried = None
            return
        if set(state) != {"h", "c"} or len(state["h"]) != self.num_layers:
            shapes = f"{', '.join(f'{key} of shape {tuple(part.shape)}' for key, part in state.items())}"
            raise ValueError(f"the saved state has {shapes}: expected h and c of {self.num_layers} layers")
        h = state["h"].to(self.device, copy=True)
        c = state["c"].to(self.device, copy=True)
        self._carried = tuple(zip(h.split(1), c.split(1), strict=True))
