"""Structure of a transformer: its encoder, its layers, their attention."""

import re
from itertools import pairwise
from typing import Any, cast

from torch import nn
from torch.nn import Module

from lmdyn.analysis.inspection.activations import paths_of, plain_path
from lmdyn.analysis.inspection.blocks import static_blocks

__all__ = [
    "attention_sites",
    "check_positions",
    "encoder_of",
    "is_encoder_decoder",
    "layer_sites",
]

_LAYER = re.compile(r"(?:.+\.)?(?:layer|layers|h|albert_layers|block|blocks)\.(\d+)")
_ATTENTION = ("attention.self", "attention", "self_attn", "attn", "self_attention", "layer.0.SelfAttention")


def encoder_of(module: Module) -> Module:
    """Return the transformer without heads: ``module.encoder`` if it is a model of transformers, else the only one.

    If a model contains one other, as OPT contains its decoder, the result is the outer one; for an encoder-decoder,
    its encoder.

    Args:
        module: any module that contains a model of ``transformers`` (recognised by ``config`` and ``base_model``).

    Raises:
        ValueError: if there is none, or if there are several and the module does not name one by an attribute
            ``encoder``.

    Example:
        >>> from transformers import BertConfig, BertForMaskedLM
        >>> config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
        >>> type(encoder_of(nn.ModuleDict({"lm": BertForMaskedLM(config)}))).__name__
        'BertModel'
    """
    own = getattr(module, "encoder", None)
    if isinstance(own, Module) and _is_pretrained(own):
        return cast(Module, cast(Any, own).base_model)
    found = {id(base): base for base in (_base_of(m) for m in module.modules() if _is_pretrained(m))}
    if len(found) > 1:
        by_size = sorted(found.values(), key=lambda m: -sum(1 for _ in m.modules()))
        whole = by_size[0]
        if all(any(m is inner for m in outer.modules()) for outer, inner in pairwise(by_size)):
            return whole
        encoder = getattr(whole, "encoder", None)
        inside = {id(m) for m in whole.modules()}
        if cast(Any, whole).config.is_encoder_decoder and id(encoder) in found and inside.issuperset(found):
            return found[id(encoder)]
    if len(found) != 1:
        names = ", ".join(type(m).__name__ for m in found.values()) or "none"
        raise ValueError(
            f"{type(module).__name__} contains {len(found)} models of transformers ({names}): expected one, or an "
            "encoder-decoder model with an attribute `encoder`"
        )
    return next(iter(found.values()))


def is_encoder_decoder(module: Module) -> bool:
    """Return whether the module, or one within it, is an encoder-decoder of transformers, by its configuration.

    Example:
        >>> is_encoder_decoder(nn.Linear(2, 2))
        False
    """
    return any(getattr(getattr(m, "config", None), "is_encoder_decoder", False) for m in module.modules())


def _base_of(module: Module) -> Module:
    """Return the model at the end of ``base_model``, which adapters (PEFT) may wrap in several steps."""
    while (base := cast(Module, cast(Any, module).base_model)) is not module:
        module = base
        if not _is_pretrained(base):
            break
    return module


def _is_pretrained(module: Module) -> bool:
    return hasattr(module, "base_model") and hasattr(module, "config")


def check_positions(module: Module, length: int, what: str, remedy: str, whose: str = "") -> None:
    """Raise an error for rows of more tokens than the encoder's positions, ``max_position_embeddings``.

    An encoder whose configuration has no such number reads rows of any length. A model that is not of transformers
    declares it by ``config.block_size``, as nanoGPT does.

    Args:
        module: see :func:`encoder_of`; a module without a model of transformers is used itself.
        length: number of tokens of the longest row.
        what: description of these rows, in the plural.
        remedy: how to shorten them.
        whose: name of the reader of these rows.

    Raises:
        ValueError: if the rows are too long; for several models of transformers, as in :func:`encoder_of`.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
        >>> model = BertModel(BertConfig(**sizes, max_position_embeddings=16))
        >>> check_positions(model, 20, "sentences", "lower sequence_length")
        Traceback (most recent call last):
        ValueError: expected sentences of at most 16 tokens, the positions of BertModel, got 20: lower sequence_length
    """
    pretrained = any(map(_is_pretrained, module.modules()))
    encoder = encoder_of(module) if pretrained else module
    config = getattr(encoder, "config", None)
    most = next((n for n in (getattr(config, name, None) for name in _POSITIONS) if n is not None), None)
    if most is not None and length > most:
        raise ValueError(
            f"{whose}{': ' if whose else ''}expected {what} of at most {most} tokens, the positions of "
            f"{type(encoder).__name__}, got {length}: {remedy}"
        )


_POSITIONS = ("max_position_embeddings", "block_size")


def _encoder(module: Module) -> Module:
    """Return the encoder, or the module itself if it is not of transformers and has its own blocks."""
    own = static_blocks(module) and not any(map(_is_pretrained, module.modules()))
    return module if own else encoder_of(module)


def layer_sites(module: Module) -> dict[str, str]:
    """Return sites of all layers of :func:`encoder_of`: ``layer1`` … ``layerN``, or ``layer`` for one shared module.

    A shared layer (ALBERT) runs once for each layer and gives ``layer@0`` … ``layer@{N-1}``. Layers without a usual
    name, and those of a model that is not of transformers, are the children of its only list of blocks.

    Returns:
        Module path by display name, for the ``sites`` of observers.

    Raises:
        ValueError: if there is no model of transformers and no list of blocks, if layers are not found, or if there
            are several lists of them.

    Example:
        >>> from transformers import AlbertConfig, AlbertModel, BertConfig, BertModel
        >>> sizes = dict(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=1)
        >>> layer_sites(BertModel(BertConfig(**sizes)))
        {'layer1': 'encoder.layer.0', 'layer2': 'encoder.layer.1'}
        >>> layer_sites(AlbertModel(AlbertConfig(**sizes)))
        {'layer': 'encoder.albert_layer_groups.0.albert_layers.0'}
    """
    encoder = _encoder(module)
    prefix = next(plain_path(name) for name, m in module.named_modules() if m is encoder)
    prefix = f"{prefix}." if prefix else ""
    paths = [
        f"{prefix}{name}"
        for name, m in paths_of(encoder).items()
        if _LAYER.fullmatch(name) and not isinstance(m, (nn.ModuleList, nn.ModuleDict))
    ]
    paths = [p for p in paths if not any(p != q and p.startswith(f"{q}.") for q in paths)]
    if not paths:
        lists = static_blocks(encoder)
        if len(lists) != 1:
            raise ValueError(
                f"lmdyn did not find the layers of {type(encoder).__name__} (lists of blocks at "
                f"{', '.join(p[0] for p in lists) or 'no path'}): name the layers, `sites: {{layer1: path.of.module}}`"
            )
        paths = [f"{prefix}{path}" for path in lists[0]]
    if len(paths) == 1 and getattr(getattr(encoder, "config", None), "num_hidden_layers", 1) > 1:
        return {"layer": paths[0]}
    return {f"layer{i}": path for i, path in enumerate(paths, start=1)}


def attention_sites(module: Module) -> dict[str, str]:
    """Return the attention modules of all :func:`layer_sites` that return attention weights, under the same names.

    Raises:
        ValueError: as in :func:`layer_sites`; also if a layer has no attention module.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
        >>> attention_sites(BertModel(BertConfig(**sizes)))
        {'layer1': 'encoder.layer.0.attention.self'}
    """
    modules = paths_of(module)
    sites = {}
    for name, path in layer_sites(module).items():
        found = next((f"{path}.{a}" for a in _ATTENTION if f"{path}.{a}" in modules), None)
        if found is None:
            raise ValueError(f"layer {path!r} has no attention module: name attention sites yourself")
        sites[name] = found
    return sites
