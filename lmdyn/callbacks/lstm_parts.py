"""The parts of a recurrent language model, by their paths in the module."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from lmdyn.analysis.lstm import lstm_layers

__all__ = ["LSTMParts"]


@dataclass(frozen=True)
class LSTMParts:
    """Where a module has its word vectors, its LSTM and its decoder.

    Attributes:
        embedding: path of the module that turns ids to word vectors.
        lstm: path of the ``nn.LSTM`` or stack of LSTMs.
        decoder: path of the linear layer to logits; None where none is needed.
    """

    embedding: str = "embedding"
    lstm: str = "lstm"
    decoder: str | None = "decoder"

    def of(self, module: nn.Module, observer: str) -> tuple[nn.Module, nn.Module, nn.Linear | None]:
        """The parts of a module, checked.

        Raises:
            ValueError: a part that is missing, an LSTM that is none, a decoder that is not linear; for ``observer``.
        """
        found: dict[str, Any] = {"decoder": None}
        for name, path in vars(self).items():
            if path is None:
                continue
            try:
                found[name] = module.get_submodule(path)
            except AttributeError as error:
                raise ValueError(
                    f"{observer}: the module has no {path!r}: set `{name}` to the path of its {name} "
                    f"({', '.join(n for n, _ in module.named_children())})"
                ) from error
        try:
            lstm_layers(found["lstm"])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{observer}: {self.lstm!r}: {error}") from error
        if not isinstance(found["decoder"], nn.Linear | None):
            raise ValueError(
                f"{observer}: {self.decoder!r} is a {type(found['decoder']).__name__}: expected a linear decoder"
            )
        return found["embedding"], found["lstm"], found["decoder"]
