"""Requirements of the Shapley interaction of words for any model: sites, replacement of absent words, and calls."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import capture, observing, resolve_sites
from lmdyn.analysis.inspection.forward import Forward, call_module, device_of, logits_of
from lmdyn.analysis.inspection.sites import find_sites
from lmdyn.analysis.interdependence.coalitions import Reading, reading_of
from lmdyn.analysis.interdependence.pairwise_shapley import Coalitions, pairwise_shapley_interaction
from lmdyn.analysis.interdependence.shapley import Index
from lmdyn.callbacks.interdependence.token_pairs import TokenBatch, TokenPairs

__all__ = ["Absence", "ShapleyParts", "Space", "absent_token"]

log = logging.getLogger(__name__)

Absence = Literal["mean", "mask", "pad", "unk", "delete"]
"""Replacement of an absent word: the mean word vector, or a special token of the tokenizer; ``delete``: none."""

Space = Literal["hidden", "logits"]
"""Space in which interdependence is measured: the last hidden state, or the logits."""

T = TypeVar("T")

_MEAN = -1  # the id that denotes the mean word vector
_MANY = 100_000_000  # tokens of one observation that cause a warning


def absent_token(absence: Absence, tokenizer: Any, observer: str) -> int | None:
    """Return the id that replaces absent words; -1 for the mean word vector, None if they are deleted.

    Raises:
        ValueError: if the tokenizer has no such token; for ``observer``.
    """
    if absence in ("mean", "delete"):
        return _MEAN if absence == "mean" else None
    token = getattr(tokenizer, f"{absence}_token_id", None)
    if token is None:
        others = [a for a in ("mask", "pad", "unk") if getattr(tokenizer, f"{a}_token_id", None) is not None]
        raise ValueError(
            f"{observer}: the tokenizer has no {absence} token to replace absent words: choose `absence: mean`"
            f"{''.join(f' or {other}' for other in others)}"
        )
    return int(token)


@dataclass(frozen=True)
class ShapleyParts:
    """Sites and settings of a model's Shapley interaction.

    Attributes:
        observer: name of the observer, for messages.
        index: see :data:`~lmdyn.analysis.interdependence.shapley.Index`.
        coalitions: see :data:`~lmdyn.analysis.interdependence.pairwise_shapley.Coalitions`.
        absence: see :data:`Absence`.
        baseline: the id that replaces absent words, see :func:`absent_token`; None if they are deleted.
        reading: words that the model sees at a position; None measures it.
        spaces: spaces that are read.
        hidden: path of the module that returns the hidden state; None until it is found.
        embedding: path of the module that maps ids to word vectors; None until it is found.
        exact_up_to: maximum number of players for which all coalitions are used.
        samples: number of coalitions drawn for more players.
        seed: seed of the draws.
        batch_tokens: number of tokens read at once.
        forward: function that calls the module.
    """

    observer: str
    index: Index
    coalitions: Coalitions
    absence: Absence
    baseline: int | None
    reading: Reading | None
    spaces: Sequence[Space]
    hidden: str | None
    embedding: str | None
    exact_up_to: int
    samples: int
    seed: int
    batch_tokens: int
    forward: Forward | None

    def check_cost(self, pairs: TokenPairs, max_distance: int) -> None:
        """Log the cost of an observation, with a warning if it is high."""
        rows = [self._rows(len({w for w in row if w >= 0}), max_distance) * len(row) for b in pairs.batches
                for row in b.words.tolist()]  # fmt: skip
        tokens = sum(rows)
        log.log(
            logging.WARNING if tokens > _MANY else logging.INFO,
            "%s: an observation reads about %.2g tokens (%d sentences and their coalitions)%s",
            self.observer, tokens, len(rows),
            "; reduce it by `max_tokens`, `max_length` with `longer: skip`, fewer `samples` or `coalitions: context`"
            if tokens > _MANY else "",
        )  # fmt: skip

    def _rows(self, words: int, max_distance: int) -> int:
        turned = 1 + words + max_distance * words
        if self.coalitions == "context":
            return turned
        exact = 1 << min(words, self.exact_up_to)
        return exact + (self.samples * turned if words > self.exact_up_to else 0)

    def needs(self, argument: Literal["hidden", "embedding"]) -> bool:
        """Return whether this path is required."""
        return "hidden" in self.spaces if argument == "hidden" else self.absence == "mean"

    def find(
        self, module: nn.Module, pairs: TokenPairs, argument: Literal["hidden", "embedding"]
    ) -> str | None:
        """Return the path of the final norm, or else of the last block; or of the module that maps ids to word vectors.

        Raises:
            ValueError: if there is none at the positions of the words.
        """
        if not self.needs(argument):
            return None
        if argument == "embedding" and "embedding" in dict(module.named_modules()):
            return "embedding"
        kinds = ("embedding",) if argument == "embedding" else ("norm", "block")
        ids = pairs.batches[0].ids[:1].to(device_of(module))
        found = self._tried(
            module, ids, lambda: find_sites(module, _batch(ids, _decoder_start(module)), self.forward)
        )
        for kind in kinds:
            paths = [
                path for name, path in found.sites.items()
                if found.kinds[name] == kind and found.shapes[name][1] == ids.shape[1]
            ]  # fmt: skip
            if paths:
                return paths[-1]
        told = f" ({'; '.join(found.left_out)})" if found.left_out else ""
        other = "`absence: mask`" if argument == "embedding" else "`spaces: [logits]`"
        raise ValueError(
            f"{self.observer}: no {' or '.join(kinds)} was found in the module{told}: set `{argument}` to the path of "
            f"one, or {other}"
        )

    def _tried(self, module: nn.Module, ids: Tensor, call: Callable[[], T]) -> T:
        try:
            return call()
        except (IndexError, RuntimeError) as error:
            raise ValueError(
                f"{self.observer}: {type(module).__name__} cannot read a sentence of {ids.shape[1]} tokens with ids up "
                f"to {int(ids.max())}{_limits(module)} ({type(error).__name__}: {error}): skip longer sentences "
                "by `max_length` with `longer: skip`, or use the model's own tokenizer"
            ) from error

    def check(self, module: nn.Module, pairs: TokenPairs) -> None:
        """Try the longest sentence, if the paths are known.

        Raises:
            ValueError: if the module cannot read it, has no such site, or returns another shape there.
        """
        ids = pairs.batches[0].ids[:1].to(device_of(module))
        with observing(module), torch.no_grad(), self._opened(module, pairs) as forward:
            found = self._tried(module, ids, lambda: forward(ids))
        for name, tensor in found.items():
            if tensor.ndim != 3 or tensor.shape[:2] != ids.shape:
                path = f"`hidden: {self.hidden}`" if name == "hidden" else "`spaces: [hidden]`"
                raise ValueError(
                    f"{self.observer}: expected {name} as (batch, time, features) = {(*ids.shape, '…')}, got "
                    f"{tuple(tensor.shape)}: name another module, or remove it ({path})"
                )

    @torch.no_grad()
    def measure(
        self, module: nn.Module, pairs: TokenPairs, max_distance: int, rank: int, world_size: int
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the interdependence of the pairs of this rank's sentences, and its standard error, by space.

        Returns:
            Each (words, max_distance) in float64, 0 for those of other ranks.
        """
        device = device_of(module)
        shape = (pairs.words, max_distance)
        found: dict[str, tuple[Tensor, Tensor]] = {}
        with self._opened(module, pairs) as forward:
            reading = self._reading(forward, pairs.batches[0].ids.to(device))
            for name in forward(pairs.batches[0].ids[:1].to(device)):
                found[name] = (
                    torch.zeros(shape, dtype=torch.float64),
                    torch.zeros(shape, dtype=torch.float64),
                )
            for batch in pairs.batches[rank::world_size]:
                of = self._interaction(forward, batch, reading, max_distance, device)
                for name, (value, error) in of.items():
                    for row, first in enumerate(batch.first):
                        words = int(batch.words[row].max()) + 1
                        found[name][0][first : first + words] = value[row, :words]
                        found[name][1][first : first + words] = error[row, :words]
        return {name: (value.to(device), error.to(device)) for name, (value, error) in found.items()}

    def _interaction(
        self, forward: Callable[[Tensor], dict[str, Tensor]], batch: TokenBatch, reading: Reading,
        max_distance: int, device: torch.device,
    ) -> dict[str, tuple[Tensor, Tensor]]:  # fmt: skip
        found = pairwise_shapley_interaction(
            forward,
            batch.ids.to(device),
            max_distance,
            baseline=self.baseline,
            absence="delete" if self.absence == "delete" else "replace",
            words=batch.words,
            reading=reading,
            index=self.index,
            coalitions=self.coalitions,
            exact_up_to=self.exact_up_to,
            samples=self.samples,
            max_rows=max(1, self.batch_tokens // batch.ids.shape[1]),
            seed=[self.seed * 1_000_003 + number for number in batch.numbers],
        )
        return {name: (of.value, of.standard_error) for name, of in found.items()}

    def _reading(self, forward: Callable[[Tensor], dict[str, Tensor]], ids: Tensor) -> Reading:
        """Return the measured words that the model sees, and compare them with the argument."""
        measured = reading_of(forward, ids)
        if self.reading == "causal" and measured == "bidirectional":
            raise ValueError(
                f"{self.observer}: `reading: causal`, but the model's output depends on later words: remove "
                "`reading`, or set it to bidirectional"
            )
        return self.reading or measured

    @contextmanager
    def _opened(
        self, module: nn.Module, pairs: TokenPairs
    ) -> Iterator[Callable[[Tensor], dict[str, Tensor]]]:
        """Yield a function from rows of ids (-1 is the mean word vector) to the outputs by space."""
        start = _decoder_start(module)
        spaces = [space for space in self.spaces if space == "hidden" or start is None]
        if not spaces:
            raise ValueError(
                f"{self.observer}: the logits of an encoder-decoder are for its decoder's positions, not for the words "
                "that it reads: use its encoder by `spaces: [hidden]`"
            )
        absent: list[Tensor] = []
        with ExitStack() as stack:
            hidden = None
            if "hidden" in spaces:
                assert self.hidden is not None
                hidden = resolve_sites(module, {"hidden": self.hidden})["hidden"]
                seen = stack.enter_context(capture(module, {"hidden": self.hidden}))
            if self.absence == "mean":
                assert self.embedding is not None
                embedding = resolve_sites(module, {"embedding": self.embedding})["embedding"]
                mean = self._tried(
                    module, pairs.batches[0].ids, lambda: _mean_vector(embedding, pairs, device_of(module))
                )

                def replace(_: nn.Module, __: Any, output: Any) -> Any:
                    if absent and isinstance(output, Tensor) and output.shape[:2] == absent[0].shape:
                        return torch.where(absent[0][..., None], mean.to(output.dtype), output)
                    return None

                stack.callback(embedding.register_forward_hook(replace).remove)

            def forward(rows: Tensor) -> dict[str, Tensor]:
                absent[:] = [rows == _MEAN] if self.absence == "mean" else []
                output = call_module(module, _batch(rows.clamp(min=0), start), forward=self.forward)
                answer = {}
                if hidden is not None:
                    answer["hidden"] = _batch_first(hidden, list(seen.activations.values())[-1])
                    seen.clear()
                if "logits" in spaces:
                    answer["logits"] = logits_of(output)
                return answer

            yield forward


def _batch(ids: Tensor, decoder_start: int | None) -> dict[str, Tensor]:
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if decoder_start is None:
        return {**batch, "labels": ids}  # for a forward that returns all logits only with labels
    return {**batch, "decoder_input_ids": torch.full_like(ids[:, :1], decoder_start)}


def _decoder_start(module: nn.Module) -> int | None:
    """Return the first token of the decoder of an encoder-decoder of transformers; None for other models."""
    for part in module.modules():
        config = getattr(part, "config", None)
        if getattr(config, "is_encoder_decoder", False) and hasattr(
            part, "prepare_decoder_input_ids_from_labels"
        ):
            candidates = (
                getattr(config, f"{name}_token_id", None) for name in ("decoder_start", "bos", "pad")
            )
            return next((int(i) for i in candidates if i is not None), 0)
    return None


def _batch_first(module: nn.Module, output: Tensor) -> Tensor:
    """Return the output of a recurrent layer as (batch, time, features)."""
    if isinstance(module, nn.RNNBase) and not module.batch_first and output.ndim == 3:
        return output.transpose(0, 1)
    return output


def _mean_vector(embedding: nn.Module, pairs: TokenPairs, device: torch.device) -> Tensor:
    """Return the mean word vector over the tokens of the words of all sentences."""
    ids = torch.from_numpy(pairs.tokens.nonzero()[0]).to(device)
    share = torch.from_numpy(pairs.tokens[pairs.tokens > 0] / pairs.tokens.sum()).to(device)
    vectors: Tensor = embedding(ids[None])[0]
    return share.to(vectors.dtype) @ vectors


def _limits(module: nn.Module) -> str:
    """Return the maximum sentence length and vocabulary size in the configurations within a module."""
    told = {}
    for part in module.modules():
        for name in ("max_position_embeddings", "n_positions", "vocab_size"):
            value = getattr(getattr(part, "config", None), name, None)
            if isinstance(value, int):
                told[name] = value
    return f" ({', '.join(f'{name} is {value}' for name, value in told.items())})" if told else ""
