"""LSTM layers that can be observed one by one, and the recurrent state that is carried between batches."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

State = tuple[tuple[Tensor, Tensor], ...]
"""One pair (h, c) for each layer, each of shape (1, batch, hidden)."""


@dataclass(frozen=True)
class RecurrentOutput:
    """Output of a recurrent model.

    Attributes:
        logits: unnormalised log-probabilities, (batch, time, classes).
        state: the state after the last token, a pair (h, c) for each layer, each (1, batch, hidden).
    """

    logits: Float[Tensor, "batch time classes"]
    state: State


def carry_state(state: State | None, continues: Bool[Tensor, " batch"]) -> State | None:
    """Return the state in which the next batch starts: kept in rows that continue, zero in the others, detached.

    Args:
        state: the state after the previous batch, or None if there was none.
        continues: whether each row of the next batch continues the same row of the previous one.

    Returns:
        A state without a graph that shares no memory with ``state``; None (zeros) if nothing is carried.

    Raises:
        ValueError: if rows continue, but the previous batch had another number of rows.

    Example:
        >>> import torch
        >>> ones = torch.ones(1, 2, 3)
        >>> ((h, c),) = carry_state(((ones, ones),), torch.tensor([True, False]))
        >>> h.sum(-1)
        tensor([[3., 0.]])
    """
    if state is None:
        return None
    rows = state[0][0].shape[1]
    if rows != len(continues):
        if continues.any():
            raise ValueError(
                f"expected a batch of {rows} rows, like the previous batch, got {len(continues)}. In a batch of "
                "another size, set `continues` to False in every row"
            )
        return None
    fresh = ~continues[None, :, None]
    return tuple((h.detach().masked_fill(fresh, 0.0), c.detach().masked_fill(fresh, 0.0)) for h, c in state)


def run_lstm(
    lstm: nn.Module, inputs: Tensor, state: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run an LSTM, in mixed precision also on processors without half precision.

    oneDNN has LSTMs in half precision only for processors with the instructions for it, and PyTorch raises an error on
    others: on these, the recurrence runs in float32.

    Args:
        lstm: LSTM of PyTorch.
        inputs: input of the LSTM.
        state: initial (h, c); zeros by default.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     bool(run_lstm(nn.LSTM(3, 4), torch.zeros(1, 2, 3))[0].isfinite().all())
        True
    """
    if inputs.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        half = torch.get_autocast_dtype("cpu") == torch.float16
        kernels = torch.ops.mkldnn
        if not (kernels._is_mkldnn_fp16_supported() if half else kernels._is_mkldnn_bf16_supported()):
            with torch.autocast("cpu", enabled=False):
                begin = None if state is None else (state[0].float(), state[1].float())
                return lstm(inputs.float(), begin)  # type: ignore[no-any-return]
    return lstm(inputs, state)  # type: ignore[no-any-return]


class StackedLSTM(nn.Module):
    """A stack of LSTM layers, each a separate module, so that each can be observed.

    With the default initialisation, it computes the same as ``nn.LSTM(num_layers=...)``; ``layers[i]`` is a
    single-layer ``nn.LSTM`` with ``batch_first=True``. Its equations are those of Hochreiter & Schmidhuber 1997 with
    forget gates: i, f, o = σ(W x + b + U h + b'), g = tanh(...), c' = f c + i g, h' = o tanh(c').

    Args:
        input_size: number of dimensions of the input.
        hidden_size: number of dimensions of each layer.
        num_layers: number of layers.
        dropout: probability of zeroing an entry between two layers.

    Example:
        >>> import torch
        >>> output, state = StackedLSTM(3, 4, num_layers=2)(torch.zeros(5, 7, 3))
        >>> output.shape, len(state), state[0][0].shape
        (torch.Size([5, 7, 4]), 2, torch.Size([1, 5, 4]))
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        sizes = [input_size] + [hidden_size] * num_layers
        self.layers = nn.ModuleList(
            nn.LSTM(size, hidden_size, batch_first=True) for size in sizes[:num_layers]
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, inputs: Float[Tensor, "batch time inputs"], state: State | None = None
    ) -> tuple[Float[Tensor, "batch time hidden"], State]:
        """Compute the last layer's output and the state of every layer after the last token."""
        after: list[tuple[Tensor, Tensor]] = []
        hidden = inputs
        for layer, before in zip(self.layers, state or [None] * len(self.layers), strict=True):
            hidden, last = run_lstm(layer, self.dropout(hidden) if after else hidden, before)
            after.append(last)
        return hidden, tuple(after)
