"""Hidden units that can be exchanged without changing what a network computes."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import observing
from lmdyn.analysis.inspection.forward import call_module, device_of, logits_of
from lmdyn.analysis.parameters.exchangeable_units import UnitAxis, UnitGroup
from lmdyn.analysis.parameters.head_matrices import find_heads
from lmdyn.analysis.parameters.transformer_units import transformer_units

__all__ = ["unit_groups"]


def unit_groups(module: nn.Module, run: Callable[[], Tensor] | None = None) -> tuple[UnitGroup, ...]:
    """Return the exchangeable units of a recurrent network or of a transformer.

    A recurrent network is an embedding, one or more ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN`` in the order of the module,
    and a linear output layer, which may use the embedding's weights. Its units are the entries of its word vectors and
    the units of each layer.

    A transformer is any module whose attention :func:`~lmdyn.analysis.find_heads` reads. Its units are found in a
    forward pass, by what feeds what: the entries of the residual stream (one permutation for all layers), the hidden
    units of each MLP (those of gates with them), entries of separate word vectors (ALBERT), of a head's transform or of
    a pooler, and the attention heads of each layer. A head stays in one piece, since rotary positions and the norms of
    queries and keys tell its entries apart. With grouped queries, whole groups are permuted, and the heads within one
    stay in order; a model with one key head for all queries has no exchangeable heads.

    What is found is necessary, not sufficient: constants that tell units apart, such as sinusoidal positions or the
    slopes of ALiBi, are not in the graph of gradients. :func:`~lmdyn.analysis.exchange_error` checks it.

    Args:
        module: the module.
        run: for a transformer, a forward pass that returns its logits; by default that of the tokens 0 to 7.

    Raises:
        ValueError: for any other module, among them bidirectional recurrent layers and projected states; for a
            transformer with operations or parameters whose effect on units is not known.

    Reference: Ainsworth, Hayase & Srinivasa 2023, "Git Re-Basin", section 2 (permutations of hidden units).

    Example:
        >>> network = nn.ModuleDict({"in": nn.Embedding(9, 2), "rnn": nn.LSTM(2, 3), "out": nn.Linear(3, 9)})
        >>> [(group.name, group.size, len(group.axes)) for group in unit_groups(network)]
        [('word vectors', 2, 2), ('layer 1', 3, 6)]
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=1, n_head=2))
        >>> for group in unit_groups(gpt2):
        ...     print(group.name, group.size, len(group.axes))
        residual stream 8 14
        heads of transformer.h.0.attn 2 7
        units of transformer.h.0.mlp.c_fc 32 3
    """
    if any(isinstance(m, nn.RNNBase) for m in module.modules()):
        return _recurrent_units(module)
    with observing(module):
        heads = find_heads(module)
        if heads.layouts:
            return transformer_units(module, run or (lambda: _logits(module)))
    why = "".join(f"; {path!r} has no known heads: {why}" for path, why in list(heads.left_out.items())[:1])
    raise ValueError(
        "expected an embedding, recurrent layers and one linear output layer, or a transformer with attention heads "
        f"that lmdyn knows, got neither in {type(module).__name__}{why}"
    )


def _logits(module: nn.Module) -> Tensor:
    """Return the logits for a few tokens."""
    rows = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    ids = torch.arange(8, device=device_of(module))[None] % max(rows, default=1)
    return logits_of(call_module(module, {"input_ids": ids}))


def _recurrent_units(module: nn.Module) -> tuple[UnitGroup, ...]:
    names = {id(p): name for name, p in module.named_parameters()}  # the first name of a tied one
    embeddings = [m for m in module.modules() if isinstance(m, nn.Embedding)]
    layers = list(_layers(module))
    outputs = [m for m in module.modules() if isinstance(m, nn.Linear)]
    if len(embeddings) != 1 or not layers or len(outputs) != 1:
        raise ValueError(
            f"expected one embedding, recurrent layers and one linear output layer in {type(module).__name__}, got "
            f"embeddings: {len(embeddings)}, recurrent layers: {len(layers)}, linear layers: {len(outputs)}"
        )
    (embedding,), (output,) = embeddings, outputs
    sizes = [embedding.embedding_dim, *(size for _, _, size in layers)]
    axes: list[list[UnitAxis]] = [[UnitAxis(names[id(embedding.weight)], 1)]]
    for (weights, gates, _), before in zip(layers, range(len(layers)), strict=True):
        into = weights["ih"]
        if into.shape[1] != sizes[before]:
            raise ValueError(
                f"expected layers in sequence, got a layer of {into.shape[1]} inputs after {sizes[before]} outputs"
            )
        axes[before].append(UnitAxis(names[id(into)], 1))
        own = [UnitAxis(names[id(w)], 0, gates) for w in weights.values()]
        axes.append([*own, UnitAxis(names[id(weights["hh"])], 1)])
    if output.in_features != sizes[-1]:
        raise ValueError(f"expected an output layer of {sizes[-1]} inputs, got {output.in_features}")
    axes[-1].append(UnitAxis(names[id(output.weight)], 1))
    labels = ["word vectors", *(f"layer {i}" for i in range(1, len(layers) + 1))]
    if output.weight is embedding.weight:
        axes[0] += axes.pop()[:-1]
        labels[0] += f" and {labels.pop()}"
    found = zip(labels, sizes, axes, strict=False)
    return tuple(UnitGroup(name, size, tuple(of)) for name, size, of in found)


def _layers(module: nn.Module) -> Iterator[tuple[dict[str, Tensor], int, int]]:
    """Yield weights by kind, number of gates and number of units of each recurrent layer."""
    for m in module.modules():
        if not isinstance(m, nn.RNNBase):
            continue
        if m.bidirectional or m.proj_size:
            raise ValueError("got a bidirectional or projected layer: set bidirectional=False, proj_size=0")
        kinds = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if m.bias else ()))
        for number in range(m.num_layers):
            found = {kind.replace("weight_", ""): getattr(m, f"{kind}_l{number}") for kind in kinds}
            yield found, len(found["hh"]) // m.hidden_size, m.hidden_size
