"""The LSTM tagger of Saphra (2021): a network that learned one linguistic category only."""

from typing import Any, Literal

from jaxtyping import Int
from torch import Tensor

from lmdyn.models.module import IGNORED, Batch, LanguageModule, MajorityShare, TokenMean
from lmdyn.models.recurrent import RecurrentModule


class Tagging(LanguageModule):
    """Mixin of a module that predicts a label layer; its ``forward`` returns ``.logits``.

    Attributes:
        task: label layer to learn.
        num_labels: number of classes; None before it is read from the datamodule.
        label_key: key of the labels in a batch.
    """

    num_labels: int | None = None

    def learn(self, task: str, target: str, shuffled_labels: bool, num_labels: int | None) -> None:
        """Set what is learned, and build the layers if all sizes are known.

        Args:
            task: label layer.
            target: ``"next"`` for the label of the following token, ``"current"`` for that of the input token.
            shuffled_labels: whether to learn the randomly shuffled labels of the layer.
            num_labels: number of classes, if known.

        Raises:
            ValueError: if ``target`` is another value.
        """
        if target not in ("next", "current"):
            raise ValueError(f'expected target "next" or "current", got {target!r}')
        self.task, self.num_labels = task, num_labels
        layer = f"shuffled_{task}" if shuffled_labels else task
        self.label_key = f"target_{layer}" if target == "next" else layer
        self.accuracy = TokenMean()
        if self.sizes_known():
            self.build()

    def sizes_known(self) -> bool:
        """Return whether the layers can be built without a datamodule."""
        return super().sizes_known() and self.num_labels is not None

    def num_outputs(self) -> int:
        """Return the number of classes, read from the datamodule if needed, and recorded.

        Raises:
            ValueError: if it is unknown, and the datamodule lacks the layer.
        """
        if self.num_labels is None:
            names = self.from_datamodule("label_names", "num_labels")
            if self.task not in names:
                raise ValueError(
                    f"expected a label layer {self.task!r} in the datamodule, got {', '.join(sorted(names)) or 'none'}"
                    ": add the layer to `data.layers`"
                )
            self.num_labels = len(names[self.task])
            self.hparams["num_labels"] = self.num_labels
        self.majority = MajorityShare(self.num_labels)
        return self.num_labels

    def labels_of(self, batch: Batch) -> Int[Tensor, "batch time"]:
        """Return the tag to predict at each token."""
        if self.label_key not in batch:
            raise ValueError(
                f"expected `{self.label_key}` in the batch, got {', '.join(sorted(batch))}: "
                f"add the layer {self.label_key.removeprefix('target_')!r} to `data.layers`"
            )
        return batch[self.label_key]

    def update_metrics(self, logits: Tensor, labels: Tensor, losses: Tensor) -> None:
        """Add a batch to the loss and to the accuracy."""
        super().update_metrics(logits, labels, losses)
        self.accuracy.update(logits.argmax(-1) == labels, labels)
        self.majority.update(labels)

    def compute_metrics(self) -> dict[str, Tensor]:
        """Compute loss, perplexity, accuracy and that of the most frequent label, over all batches and ranks."""
        floors = {"accuracy": self.accuracy.compute(), "majority": self.majority.compute()}
        return super().compute_metrics() | floors

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Return the most likely label at each token, an index into the layer's names; -100 on padding."""
        labels = self.logits_of(batch).argmax(-1)
        mask = batch.get("attention_mask")
        return labels if mask is None else labels.masked_fill(mask == 0, IGNORED)


class LSTMTagger(Tagging, RecurrentModule):
    """Tags words with a single LSTM layer that reads from the left.

    Its representations are compared (SVCCA) with those of a language model of the same sizes. With ``target="next"``
    it predicts the tag of the next word, as a language model must implicitly; with ``"current"`` it predicts the tag
    of the word just read. Trained on shuffled tags, it is the lower baseline: what a network that memorises arbitrary
    labels shares with the language model.

    Labels are ``target_<task>`` (next) or ``<task>`` (current) in the batch, with ``shuffled_`` before the task for
    ``shuffled_labels``; -100 is no label. The hidden state at a token depends on the tokens up to it.

    Sites: ``embedding``, ``lstm.layers.0`` and ``decoder``.

    Logged: ``train_loss`` (mean over the batch's tokens); ``val_loss``, ``val_perplexity``, ``val_accuracy``,
    ``val_majority`` (accuracy of always predicting the most frequent of these labels, a floor) and the same with
    ``test_`` (over all labelled tokens; loss in nats, accuracy and majority in [0, 1]).

    Args:
        task: label layer to learn, such as ``upos``, ``xpos``, ``semtag`` or ``topic``.
        target: ``"next"`` for the label of the following token, ``"current"`` for that of the input token.
        shuffled_labels: whether to learn the randomly shuffled labels of the layer.
        num_labels: number of classes; None uses ``len(datamodule.label_names[task])``, which is then recorded.
        **kwargs: sizes, optimizer and recipe, see :class:`~lmdyn.models.LSTMLanguageModel`.

    Raises:
        ValueError: if ``target`` is not next or current; if the batch does not have the label layer; when the layers
            are built, if a size is None and no datamodule provides it.

    Reference: Saphra & Lopez 2019, section 3.1 and table 2 (Saphra 2021, chapter 4).

    Example:
        >>> import torch
        >>> tagger = LSTMTagger("upos", target="current", vocab_size=10, num_labels=3)
        >>> tagger(torch.tensor([[1, 2, 3]])).logits.shape
        torch.Size([1, 3, 3])
    """

    _given = ("num_layers", "tie_weights")

    def __init__(
        self,
        task: str = "upos",
        target: Literal["next", "current"] = "next",
        shuffled_labels: bool = False,
        num_labels: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_layers=1, tie_weights=False, **kwargs)
        self.learn(task, target, shuffled_labels, num_labels)
