"""An encoder with equal token vectors: the map of a single token, and whether tokens stay together."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.orbits.lyapunov import check_windows, derivative
from lmdyn.analysis.orbits.trajectories import of_states, state_norm

__all__ = ["SynchronizedMap", "synchronized_map", "transverse_exponents"]

_ALBERT = (
    "attention.value",
    "attention.dense",
    "attention.LayerNorm",
    "ffn",
    "activation",
    "ffn_output",
    "full_layer_layer_norm",
)


class SynchronizedMap:
    """The map of one token if all tokens are equal: attention is then uniform, and returns the value of each token.

    x ↦ LN₂(y + FFN(y)) with y = LN₁(x + x·W + b), where W is the product of the value and the output matrix. It
    requires N times less work than the full map of N tokens, and even less because there are no queries, keys or
    scores.

    Created by :func:`synchronized_map`.

    Example:
        >>> from transformers import AlbertConfig
        >>> from transformers.models.albert.modeling_albert import AlbertLayer
        >>> sizes = dict(hidden_size=8, intermediate_size=16, num_attention_heads=2)
        >>> config = AlbertConfig(**sizes, attn_implementation="sdpa")
        >>> layer = AlbertLayer(config).double().eval()
        >>> x = torch.randn(5, 8, dtype=torch.float64)
        >>> tokens = x[:, None].expand(-1, 7, -1)
        >>> torch.allclose(synchronized_map(layer)(x)[:, None], layer(tokens), rtol=0, atol=1e-12)
        True
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = [_albert_layer(layer) for layer in layers]

    def __call__(self, x: Float[Tensor, "batch d"]) -> Float[Tensor, "batch d"]:
        """Return the token vector one step later."""
        for layer in self._layers:
            x = layer(x)
        return x


def _albert_layer(layer: Any) -> Callable[[Tensor], Tensor]:
    value, dense = layer.attention.value, layer.attention.dense
    outer = dense.weight.detach().double()
    # in float64: fewer roundings than one product after the other
    weight = (outer @ value.weight.detach().double()).to(dense.weight.dtype)
    bias = (outer @ value.bias.detach().double() + dense.bias.detach().double()).to(dense.weight.dtype)

    def step(x: Tensor) -> Tensor:
        y = layer.attention.LayerNorm(x + F.linear(x, weight, bias))
        return cast(Tensor, layer.full_layer_layer_norm(y + layer.ffn_output(layer.activation(layer.ffn(y)))))

    return step


def synchronized_map(layer: nn.Module | EncoderMap) -> Callable[[Tensor], Tensor]:
    """Return the map of one token vector, to which an encoder reduces if all tokens are equal.

    Args:
        layer: a layer such as ``AlbertLayer`` of transformers in eval mode, or the map of an encoder with shared
            layers. For shared layers other than ALBERT's, the result is the map of a row with one token, whose
            attention to itself is uniform.

    Returns:
        Function of (batch, d) to (batch, d), in the layer's precision.

    Raises:
        ValueError: if the layers differ; if the step depends on the positions of tokens, as with causal attention or
            positions at each step, or on the text itself; if it does not map equal tokens to equal tokens.

    Reference: Inoue et al. 2022, section II.A: after synchronization all attention probabilities are identical.
    """
    if not isinstance(layer, EncoderMap):
        if not _is_albert(layer):
            raise ValueError(
                f"expected an ALBERT layer, got {type(layer).__name__}: for another model, pass its EncoderMap"
            )
        return SynchronizedMap([layer])
    full = layer
    if full.masked:
        raise ValueError("with masks, attention is not uniform: create the EncoderMap with masked=False")
    if not full.shared:
        raise ValueError(f"the {len(full.maps)} layers differ: expected a model that repeats its layers")
    if full.injected:
        raise ValueError("each step depends on the text, so this model has no reduced map, only the full map")

    def reduced(x: Tensor) -> Tensor:
        return full(x[:, None])[:, 0]

    found = SynchronizedMap(full.layers) if all(map(_is_albert, full.layers)) else reduced
    _check(full, found)
    return found


def _is_albert(layer: nn.Module) -> bool:
    parts = dict(layer.named_modules())
    return all(name in parts for name in _ALBERT)


@torch.no_grad()
def _check(full: EncoderMap, reduced: Callable[[Tensor], Tensor]) -> None:
    """Compare the two maps on three equal tokens, and the full map on three tokens in a different order."""
    draw = torch.Generator().manual_seed(0)
    like = next(full.layers[0].parameters())
    x = torch.randn(1, full.width, generator=draw).to(like)
    there = reduced(x)[:, None]
    expected = full(x[:, None].expand(-1, 3, -1))
    if not (error := _apart(there, expected)) < _EQUAL:
        raise ValueError(
            f"equal tokens move unlike one token (by {error:.1e}), so this model has no reduced map, only the full map"
        )
    tokens = torch.randn(1, 3, full.width, generator=draw).to(like)
    order = torch.tensor([2, 0, 1], device=like.device)
    after = full(tokens)
    if (error := _apart(full(tokens[:, order]), after[:, order])) < _EQUAL:
        return
    later = torch.cat([tokens[:, :2], -tokens[:, 2:]], 1)
    causal = _apart(full(later)[:, :2], after[:, :2]) < _EQUAL
    why = "attention is causal" if causal else f"positions enter at each step (by {error:.1e})"
    raise ValueError(f"{why}, so this model has no reduced map, only the full map")


_EQUAL = 1e-3


def _apart(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@of_states
def transverse_exponents(
    f: Callable[[Tensor], Tensor], x: Float[Tensor, "batch d"], tau: int, steps: int, seed: int = 0
) -> Float[Tensor, "windows batch"]:
    """Compute the rate λ⊥ at which token vectors separate or approach along a synchronized trajectory, per window.

    If it is below 0, synchronization is stable. Perturbations that do not change the mean token do not change uniform
    attention to first order (the weights change, but all values are equal), so two tokens with opposite perturbations
    represent any number of tokens.

    Args:
        f: the full map; it must support forward-mode differentiation (``EncoderMap(…, attention="eager")``).
        x: (batch, d) token vectors of synchronized states.
        tau: number of steps of a window.
        steps: total number of steps, a multiple of ``tau``.
        seed: seed of the first perturbation.

    Returns:
        Tensor of shape (windows, batch), float64, in nats per step; −∞ if differences vanish entirely, NaN from the
        window on in which the state is not finite.

    Raises:
        ValueError: if ``tau`` does not divide ``steps``.

    Example:
        >>> transverse_exponents(lambda x: 0.9 * x + 0.1 * x.mean(1, keepdim=True), torch.ones(1, 4), 5, 10).exp()
        tensor([[0.9000],
                [0.9000]], dtype=torch.float64)
    """
    check_windows(tau, steps)
    u = torch.randn(x.shape[-1], generator=torch.Generator().manual_seed(seed)).to(x).expand_as(x)
    u = u / u.norm(dim=-1, keepdim=True)
    found = []
    for _ in range(steps // tau):
        growth = x.new_zeros(len(x), dtype=torch.float64)
        for _ in range(tau):
            pair = torch.stack([x, x], 1)
            after, tangent = derivative(f, pair, torch.stack([u, -u], 1))
            x, u = after[:, 0], (tangent[:, 0] - tangent[:, 1]) / 2  # rounding is not antisymmetric
            norm = state_norm(u)[:, None]
            growth = growth + norm[:, 0].log()
            u = torch.where(norm > 0, u / norm, u).to(x.dtype)
        # if the derivative does not depend on the state, it is still finite
        finite = state_norm(x).isfinite()
        found.append(torch.where(finite, growth / tau, torch.nan))
    return torch.stack(found)
