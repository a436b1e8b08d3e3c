"""Query, key, value and output matrices of attention heads, read from the weights of any usual attention module."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import paths_of, plain_path
from lmdyn.analysis.inspection.transformer import attention_sites
from lmdyn.analysis.parameters.linear_weight import (
    is_linear,
    linear_bias,
    linear_shape,
    linear_weight,
    whole_tensor,
)

__all__ = ["FoundHeads", "HeadLayout", "HeadMatrices", "find_heads", "head_matrices"]


@dataclass(frozen=True)
class HeadMatrices:
    """Matrices of the heads of an attention module.

    For inputs x, head h with g = ``query_group[h]`` has the unscaled scores (q_h x_i + b_q)·(k_g x_j + b_k), and with
    attention weights p_ij it adds o_h Σ_j p_ij (v_g x_j + b_v) to the module's output, whose bias is ``o_bias``.

    Attributes:
        q: queries, (heads, d_head, d_in).
        k: keys, (kv_heads, d_head, d_in); in cross attention, ``d_in`` is the width of the other text.
        v: values, (kv_heads, d_value, d_in); ``d_value`` is usually ``d_head``.
        o: outputs, (heads, d_out, d_value).
        query_group: for each head the row of ``k`` and ``v`` that it uses.
        q_bias, k_bias, v_bias: biases (heads or kv_heads, width of a head); None without.
        o_bias: bias of the module's output, (d_out,); None without.
        normed: whether queries and keys pass a norm before their product, so that the scores are not bilinear.
            Position encodings (rotary, relative, ALiBi) are not part of the matrices either.
    """

    q: Float[Tensor, "heads d_head d_in"]
    k: Float[Tensor, "kv_heads d_head d_key_in"]
    v: Float[Tensor, "kv_heads d_value d_value_in"]
    o: Float[Tensor, "heads d_out d_value"]
    query_group: Int[Tensor, " heads"]
    q_bias: Float[Tensor, "heads d_head"] | None = None
    k_bias: Float[Tensor, "kv_heads d_head"] | None = None
    v_bias: Float[Tensor, "kv_heads d_value"] | None = None
    o_bias: Float[Tensor, " d_out"] | None = None
    normed: bool = False


@dataclass(frozen=True)
class HeadLayout:
    """Where the matrices of an attention module are.

    Attributes:
        path: path of the module that has the query projection.
        heads: number of heads.
        kv_heads: number of key and value heads.
        read: function that reads the matrices; every rank must call it if the weights are sharded.
        output: path of the output projection, whose input is the heads' outputs one after the other.
        width: width of a head's queries and keys.
        projections: paths of the projections of queries, keys and values, or of the one for all three; empty for
            ``nn.MultiheadAttention``.
        by_head: whether one projection for all three has them head by head, not one after the other.
    """

    path: str
    heads: int
    kv_heads: int
    read: Callable[[], HeadMatrices]
    output: str
    width: int
    projections: tuple[str, ...] = ()
    by_head: bool = False


@dataclass(frozen=True)
class FoundHeads:
    """Result of :func:`find_heads`.

    Attributes:
        layouts: layout by name of the site.
        left_out: for each other attention module by its path, why its matrices are not read.
    """

    layouts: Mapping[str, HeadLayout]
    left_out: Mapping[str, str]


def head_matrices(module: nn.Module, sites: Mapping[str, str] | None = None) -> dict[str, HeadMatrices]:
    """Return the matrices of all heads of all attention modules: see :func:`find_heads`, which reads no weights.

    Every rank must call it if the weights are sharded.

    Example:
        >>> from transformers import GPT2Config, GPT2Model
        >>> matrices = head_matrices(GPT2Model(GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=1, n_head=2)))
        >>> {site: (tuple(found.q.shape), tuple(found.o.shape)) for site, found in matrices.items()}
        {'layer1': ((2, 4, 8), (2, 8, 4))}
    """
    return {site: layout.read() for site, layout in find_heads(module, sites).layouts.items()}


def find_heads(module: nn.Module, sites: Mapping[str, str] | None = None) -> FoundHeads:
    """Find the attention modules whose matrices can be read, by their projections. No weights are read.

    Recognised are separate projections (``q_proj, k_proj, v_proj, o_proj``; ``query, key, value, dense`` and other
    usual names), one for all three as in GPT-2, nanoGPT, Phi-3 and ModernBERT (queries, keys and values one after the
    other), as in GPT-NeoX, BLOOM and Falcon (head by head), and ``nn.MultiheadAttention``. Their sizes must agree with
    the declared number of heads or their width. With grouped queries, consecutive heads use one key head. A module
    that runs several times (ALBERT) is found once.

    Args:
        module: any model, wrapped or not.
        sites: names of attention modules: display name to path; by default those of
            :func:`~lmdyn.analysis.inspection.transformer.attention_sites`. A module without a name is named after its
            path.

    Returns:
        The layouts, in the order of the model, and the attention modules that are not recognised, with the reason.

    Example:
        >>> found = find_heads(nn.ModuleDict({"attn": nn.MultiheadAttention(8, 2), "out": nn.Linear(8, 8)}))
        >>> found.layouts["attn"].heads, dict(found.left_out)
        (2, {})
    """
    modules = paths_of(module)
    found: dict[str, HeadLayout] = {}
    refused: dict[str, str] = {}
    for path, m in modules.items():
        layout = _layout(path, m, modules)
        if isinstance(layout, HeadLayout):
            found[path] = layout
        elif layout is not None:
            refused[path] = layout
    for path, m in modules.items():
        near = any(_inside(path, other) or _inside(other, path) for other in (*found, *refused))
        inner = any(_looks_like_attention(n) for p, n in modules.items() if p != path and _inside(p, path))
        if _looks_like_attention(m) and not near and not inner:
            refused[path] = f"the projections of {type(m).__name__} have no names that lmdyn knows"
    names = _names(module, sites, found)
    return FoundHeads({names.get(path, path): layout for path, layout in found.items()}, refused)


def _names(module: nn.Module, sites: Mapping[str, str] | None, found: Mapping[str, Any]) -> dict[str, str]:
    """Return display names by the paths of layouts; a site may be a module around the projections."""
    if sites is None:
        try:
            sites = attention_sites(module)
        except ValueError:
            sites = {}
    names = {}
    for name, path in sites.items():
        near = [p for p in found if p == plain_path(path) or _inside(p, plain_path(path))]
        near = near or [p for p in found if _inside(plain_path(path), p)]
        if len(near) == 1:
            names[near[0]] = name
    return names


def _inside(path: str, outer: str) -> bool:
    return outer == "" or path == outer or path.startswith(f"{outer}.")


def _looks_like_attention(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    return ("attention" in name or "attn" in name) and any(p.ndim > 1 for p in module.parameters())


_SEPARATE = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("q", "k", "v"),
    ("wq", "wk", "wv"),
    ("query_proj", "key_proj", "value_proj"),
    ("q_linear", "k_linear", "v_linear"),
    ("to_q", "to_k", "to_v"),
    ("c_q", "c_k", "c_v"),
)
_FUSED = ("c_attn", "qkv_proj", "Wqkv", "qkv", "in_proj", "query_key_value")
_OUTPUT = (
    "o_proj",
    "out_proj",
    "dense",
    "out_lin",
    "o",
    "c_proj",
    "wo",
    "Wo",
    "output_proj",
    "out_linear",
    "to_out",
    "proj",
)
_BY_HEAD = {"GPTNeoX", "Bloom", "Falcon", "Persimmon", "GPTBigCode"}
_IN_BLOCKS = {"GPT2", "Phi3", "Mpt", "ModernBert"}
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "n_local_heads", "heads", "nhead")
_WIDTH = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim", "d_head", "dim_head")
_QK_NORM = re.compile(
    r"(?:^|_)(?:q|k|qk|query|key)_?(?:layer)?(?:norm|ln)|(?:norm|ln)_(?:q|k)(?:$|_)", re.IGNORECASE
)
_CHANGES_VALUES = re.compile(r"sub_norm|inner_attn_ln|v_norm|value_norm|(?<!ve_)gate|g_proj", re.IGNORECASE)


def _layout(path: str, m: nn.Module, modules: Mapping[str, nn.Module]) -> HeadLayout | str | None:
    """Return the layout of a module, None if it has no projections, or a sentence why it is not read."""
    if isinstance(m, nn.MultiheadAttention):
        return _torch_layout(path, m)
    children = dict(m.named_children())
    projections = next((names for names in _SEPARATE if all(n in children for n in names)), None)
    fused = next((n for n in _FUSED if n in children), None)
    if fused == "in_proj" and not _looks_like_attention(m):  # as in a state space model
        fused = None
    if projections is None and fused is None:
        return None
    kind = type(m).__name__
    layers = [children[n] for n in projections or (cast(str, fused),)]
    output = next((children[n] for n in _OUTPUT if n in children), None)
    if output is None:  # of BERT's form, ``attention.output.dense`` beside ``attention.self``
        output = modules.get(f"{path.rpartition('.')[0]}.output.dense".lstrip("."))
    if isinstance(output, nn.Sequential):  # a linear layer and dropout
        linear = [layer for layer in output if is_linear(layer)]
        output = linear[0] if len(linear) == 1 else None
    if output is None:
        return f"{kind} has no output projection with a known name" if _looks_like_attention(m) else None
    if not all(is_linear(layer) for layer in (*layers, output)):
        return f"the projections of {kind} are not linear layers of floating-point numbers"
    if changing := [n for n in children if _CHANGES_VALUES.search(n)]:
        return f"{kind} changes its values before the output projection: {', '.join(changing)}"
    own = [n for n, _ in m.named_parameters(recurse=False) if n != "sinks"]
    if own:
        return f"{kind} has other parameters that may change the scores: {', '.join(own)}"
    if fused is not None and projections is None and (why := _why_unknown(m, fused, children)):
        return why
    sizes = _sizes(path, m, modules, [linear_shape(layer)[0] for layer in layers], linear_shape(output)[1])
    if isinstance(sizes, str):
        return sizes
    heads, kv_heads, width = sizes
    by_head = fused is not None and _family(m) in _BY_HEAD
    normed = any(_QK_NORM.search(name) for name in children)

    def read() -> HeadMatrices:
        weights = [linear_weight(layer) for layer in layers]
        biases = [linear_bias(layer) for layer in layers]
        if not projections:
            rows = _rows(heads, kv_heads, width, by_head)
            weights = [weights[0][r] for r in rows]
            biases = [None if biases[0] is None else biases[0][r] for r in rows]
        return _matrices((heads, kv_heads), weights, biases, output, normed)

    where = {id(other): p for p, other in modules.items()}
    paths = tuple(where[id(layer)] for layer in layers)
    return HeadLayout(path, heads, kv_heads, read, where[id(output)], width, paths, by_head)


def _family(m: nn.Module) -> str:
    return type(m).__name__.removesuffix("Attention").removesuffix("Self").removesuffix("Flash")


def _why_unknown(m: nn.Module, fused: str, children: Mapping[str, nn.Module]) -> str:
    """Return why the order of rows in a projection for queries, keys and values is not known; empty if it is."""
    kind = type(m).__name__
    if "q_attn" in children:
        return f"{kind} is a cross attention with one projection for keys and values"
    # of transformers, and with this name also of others, models use both orders
    either = fused == "query_key_value" or type(m).__module__.startswith("transformers.")
    if either and _family(m) not in _BY_HEAD | _IN_BLOCKS:
        return f"the order of queries, keys and values in {fused!r} of {kind} is not known"
    return ""


def _declared(m: object, names: tuple[str, ...]) -> int | None:
    for name in names:
        value = getattr(m, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _declared_near(
    path: str, m: nn.Module, modules: Mapping[str, nn.Module], names: tuple[str, ...]
) -> int | None:
    """Return a number that the module, its configuration or that of a module around it declares."""
    parts = path.split(".")
    around = (modules.get(".".join(parts[:n]), m) for n in range(len(parts), -1, -1))
    configs = (getattr(outer, "config", None) for outer in around)
    nearest = next((config for config in configs if config is not None), None)
    return _declared(m, names) or _declared(nearest, names)


def _sizes(
    path: str, m: nn.Module, modules: Mapping[str, nn.Module], rows: list[int], output: int
) -> tuple[int, int, int] | str:
    """Return heads, key heads and the width of a head's queries, or why they contradict each other."""
    kind = type(m).__name__
    width = _declared(m, _WIDTH)
    heads = _declared(m, _HEADS) or (None if width else _declared_near(path, m, modules, _HEADS))
    if heads is None and width is None:
        return f"{kind} declares neither the number of its heads nor their width: expected an attribute `num_heads`"
    if len(rows) == 3:
        heads = heads or rows[0] // cast(int, width)
        width = width or rows[0] // heads
        kv_heads = rows[1] // width
        value_width = rows[2] // max(kv_heads, 1)
        fits = rows == [heads * width, kv_heads * width, kv_heads * value_width]
    else:
        heads = heads or output // cast(int, width)
        width = value_width = width or output // heads
        kv_heads = (rows[0] // width - heads) // 2
        fits = rows[0] == (heads + 2 * kv_heads) * width
    if not fits or not kv_heads or heads % kv_heads or output != heads * value_width:
        return (
            f"the sizes of {kind} do not fit {heads} heads of width {width}: projections have {rows} rows and the "
            f"output projection {output} columns"
        )
    return heads, kv_heads, width


def _rows(heads: int, kv_heads: int, width: int, by_head: bool) -> list[Tensor]:
    """Return the rows of queries, keys and values in one projection."""
    rows = torch.arange((heads + 2 * kv_heads) * width)
    if not by_head:
        return list(rows.split([heads * width, kv_heads * width, kv_heads * width]))
    groups = rows.view(kv_heads, heads // kv_heads + 2, width)
    return [groups[:, :-2].flatten(), groups[:, -2].flatten(), groups[:, -1].flatten()]


def _matrices(
    heads: tuple[int, int],
    weights: list[Tensor],
    biases: list[Tensor | None],
    output: nn.Module,
    normed: bool,
) -> HeadMatrices:
    number, kv = heads
    counts = (number, kv, kv)
    q, k, v = (w.unflatten(0, (n, -1)) for w, n in zip(weights, counts, strict=True))
    q_bias, k_bias, v_bias = (
        None if b is None else b.unflatten(0, (n, -1)) for b, n in zip(biases, counts, strict=True)
    )
    o = linear_weight(output).unflatten(1, (number, -1)).movedim(1, 0)
    group = torch.arange(number, device=q.device) // (number // kv)
    return HeadMatrices(q, k, v, o, group, q_bias, k_bias, v_bias, linear_bias(output), normed)


def _torch_layout(path: str, m: nn.MultiheadAttention) -> HeadLayout | str:
    if getattr(m, "bias_k", None) is not None or m.add_zero_attn:
        return "nn.MultiheadAttention with add_bias_kv or add_zero_attn has keys that are not in the text"
    heads = m.num_heads

    def read() -> HeadMatrices:
        fused, bias = (getattr(m, name, None) for name in ("in_proj_weight", "in_proj_bias"))
        separate = (getattr(m, f"{name}_proj_weight") for name in "qkv")
        weights = [whole_tensor(w) for w in separate] if fused is None else [*whole_tensor(fused).chunk(3)]
        biases: list[Tensor | None] = [None] * 3 if bias is None else [*whole_tensor(bias).chunk(3)]
        return _matrices((heads, heads), weights, biases, m.out_proj, False)

    where = f"{path}.out_proj" if path else "out_proj"
    return HeadLayout(path, heads, heads, read, where, m.embed_dim // heads)
