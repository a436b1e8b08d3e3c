"""Text for masked, causal or cloze pretraining: rows of fixed length, from any corpus or a stream."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from transformers import PreTrainedTokenizerFast

from lmdyn.datamodules.corpora.corpus import Corpus
from lmdyn.datamodules.corpora.tokenization import Array, TokenizerUser
from lmdyn.datamodules.files.checks import at_least
from lmdyn.datamodules.loading.loader import SplitLoaders
from lmdyn.datamodules.pretraining.masking import Masking
from lmdyn.datamodules.pretraining.row_loader import RowLoader
from lmdyn.datamodules.pretraining.stream_loader import StreamLoaderOfRows
from lmdyn.datamodules.pretraining.streamed_text import StreamedText
from lmdyn.datamodules.pretraining.text_rows import (
    Objective,
    Pairs,
    RowFormat,
    RowMaker,
    ordinary_ids,
    special_ids,
)


class PretrainingCorpus(SplitLoaders):
    """Pretraining text for masked, causal and cloze models, from any corpus of lmdyn or a stream of any size.

    Rows have a fixed length and almost no padding, and ``labels[t]`` is what the logits at ``t`` predict; see
    ``RowFormat``. Masks, pairs, windows and their order are drawn again in each training epoch, from a seed that is
    restored when a run resumes: a resumed run gets exactly the batches of an uninterrupted one. Validation has the same
    rows and masks each time.

    Args:
        corpus: source of the text: TextCorpus, GrammarCorpus, … Its sentences are joined without an end-of-sentence
            token, regardless of its ``eos``: text that is read as it is written is one text, with its line ends. Its
            own batches are not used.
        stream: source of the training text instead of the corpus: a Hugging Face dataset of any size.
        sequence_length: positions per row.
        batch_size: rows per batch, for each process. A run can resume on other numbers of processes if batch_size ×
            processes × accumulate_grad_batches is the same.
        objective: ``masked`` (BERT, ALBERT, ELECTRA: some tokens, hidden in the row), ``causal`` (GPT: each token, at
            the position before it) or ``cloze`` (ELMo: each token at its own position; the model itself hides it).
        pairs: ``order`` (sentence order, ALBERT), ``next`` (next sentence, BERT) or null (ELECTRA); ``masked`` only.
        masking: settings of the tokens to predict; ``masked`` only.
        short_share: share of rows with fewer tokens and padding (0.1 in BERT's and ALBERT's code).
        layers: gold layers of the corpus to serve as ``target_<layer>``: labels of the tokens in ``labels``.
            Rows of a stream have none.
        num_workers: number of processes that prepare training batches; useful with a GPU.
        seed: seed of all random draws.

    Raises:
        ValueError: if neither corpus nor stream is given, pairs or masking are given with another objective than
            ``masked``, the tokenizer has no separator, class or padding token or, for ``masked``, no mask token, or
            there is too little text.

    Reference: Devlin et al. 2019, section 3.1; Lan et al. 2020, sections 3.1 and 4.1; Clark et al. 2020; He & Toyoizumi
        2022, section 3.1 (the three objectives).

    Example:
        >>> from lmdyn.datamodules import GrammarCorpus
        >>> corpus = GrammarCorpus(n_train_tokens=10_000, vocabulary="wordpiece", vocab_size=500)
        >>> data = PretrainingCorpus(corpus, sequence_length=64, batch_size=8, pairs="order")
    """

    def __init__(
        self,
        corpus: Corpus | None = None,
        stream: StreamedText | None = None,
        *,
        sequence_length: int = 128,
        batch_size: int = 32,
        objective: Objective = "masked",
        pairs: Pairs | None = None,
        masking: Masking = Masking(),  # noqa: B008 (frozen)
        short_share: float = 0.0,
        layers: Sequence[str] = (),
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if corpus is None and stream is None:
            raise ValueError("there is no text: set `corpus`, `stream` (text for training only), or both")
        at_least(1, batch_size=batch_size)
        at_least(0, num_workers=num_workers)
        self.save_hyperparameters(logger=False, ignore=["corpus", "stream", "masking"])
        self.format = RowFormat(sequence_length, pairs, masking, short_share, objective)
        self.objective = objective
        self.corpus, self.stream = corpus, stream
        if corpus is not None:
            corpus.eos = False
        self.batch_size = batch_size
        self.layers = tuple(layers)
        self.num_workers = num_workers
        self.seed = seed
        self.allow_zero_length_dataloader_with_multiple_devices = True
        self._user = TokenizerUser() if corpus is None else corpus
        if stream is not None and stream.tokenizer is not None:
            self._user._tokenizer_name = stream.tokenizer

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        own = () if self.corpus is None else self.corpus.splits
        return own if self.stream is None or "train" in own else ("train", *own)

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The corpus's tokenizer, or that of the stream; assign another one before ``prepare_data``."""
        return self._user.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._user.tokenizer = tokenizer

    @property
    def token_counts(self) -> pd.DataFrame | None:
        """Counts of each token in the corpus's training split; None for a stream, whose tokens are not counted."""
        return None if self.corpus is None or "train" not in self.corpus.splits else self.corpus.token_counts

    @property
    def word_starts(self) -> Array | None:
        """Those of the corpus; None for a stream, whose words are not counted."""
        return None if self.corpus is None or "train" not in self.corpus.splits else self.corpus.word_starts

    @property
    def label_names(self) -> dict[str, list[str]]:
        """Names of the labels of each layer of the corpus."""
        return {} if self.corpus is None else self.corpus.label_names

    def prepare_data(self) -> None:
        """Encode the corpus, once."""
        if self.corpus is not None:
            self.corpus.prepare_data()
        special_ids(self.tokenizer, self.objective)

    def setup(self, stage: str | None = None) -> None:
        """Open the corpus; ``stage`` has no effect."""
        self.prepare_data()

    def loader(self, split: str) -> RowLoader | StreamLoaderOfRows:
        """Return the rows of a split: ``batch_size`` per process in training, shared by all processes elsewhere.

        Raises:
            ValueError: if the split does not exist, or lacks a layer.
        """
        rank, world_size = self._place
        train = split == "train"
        given: dict[str, Any] = {"seed": self.seed, "rank": rank, "world_size": world_size}
        given["num_workers"] = self.num_workers if train else 0
        given["accumulated"] = self._accumulated if train else 1
        made = self.format, special_ids(self.tokenizer, self.objective), ordinary_ids(self.tokenizer)
        if train and self.stream is not None:
            return StreamLoaderOfRows(
                self.stream,
                RowMaker(*made),
                self.tokenizer,
                batch_size=self.batch_size,
                epoch_batches=self._epoch_batches(self.stream.epoch_batches),
                **given,
            )
        if self.corpus is None:
            raise ValueError(f"a stream has only training text, no split {split!r}: set `corpus` as well")
        text = self.corpus.encoded(split)
        if unknown := [layer for layer in self.layers if layer not in text.names]:
            has = f"{', '.join(text.names) or 'text'}"
            raise ValueError(f"layers: split {split!r} has no {', '.join(unknown)}, only {has}")
        loader = RowLoader(
            text,
            RowMaker(*made, self.layers),
            batch_size=self.batch_size * (world_size if train else 1),
            shuffle=train,
            **given,
        )
        return self._for_training(loader) if train else loader
