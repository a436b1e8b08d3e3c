"""Finding one's way in a transformer: its encoder, its layers, their attention."""

import re
from typing import Any, cast

from torch import nn

__all__ = ["attention_sites", "check_positions", "encoder_of", "layer_number", "layer_sites"]

_LAYER = re.compile(r"(?:.+\.)?(?:layer|layers|h|albert_layers)\.(\d+)")
_ATTENTION = ("attention.self", "attention", "self_attn", "attn", "self_attention")


def encoder_of(module: nn.Module) -> nn.Module:
    """The transformer without its heads: ``module.encoder`` where it is one of transformers' models, else the only one.

    Args:
        module: any module that holds a model of ``transformers`` (told by ``config`` and ``base_model``).

    Raises:
        ValueError: there is none, or there are several and the module does not say which by an attribute ``encoder``.

    Example:
        >>> from transformers import BertConfig, BertForMaskedLM
        >>> config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
        >>> type(encoder_of(nn.ModuleDict({"lm": BertForMaskedLM(config)}))).__name__
        'BertModel'
    """
    own = getattr(module, "encoder", None)
    if isinstance(own, nn.Module) and _is_pretrained(own):
        return cast(nn.Module, cast(Any, own).base_model)
    found: dict[int, nn.Module] = {}
    for m in module.modules():
        if _is_pretrained(m):
            base = cast(nn.Module, cast(Any, m).base_model)
            found[id(base)] = base
    if len(found) != 1:
        names = [type(m).__name__ for m in found.values()]
        raise ValueError(
            f"{type(module).__name__} holds {len(found)} models of transformers {names}: expected one, or an attribute "
            "`encoder` that names it"
        )
    return next(iter(found.values()))


def _is_pretrained(module: nn.Module) -> bool:
    return hasattr(module, "base_model") and hasattr(module, "config")


def check_positions(module: nn.Module, length: int, what: str, remedy: str, whose: str = "") -> None:
    """Refuse rows of more tokens than the encoder has positions for, ``max_position_embeddings`` of its configuration.

    An encoder whose configuration says no number reads rows of any length.

    Args:
        module: see :func:`encoder_of`.
        length: tokens of the longest row.
        what: what these rows are, in the plural.
        remedy: how to have shorter ones.
        whose: who reads them.

    Raises:
        ValueError: the rows are too long, or as :func:`encoder_of`.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
        >>> model = BertModel(BertConfig(**sizes, max_position_embeddings=16))
        >>> check_positions(model, 20, "sentences", "lower sequence_length")
        Traceback (most recent call last):
        ValueError: expected sentences of at most 16 tokens, the positions of BertModel, got 20: lower sequence_length
    """
    encoder = encoder_of(module)
    most = getattr(cast(Any, encoder).config, "max_position_embeddings", None)
    if most is not None and length > most:
        raise ValueError(
            f"{whose}{': ' if whose else ''}expected {what} of at most {most} tokens, the positions of "
            f"{type(encoder).__name__}, got {length}: {remedy}"
        )


def layer_sites(module: nn.Module) -> dict[str, str]:
    """Sites of all layers of :func:`encoder_of`: ``layer1`` … ``layerN``, or ``layer`` where they share one module.

    A shared layer (ALBERT) fires once for each layer and gives ``layer@0`` … ``layer@{N-1}``.

    Returns:
        Display name to module path, as observers take it.

    Raises:
        ValueError: no model of transformers, or one whose layers are not found.

    Example:
        >>> from transformers import AlbertConfig, AlbertModel, BertConfig, BertModel
        >>> sizes = dict(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=1)
        >>> layer_sites(BertModel(BertConfig(**sizes)))
        {'layer1': 'encoder.layer.0', 'layer2': 'encoder.layer.1'}
        >>> layer_sites(AlbertModel(AlbertConfig(**sizes)))
        {'layer': 'encoder.albert_layer_groups.0.albert_layers.0'}
    """
    encoder = encoder_of(module)
    prefix = next(name for name, m in module.named_modules() if m is encoder)
    prefix = f"{prefix}." if prefix else ""
    paths = [f"{prefix}{name}" for name, _ in encoder.named_modules() if _LAYER.fullmatch(name)]
    paths = [p for p in paths if not any(p != q and p.startswith(f"{q}.") for q in paths)]
    if not paths:
        raise ValueError(
            f"the layers of {type(encoder).__name__} are not found: name them by `sites`, display name to module path"
        )
    if len(paths) == 1 and getattr(cast(Any, encoder).config, "num_hidden_layers", 1) > 1:
        return {"layer": paths[0]}
    return {f"layer{i}": path for i, path in enumerate(paths, start=1)}


def attention_sites(module: nn.Module) -> dict[str, str]:
    """The attention modules of all :func:`layer_sites`, those that return attention weights, under the same names.

    Raises:
        ValueError: as :func:`layer_sites`; a layer without attention module.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
        >>> attention_sites(BertModel(BertConfig(**sizes)))
        {'layer1': 'encoder.layer.0.attention.self'}
    """
    modules = dict(module.named_modules())
    sites = {}
    for name, path in layer_sites(module).items():
        found = next((f"{path}.{a}" for a in _ATTENTION if f"{path}.{a}" in modules), None)
        if found is None:
            raise ValueError(f"layer {path!r} has no attention module: name it by `sites`")
        sites[name] = found
    return sites


def layer_number(site: str) -> int:
    """The number, from 1, of a layer by the name under which it was captured.

    Raises:
        ValueError: a name that :func:`layer_sites` does not give.

    Example:
        >>> layer_number("layer3"), layer_number("layer@2")
        (3, 3)
    """
    match = re.fullmatch(r"layer(?:(\d+)|@(\d+))?", site)
    if match is None:
        raise ValueError(f"{site!r} is none of layer1, layer2, … or layer@0, layer@1, …")
    if match[1]:
        return int(match[1])
    return int(match[2]) + 1 if match[2] else 1
