"""Any model as a function of sentences with absent words, for their Shapley interaction."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import capture, observing, resolve_sites
from lmdyn.analysis.inspection.forward import Forward, call_module, device_of, logits_of
from lmdyn.analysis.inspection.sites import find_sites
from lmdyn.analysis.inspection.transformer import is_encoder_decoder
from lmdyn.callbacks.interdependence.word_pairs import SentencePairs

__all__ = ["MEAN", "AbsentWords", "Space"]

Space = Literal["hidden", "logits"]
"""Space in which interdependence is measured: the last hidden state, or the logits."""

MEAN = -1
"""The id that denotes the mean word vector."""


@dataclass(frozen=True)
class AbsentWords:
    """How a model is read with absent words.

    Attributes:
        observer: name of the observer, for messages.
        pairs: the sentences.
        spaces: spaces that are read.
        forward: function that calls the module.
    """

    observer: str
    pairs: SentencePairs
    spaces: Sequence[Space]
    forward: Forward | None

    def find(self, module: nn.Module, argument: Literal["hidden", "embedding"]) -> str | None:
        """Return the path of the final norm, or else of the last block; or of the module that maps ids to word vectors.

        Returns:
            The path; None if it is not required.

        Raises:
            ValueError: if there is none at the positions of the words.
        """
        if argument == "hidden" and "hidden" not in self.spaces:
            return None
        if argument == "embedding" and "embedding" in dict(module.named_modules()):
            return "embedding"
        kinds = ("embedding",) if argument == "embedding" else ("norm", "block")
        ids = self._longest(module)
        found = find_sites(module, _batch(ids, is_encoder_decoder(module)), self.forward)
        for kind in kinds:
            paths = [
                path
                for name, path in found.sites.items()
                if found.kinds[name] == kind and found.shapes[name][1] == ids.shape[1]
            ]
            if paths:
                return paths[-1]
        why = f" ({'; '.join(found.left_out)})" if found.left_out else ""
        raise ValueError(
            f"{self.observer}: lmdyn found no {' or '.join(kinds)} with one vector per token{why}: set `{argument}` to "
            f"the path of such a module{', or set `spaces: [logits]`' if argument == 'hidden' else ''}"
        )

    def check(self, module: nn.Module, hidden: str | None, embedding: str | None) -> None:
        """Try the longest sentence.

        Raises:
            ValueError: if the module has no such site, or returns another shape there.
        """
        ids = self._longest(module)
        with observing(module), torch.no_grad(), self.opened(module, hidden, embedding) as forward:
            found = forward(ids)
        for name, tensor in found.items():
            if tensor.ndim != 3 or tensor.shape[:2] != ids.shape:
                path = f"set a `hidden` other than {hidden}" if name == "hidden" else "set `spaces: [hidden]`"
                raise ValueError(
                    f"{self.observer}: expected {name} as (batch, time, features) = ({len(ids)}, {ids.shape[1]}, …), "
                    f"got {tuple(tensor.shape)}: {path}"
                )

    @contextmanager
    def opened(
        self, module: nn.Module, hidden: str | None, embedding: str | None
    ) -> Iterator[Callable[[Tensor], dict[str, Tensor]]]:
        """Yield a function from rows of ids, which may be :data:`MEAN`, to the outputs by space.

        Raises:
            ValueError: for logits of an encoder-decoder alone, or paths that are not modules.
        """
        decodes = is_encoder_decoder(module)
        spaces = [space for space in self.spaces if space == "hidden" or not decodes]
        if not spaces:
            raise ValueError(
                f"{self.observer}: the logits of an encoder-decoder belong to the decoder's positions, not to the "
                "words that the encoder reads. Set `spaces: [hidden]` to observe the encoder"
            )
        absent: list[Tensor] = []
        time_first = False
        with ExitStack() as stack:
            if "hidden" in spaces:
                layer = resolve_sites(module, {"hidden": str(hidden)})["hidden"]
                time_first = isinstance(layer, nn.RNNBase) and not layer.batch_first
                seen = stack.enter_context(capture(module, {"hidden": str(hidden)}))
            table = resolve_sites(module, {"embedding": str(embedding)})["embedding"]
            counts = torch.from_numpy(self.pairs.tokens).to(device_of(module))
            ids = counts.nonzero()[:, 0]
            vectors: Tensor = table(ids[None])[0]
            # over the tokens of the words of all sentences
            mean = (counts[ids].double() / counts.sum()).to(vectors.dtype) @ vectors

            def replace(_: nn.Module, __: Any, output: Any) -> Any:
                if absent and isinstance(output, Tensor) and output.shape[:2] == absent[0].shape:
                    return torch.where(absent[0][..., None], mean.to(output.dtype), output)
                return None

            stack.callback(table.register_forward_hook(replace).remove)

            def forward(rows: Tensor) -> dict[str, Tensor]:
                absent[:] = [rows == MEAN]
                output = call_module(module, _batch(rows.clamp(min=0), decodes), forward=self.forward)
                found: dict[str, Tensor] = {}
                if "hidden" in spaces:
                    hidden = list(seen.activations.values())[-1]
                    found["hidden"] = hidden.transpose(0, 1) if time_first else hidden
                    seen.clear()
                if "logits" in spaces:
                    found["logits"] = logits_of(output)
                return found

            yield forward

    def _longest(self, module: nn.Module) -> Tensor:
        return self.pairs.batches[0].ids[:1].to(device_of(module))


def _batch(ids: Tensor, decodes: bool) -> dict[str, Tensor]:
    """Return a batch; a decoder gets one token, since its output is not read."""
    more = {"decoder_input_ids": ids[:, :1]} if decodes else {"labels": ids}
    # of some models, all logits are returned only with labels
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **more}
