"""The direct path from tokens to logits of a causal model: embedding, output layer, and linear factors of them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.attention.copying import vocabulary_product
from lmdyn.analysis.inspection.activations import observing, paths_of
from lmdyn.analysis.inspection.forward import Forward, call_module
from lmdyn.analysis.inspection.forward_trace import trace_forward
from lmdyn.analysis.inspection.sites import find_sites
from lmdyn.analysis.parameters.linear_weight import is_linear, linear_shape, linear_weight, whole_tensor

__all__ = ["find_token_path"]

_FACTORS = ("project_in", "project_out")
"""Linear layers without a nonlinearity between token vectors and the first block, and before the output layer (OPT)."""


def find_token_path(
    module: Module, batch: Mapping[str, Any], width: int, forward: Forward | None = None
) -> Callable[[], Float[Tensor, "width width"]] | str:
    """Find the embedding and the output layer of a model in forward passes, or say why there is no such linear path.

    Token vectors and output vectors have the width of the blocks, or a factor ``project_in``, ``project_out`` (OPT)
    brings them to it. Norm layers are passed over. No path is assumed if another linear layer runs outside of the
    blocks, such as the transformed output of BERT, or ALBERT's factorised embedding.

    Args:
        module: the model.
        batch: an example batch with ``input_ids``.
        width: width of the blocks: what the heads read and write.
        forward: how the module is called.

    Returns:
        A function that computes W_E W_U, the sum over tokens of the products of their input and output vectors,
        (width, width) float64, which every rank must call if the weights are sharded; or a sentence.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=1, n_head=2))
        >>> product = find_token_path(model, {"input_ids": torch.tensor([[1, 2, 3]])}, 8)
        >>> product().shape
        torch.Size([8, 8])
    """
    found = find_sites(module, batch, forward)
    modules = paths_of(module)
    paths = {
        kind: [p for n, p in found.sites.items() if found.kinds[n] == kind]
        for kind in ("embedding", "logits")
    }
    for kind, what in (("embedding", "token embedding"), ("logits", "output layer")):
        if len(paths[kind]) != 1:
            return f"lmdyn found {len(paths[kind])} modules for the {what}, expected 1"
    first = modules[paths["embedding"][0]]
    last = modules[paths["logits"][0]]
    embedding: Any = first
    table = getattr(first, "weight", None)
    if not isinstance(table, Tensor) or table.ndim != 2 or not is_linear(last):
        return "the token embedding is not a table of vectors, or the output layer is not linear"
    blocks = [p for n, p in found.sites.items() if found.kinds[n] == "block"]
    known = [*blocks, paths["logits"][0]]
    with observing(module), torch.no_grad():
        trace = trace_forward(module, lambda: call_module(module, batch, forward=forward), {})
    linear = dict.fromkeys(trace.path_of[id(call.module)] for call in trace.calls if is_linear(call.module))
    outside = [path for path in linear if not any(path == p or path.startswith(f"{p}.") for p in known)]
    sizes = (int(table.shape[1]), linear_shape(last)[1])
    wanted = ((width, sizes[0]), (sizes[1], width))
    factors: list[Module | None] = [None, None]
    for i, (name, size, shape) in enumerate(zip(_FACTORS, sizes, wanted, strict=True)):
        own = [p for p in outside if p.rpartition(".")[2] == name and linear_shape(modules[p]) == shape]
        if len(own) == 1:
            factors[i] = modules[own[0]]
            outside.remove(own[0])
        elif size != width:
            return f"token vectors have {size} dimensions, but the blocks have {width}"
    if outside:
        return f"the linear layer {outside[0]!r} runs between the blocks and the tokens"

    def product() -> Tensor:
        # as it is now: it may have been replaced
        total = vocabulary_product(whole_tensor(embedding.weight), linear_weight(last))
        if factors[0] is not None:
            total = linear_weight(factors[0]).to(total) @ total
        return total if factors[1] is None else total @ linear_weight(factors[1]).to(total)

    return product
