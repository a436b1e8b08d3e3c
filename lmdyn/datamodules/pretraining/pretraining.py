"""Text to pretrain on, masked, causal or cloze: rows of fixed length, over any corpus or a stream."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerFast

from lmdyn.datamodules.corpora.corpus import Corpus, SplitLoaders
from lmdyn.datamodules.corpora.encoding import EncodedSplit
from lmdyn.datamodules.corpora.tokenization import digest, load_tokenizer
from lmdyn.datamodules.pretraining.masking import Masking
from lmdyn.datamodules.pretraining.sentence_pairs import (
    Objective,
    Pairs,
    RowFormat,
    RowMaker,
    ordinary_ids,
    row_generator,
    rows_of,
    special_ids,
)
from lmdyn.datamodules.pretraining.streamed_text import StreamedText, StreamLoaderOfRows

__all__ = ["PretrainingCorpus", "RowLoader"]


class _Batches(Dataset[dict[str, Tensor]]):
    """Batches of an epoch by their number: pure functions of seed, epoch and number, so that workers may make them."""

    def __init__(
        self,
        text: EncodedSplit,
        maker: RowMaker,
        batches: Sequence[npt.NDArray[np.int64]],
        offset: int,
        key: tuple[int, ...],
    ) -> None:
        self.text, self.maker, self.batches, self.offset, self.key = text, maker, batches, offset, key

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        rows = self.batches[number]
        generators = [row_generator(*self.key, int(row)) for row in rows]
        batch = self.maker.batch(self.text, self.offset + rows * self.maker.format.width, generators)
        batch["example"] = torch.from_numpy(rows)
        return batch


class RowLoader:
    """Serves a split as rows of fixed length, cut and masked anew in each epoch; sized, sharded, resumable.

    Training (``shuffle``): the windows of an epoch begin at an offset drawn for it, and come in a random order; what
    does not fill a batch of all ranks is left out, so that ranks have equally many. Otherwise the windows are those
    of the text in order, with the masks of epoch 0, and each is served once. Batch i of epoch e depends on (seed, e,
    i, rank) alone. See ``RowMaker`` for what a batch holds; ``example`` numbers the
    windows.

    Args:
        text: the encoded split.
        maker: makes rows.
        batch_size: rows of a batch of all ranks together.
        shuffle: serve as for training.
        seed: of everything that is drawn.
        num_workers: processes that make batches; 0 makes them in this one.
        max_tokens: only about so many positions, of windows evenly spread over the text; see :meth:`limit`.
        rank: this process; see :meth:`shard`.
        world_size: number of processes.

    Raises:
        ValueError: sizes below 1, a text shorter than a row, fewer rows than a batch.
    """

    label_convention = "aligned"
    """``labels[b, t]`` belongs to ``logits[b, t]``."""

    def __init__(
        self,
        text: EncodedSplit,
        maker: RowMaker,
        *,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        num_workers: int = 0,
        max_tokens: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size < 1 or world_size < 1 or (max_tokens is not None and max_tokens < 1):
            raise ValueError(
                f"batch_size, world_size and max_tokens are at least 1, got {batch_size}, {world_size}, {max_tokens}"
            )
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must lie in [0, world_size), got rank {rank} of {world_size}")
        self._settings: dict[str, Any] = {
            "batch_size": batch_size, "shuffle": shuffle, "seed": seed, "num_workers": num_workers,
            "max_tokens": max_tokens, "rank": rank, "world_size": world_size,
        }  # fmt: skip
        self._text, self._maker = text, maker
        width = maker.format.width
        # of training, offsets of up to a row must leave every epoch equally many
        self._rows = rows_of(text, width, width - 1 if shuffle else 0)
        if self._rows < 1:
            raise ValueError(
                f"the split has {text.num_tokens} tokens, fewer than rows of {maker.format.sequence_length} positions "
                "need: take shorter rows or more text"
            )
        chosen = np.arange(self._rows)
        if max_tokens is not None:
            number = min(self._rows, max(1, round(max_tokens / maker.format.sequence_length)))
            chosen = np.linspace(0, self._rows - 1, number).round().astype(np.int64)
        self._chosen = chosen
        whole = len(chosen) // batch_size if shuffle else math.ceil(len(chosen) / batch_size)
        if whole < 1:
            raise ValueError(
                f"{len(chosen)} rows do not fill a batch of {batch_size}: take smaller batches or more text"
            )
        self._length = whole
        self.epoch_batches = whole
        """Batches after which a trainer ends the epoch: a state saved there restores as the start of the next."""
        self.label_names = {layer: list(text.names[layer]) for layer in maker.layers}
        self._epoch = 0
        self._position = 0
        self._resume: tuple[int, int] | None = None
        self._begun = False

    @property
    def fingerprint(self) -> str:
        """Hash of what all ranks together are served."""
        served = {k: v for k, v in self._settings.items() if k not in ("rank", "world_size", "num_workers")}
        layout = self._maker.format
        predicted = masking_settings(layout.masking) if layout.objective == "masked" else layout.objective
        return digest(
            [
                self._text.fingerprint(self._maker.layers),
                served,
                [layout.sequence_length, layout.pairs, layout.short_share, predicted],
                self._maker.special,
            ]
        )

    def __len__(self) -> int:
        return self._length

    def batches(self, epoch: int) -> list[npt.NDArray[np.int64]]:
        """Numbers of the windows in each of this rank's batches of an epoch."""
        s = self._settings
        size, rank, world_size = s["batch_size"], s["rank"], s["world_size"]
        order = self._chosen
        if s["shuffle"]:
            order = row_generator(s["seed"], epoch, 0).permutation(order)
        groups = (order[i * size : (i + 1) * size][rank::world_size] for i in range(self._length))
        return [rows for rows in groups if len(rows)]

    def _dataset(self, epoch: int) -> _Batches:
        s = self._settings
        offset = 0
        if s["shuffle"]:
            offset = int(row_generator(s["seed"], epoch, 1).integers(self._maker.format.width))
        return _Batches(self._text, self._maker, self.batches(epoch), offset, (s["seed"], epoch, 2))

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        # A position is taken up with the first batch, not here: Lightning opens iterators that it never reads.
        if self._resume is not None:
            self._epoch, first = self._resume
            self._resume = None
        elif self._settings["shuffle"]:
            self._epoch, first = self._epoch + self._begun, 0
        else:
            first = 0
        self._begun = True
        dataset = self._dataset(self._epoch)
        workers = self._settings["num_workers"]
        made: Any = (dataset[i] for i in range(first, len(dataset)))
        if workers:
            made = DataLoader(
                dataset, batch_size=None, sampler=range(first, len(dataset)), num_workers=workers,
                pin_memory=torch.cuda.is_available(), generator=torch.Generator(),
            )  # fmt: skip
        for index, batch in enumerate(made, start=first):
            self._position = index + 1  # before the yield: the trainer saves while it works on this batch
            yield batch

    def _replace(self, **changes: Any) -> "RowLoader":
        return RowLoader(self._text, self._maker, **{**self._settings, **changes})

    def shard(self, rank: int, world_size: int) -> "RowLoader":
        """Every ``world_size``-th row of each batch from row ``rank`` on."""
        return self._replace(rank=rank, world_size=world_size)

    def limit(self, max_tokens: int) -> "RowLoader":
        """About ``max_tokens`` positions of the split, in windows evenly spread over it."""
        return self._replace(max_tokens=max_tokens)

    def with_batch_size(self, rows: int) -> "RowLoader":
        """The same rows in batches of another size, of all ranks together."""
        return self._replace(batch_size=rows)

    def state_dict(self) -> dict[str, Any]:
        """Epoch and number of batches handed out in it, the one that is being worked on included."""
        epoch, position = (self._epoch, self._position) if self._resume is None else self._resume
        return {"epoch": epoch, "position": position, "settings": self._resumable}

    @property
    def _resumable(self) -> dict[str, int | str]:
        settings = {name: int(self._settings[name]) for name in ("batch_size", "seed", "world_size")}
        layout = self._maker.format
        return {
            **settings, "sequence_length": layout.sequence_length, "rows": self._rows, "objective": layout.objective,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position with the next iteration; a position at the end is the next epoch's start.

        Raises:
            ValueError: a state of a loader with other settings.
        """
        epoch, position = int(state["epoch"]), int(state["position"])
        if state["settings"] != self._resumable:
            raise ValueError(
                f"the saved run read its rows with {state['settings']}, this one has {self._resumable}: exact resuming "
                "needs the same"
            )
        ended = position >= min(self.epoch_batches, len(self))
        self._resume = (epoch + 1, 0) if ended else (epoch, position)


def masking_settings(masking: Masking) -> list[float]:
    """A masking's numbers, for a hash."""
    return [getattr(masking, name) for name in masking.__dataclass_fields__]


class PretrainingCorpus(SplitLoaders):
    """Pretraining text for masked, causal and cloze models: any corpus of lmdyn, and a stream of text of any size.

    Rows have a fixed length and hardly any padding, and ``labels[t]`` is what logits at ``t`` predict; see
    ``RowFormat``. Masks, pairs, the windows and their order are drawn anew in each
    training epoch, from a seed that resuming restores, so that a resumed run sees the very batches that an
    uninterrupted one would have seen. Validation has the same rows and masks each time.

    Args:
        corpus: where the text comes from: TextCorpus, GrammarCorpus, … Its sentences are joined without an
            end-of-sentence token, whatever its ``eos`` says; its own batches play no part.
        stream: where the training text comes from instead of the corpus: a Hugging Face dataset of any size.
        sequence_length: positions of a row.
        batch_size: rows of a batch, for each process.
        objective: ``masked`` (BERT, ALBERT, ELECTRA: some tokens, which the row hides), ``causal`` (GPT: each token, at
            the position before it) or ``cloze`` (ELMo: each token at its own position, which the model hides itself).
        pairs: ``order`` (sentence order, ALBERT), ``next`` (next sentence, BERT) or null (ELECTRA); ``masked`` only.
        masking: which tokens are to be predicted; ``masked`` only.
        short_share: share of rows with fewer tokens, the rest being padding (0.1 in BERT's and ALBERT's code).
        layers: gold layers of the corpus to serve as ``target_<layer>``: those of the tokens that ``labels`` hold.
            Rows of a stream have none.
        num_workers: processes that make batches for training; for a GPU.
        seed: of everything that is drawn.

    Raises:
        ValueError: neither corpus nor stream; pairs or masking with another objective than ``masked``; a tokenizer
            without separator, class or padding token or, for ``masked``, mask token; too little text.

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
            raise ValueError("give a corpus, a stream for training, or both")
        if batch_size < 1 or num_workers < 0:
            raise ValueError(
                f"expected batch_size from 1 and num_workers from 0, got {batch_size}, {num_workers}"
            )
        self.save_hyperparameters(logger=False, ignore=["corpus", "stream", "masking"])
        self.format = RowFormat(sequence_length, pairs, masking, short_share, objective)
        self.corpus, self.stream = corpus, stream
        if corpus is not None:
            corpus.eos = False
        self.batch_size = batch_size
        self.layers = tuple(layers)
        self.num_workers = num_workers
        self.seed = seed
        self.allow_zero_length_dataloader_with_multiple_devices = True
        self._tokenizer: PreTrainedTokenizerFast | None = None

    @property
    def objective(self) -> Objective:
        """What is predicted."""
        return self.format.objective

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that there are."""
        own = () if self.corpus is None else self.corpus.splits
        return own if self.stream is None or "train" in own else ("train", *own)

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The corpus's tokenizer, or the one that the stream names; assign another one before ``prepare_data``."""
        if self.corpus is not None:
            return self.corpus.tokenizer
        assert self.stream is not None
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.stream.required_tokenizer())
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: PreTrainedTokenizerFast) -> None:
        if self.corpus is not None:
            self.corpus.tokenizer = tokenizer
        self._tokenizer = tokenizer

    @property
    def token_counts(self) -> pd.DataFrame | None:
        """How often each token occurs in the corpus's training split; None of a stream, which nobody counts."""
        return None if self.corpus is None or "train" not in self.corpus.splits else self.corpus.token_counts

    @property
    def label_names(self) -> dict[str, list[str]]:
        """Labels of each layer of the corpus."""
        return {} if self.corpus is None else self.corpus.label_names

    def prepare_data(self) -> None:
        """Encode the corpus, unless that is done."""
        if self.corpus is not None:
            if (
                self.stream is not None
                and self.stream.tokenizer is not None
                and self.corpus._tokenizer is None
            ):
                self.corpus.tokenizer = load_tokenizer(self.stream.tokenizer)
            self.corpus.prepare_data()
        special_ids(self.tokenizer, self.format.objective)

    def setup(self, stage: str | None = None) -> None:
        """Open the corpus; ``stage`` plays no part."""
        self.prepare_data()

    def maker(self, layers: Sequence[str] = ()) -> RowMaker:
        """What makes rows of the tokenizer's, with these gold layers."""
        special = special_ids(self.tokenizer, self.format.objective)
        return RowMaker(self.format, special, ordinary_ids(self.tokenizer), tuple(layers))

    def loader(self, split: str) -> RowLoader | StreamLoaderOfRows:
        """Rows of a split: ``batch_size`` for each process in training, shared by all elsewhere.

        Raises:
            ValueError: a split that there is not, a layer that it lacks.
        """
        rank, world_size = (
            (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
        )
        train = split == "train"
        # the trainer may end its epochs earlier; the loader must know where, to restart after the last batch
        limit: int | float | None = None
        if train and self.trainer is not None:
            limit = getattr(self.trainer, "overfit_batches", 0) or getattr(
                self.trainer, "limit_train_batches", 1.0
            )
        if train and self.stream is not None:
            if isinstance(limit, float):
                limit = math.floor(self.stream.epoch_batches * limit)
            return StreamLoaderOfRows(
                self.stream, self.maker(), self.tokenizer, batch_size=self.batch_size, seed=self.seed,
                num_workers=self.num_workers, limit=limit, rank=rank, world_size=world_size,
            )  # fmt: skip
        if self.corpus is None:
            raise ValueError(
                f"there is no split {split!r}: a stream has training text only, give a corpus too"
            )
        text = self.corpus.encoded(split)
        if unknown := [layer for layer in self.layers if layer not in text.names]:
            raise ValueError(f"split {split!r} has no layers {unknown}, it has {sorted(text.names)}")
        loader = RowLoader(
            text, self.maker(self.layers), batch_size=self.batch_size * (world_size if train else 1), shuffle=train,
            seed=self.seed, num_workers=self.num_workers if train else 0, rank=rank, world_size=world_size,
        )  # fmt: skip
        if limit is not None:
            loader.epoch_batches = limit if isinstance(limit, int) else math.floor(len(loader) * limit)
        return loader
