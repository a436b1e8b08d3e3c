"""Base of observers of given texts, which they read by themselves: encoded once, scored at each observation."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any

import lightning as L
import numpy as np
from torch.nn import Module

from lmdyn.analysis.words.surprisal import EncodedTexts, Objective, PseudoLikelihood
from lmdyn.callbacks.observing.checked_fields import From
from lmdyn.callbacks.observing.findings import Cost, Foreseen, expected
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.protocols import require
from lmdyn.callbacks.observing.run import open_data


class ScoredTexts(Observer):
    """Observes the log-probabilities of the texts of its ``probe``.

    Args:
        scoring: ``causal``, ``masked`` or ``mntp``; by default causal or masked, as measured. For encoder-decoders,
            ``enc_dec_mask`` or ``enc_dec_prefix``; see :func:`~lmdyn.analysis.surprisals`.
        pseudo: what is masked when a masked model predicts a piece; see :func:`~lmdyn.analysis.surprisals`.
        start: the token before a causal model's text; see :func:`~lmdyn.analysis.surprisals`.
        batch_tokens: maximum number of tokens of a batch.
    """

    scoring: Objective | None = None
    pseudo: PseudoLikelihood = "piece"
    start: str | None = None
    batch_tokens: Annotated[int, From(16)] = 4096

    not_settings = Observer.not_settings | {"batch_tokens"}

    @property
    def reads_data(self) -> bool:
        """Whether it reads batches: it reads the texts of its probe itself."""
        return False

    @property
    def content(self) -> Any:
        """What the numbers depend on in the probe."""
        raise NotImplementedError

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments, what was determined from the model, and the content of the texts."""
        digest = hashlib.blake2b(repr(self.content).encode(), digest_size=16).hexdigest()
        return {**super().settings, "forward": self.forward, "probe_set": digest}

    def open_texts(self, what: str) -> Any:
        """Return the probe, ready to be read; ``what`` says in errors what it must have."""
        data = self.data
        if isinstance(self.probe, L.LightningDataModule):
            open_data(self.probe, self.run, self.name)
        if data is None:
            raise ValueError(f"{self.name} requires {what}")
        self.run.required_tokenizer(self.name)
        require(self.needs, self.name, datamodule=data)
        return data

    def encode(
        self, module: Module, texts: Sequence[str], begins: Sequence[int] | None = None
    ) -> EncodedTexts:
        """Encode the texts as the module reads them; ``begins`` are characters from which on they are scored."""
        found = EncodedTexts(
            module,
            self.run.tokenizer,
            texts,
            objective=self.scoring,
            pseudo=self.pseudo,
            start=self.start,
            forward=self.forward,
            begins=begins,
        )
        self._found |= {"scoring": found.objective, "start": found.start}
        return found

    def unscored(self, encoded: EncodedTexts, where: Callable[[Any], str]) -> Iterator[Foreseen]:
        """Report texts that are longer than the model can read, or have no piece to predict, with their place."""
        lengths = np.array(encoded.lengths)
        context = encoded.context
        if context is not None and (lengths > context).any():
            yield expected(
                f"texts of at most {context} tokens, the positions of the model",
                f"{lengths.max()} in {where(lengths > context)}",
                "remove the text",
            )
        scored = np.bincount(encoded.text[encoded.scored], minlength=len(lengths))
        if (scored == 0).any():
            yield expected(
                "texts with a token to predict",
                f"none in {where(scored == 0)}",
                "set `start` to a token, or remove the text",
            )

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report the memory of logits."""
        size = self.batch_tokens * len(self.run.tokenizer) * 8
        yield Cost(f"logits of {self.batch_tokens} tokens, twice", size, "lower `batch_tokens`")


def first_row(rows: Any, wrong: "np.ndarray[Any, np.dtype[np.bool_]]") -> str:
    """Return file and line of the first of some rows of a table."""
    first = rows.iloc[wrong.argmax()]
    return f"{first['file']}:{first['line']}"
