"""Parts of a recurrent language model by their paths in the module."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.forward import Forward, call_module, device_of, logits_of
from lmdyn.analysis.interdependence.lstm_layers import check_decoder, initial_state, lstm_layers, run_layers

__all__ = ["LSTMParts"]


@dataclass(frozen=True)
class LSTMParts:
    """Paths of the word vectors, the LSTM and the decoder of a module.

    Attributes:
        embedding: path of the module that maps ids to word vectors.
        lstm: path of the ``nn.LSTM`` or stack of LSTMs.
        decoder: path of the linear layer to logits; None if none is required.
    """

    embedding: str
    lstm: str
    decoder: str | None

    def of(self, module: nn.Module, observer: str) -> tuple[nn.Module, nn.Module, nn.Linear | None]:
        """Return the checked parts of a module; copies in float32 if it is in half precision.

        Raises:
            ValueError: for a missing part, a part that is no LSTM, or a decoder that is not linear or of another size;
                for ``observer``.
        """
        if not any(isinstance(m, nn.LSTM) for m in module.modules()):
            raise ValueError(f"{observer} requires an nn.LSTM, but {type(module).__name__} has none")
        found: dict[str, Any] = {}
        for name, path in vars(self).items():
            try:
                found[name] = None if path is None else module.get_submodule(path)
            except AttributeError as error:
                raise ValueError(
                    f"{observer}: the model has no module {path!r}: set `{name}` to the path of its {name} (modules: "
                    f"{', '.join(n for n, _ in module.named_children()) or 'none'})"
                ) from error
        try:
            layers = lstm_layers(found["lstm"])
            if self.decoder is not None:
                check_decoder(found["decoder"], layers)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{observer}: {error}") from error
        if layers[0].w_rec.dtype not in (torch.float32, torch.float64):
            found = {name: part and copy.deepcopy(part).float() for name, part in found.items()}
        return found["embedding"], found["lstm"], found["decoder"]

    @torch.no_grad()
    def checked(
        self, module: nn.Module, ids: Tensor, observer: str, forward: Forward | None
    ) -> tuple[nn.Module, nn.Module, nn.Linear | None]:
        """Return the parts as :meth:`of` does, of a module whose forward does no more; dropout is off.

        Raises:
            ValueError: if its logits for a row of ids differ; the message contains the difference.
        """
        embedding, lstm, decoder = self.of(module, observer)
        if decoder is None:
            return embedding, lstm, decoder
        ids = ids.to(device_of(module))
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        logits = logits_of(call_module(module, batch, forward=forward)).float()
        layers, words = lstm_layers(lstm), embedding(ids)
        hidden, _ = run_layers(layers, words, initial_state(layers, words, None))
        found = decoder(hidden[-1]).float()
        tolerance = 1e-3 if next(module.parameters()).dtype in (torch.float32, torch.float64) else 0.1
        scale = float(logits.nan_to_num(0, 0, 0).abs().max())
        if not torch.allclose(found, logits, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            raise ValueError(
                f"{observer}: the module's logits differ from {self.decoder}({self.lstm}({self.embedding}(input_ids))) "
                f"by up to {float((found - logits).abs().max()):.2g}. lmdyn decomposes these three modules only: set "
                "`embedding`, `lstm` and `decoder` to the modules that `forward` uses, or remove other operations"
            )
        return embedding, lstm, decoder
