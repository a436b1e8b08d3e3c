"""What a module offers to Induction: attention weights, losses of the next token, heads that can be ablated."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmdyn.analysis.attention.head_ablation import HeadPlace, ablated_heads
from lmdyn.analysis.attention.token_path import find_token_path
from lmdyn.analysis.inspection.activations import capture, paths_of
from lmdyn.analysis.inspection.forward import Forward, call_module, logits_of
from lmdyn.analysis.parameters.head_matrices import HeadLayout, find_heads
from lmdyn.analysis.parameters.linear_weight import linear_shape

__all__ = ["InductionModule", "called_on", "read_induction"]


@dataclass(frozen=True)
class InductionModule:
    """What can be measured of a module, and why not the rest.

    Attributes:
        heads: number of heads of each run of an attention site, as captured (``layer1`` or ``layer@0``).
        layouts: matrices of the heads by site; without those that are not read.
        token_path: computes the product of the tokens' vectors; None if copying is not measured.
        places: output projection by site; empty if heads cannot be ablated.
        no_losses: why the next token's loss is not defined; empty if it is.
        no_ablation: why heads cannot be ablated; empty if they can.
        no_copying: why copying is not measured for some or all sites; empty if it is for all.
    """

    heads: Mapping[str, int]
    layouts: Mapping[str, HeadLayout]
    token_path: Callable[[], Tensor] | None
    places: Mapping[str, HeadPlace]
    no_losses: str
    no_ablation: str
    no_copying: str


def read_induction(
    module: nn.Module,
    batch: Mapping[str, Any],
    sites: Mapping[str, str],
    forward: Forward | None,
    *,
    causal: bool,
    classes: int,
) -> InductionModule:
    """Read a module by a forward pass on one batch of repeated tokens. Every rank must call it.

    Args:
        module: the module, inside ``observing``.
        batch: rows of repeated tokens on its device.
        sites: attention sites; may be empty.
        forward: how it is called.
        causal: whether logits do not depend on later tokens.
        classes: one more than the largest token id.

    Raises:
        ValueError: if the module cannot be called with the rows.
    """
    with torch.no_grad(), capture(module, {}, attention_sites=sites) as seen:
        logits = called_on(module, batch, forward)
        heads = {name: int(weights.shape[1]) for name, weights in seen.attentions.items()}
    runs = {site: [n for name, n in heads.items() if name.partition("@")[0] == site] for site in sites}
    found = find_heads(module, sites)
    layouts = {
        site: layout
        for site, layout in found.layouts.items()
        if site in sites and all(n == layout.heads for n in runs[site])
    }
    unread = {
        site: found.left_out.get(path, "unknown") for site, path in sites.items() if site not in layouts
    }
    unknown = "; ".join(f"{site}: {why}" for site, why in unread.items())
    no_losses = ""
    if not causal:
        no_losses = "a model that reads later tokens"
    elif logits.ndim != 3 or logits.shape[-1] < classes:
        no_losses = f"logits of all {classes} tokens, got {tuple(logits.shape)}"
    no_heads = no_losses or ("" if sites else "no attention weights")

    no_ablation = no_heads or (f"unknown layouts ({unknown})" if unknown else "")
    places: dict[str, HeadPlace] = {}
    if not no_ablation:
        places = {
            site: HeadPlace(layout.output, layout.heads, len(runs[site])) for site, layout in layouts.items()
        }
        try:
            with ablated_heads(module, places, [(site, 0, 0) for site in places]):
                called_on(module, batch, forward)
        except RuntimeError as error:  # output projections that are not called
            no_ablation, places = str(error), {}

    path: Callable[[], Tensor] | str = no_heads or ("" if layouts else f"unknown layouts ({unknown})")
    if not path:
        width = linear_shape(paths_of(module)[next(iter(layouts.values())).output])[0]
        path = find_token_path(module, batch, width, forward)
    token_path, no_copying = (None, path) if isinstance(path, str) else (path, unknown)
    return InductionModule(heads, layouts, token_path, places, no_losses, no_ablation, no_copying)


def called_on(module: nn.Module, batch: Mapping[str, Any], forward: Forward | None) -> Tensor:
    """Return the logits of a module for rows of repeated tokens.

    Raises:
        ValueError: if it cannot be called with them.
    """
    time = batch["input_ids"].shape[1]
    try:
        with torch.no_grad():
            return logits_of(call_module(module, batch, forward=forward))
    except (IndexError, RuntimeError) as error:
        raise ValueError(
            f"{type(module).__name__} could not read rows of {time} tokens ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}): if the model has fewer than {time} positions, lower `length`"
        ) from error
