"""Attention heads without effect: their part of the input of the output projection is replaced."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import resolve_sites
from lmdyn.analysis.statistics.distributed import all_reduce_sum
from lmdyn.analysis.statistics.precision import exact_float

__all__ = ["HeadInputs", "HeadPlace", "ablated_heads", "head_inputs"]


@dataclass(frozen=True)
class HeadPlace:
    """Where the heads of an attention module meet: the linear layer whose input are their outputs, one after the other.

    Attributes:
        path: module path of the output projection.
        heads: number of heads.
        runs: number of times that it runs in one forward pass (layers that share weights).
    """

    path: str
    heads: int
    runs: int = 1


@contextmanager
def _before(module: nn.Module, places: Mapping[str, HeadPlace], change: Any) -> Iterator[None]:
    """Call ``change(site, run, heads' outputs)`` before each run of the output projections; it may return new ones."""
    modules = resolve_sites(module, {name: place.path for name, place in places.items()})
    calls = dict.fromkeys(places, 0)

    def hook_of(site: str) -> Any:
        place = places[site]

        def hook(_: nn.Module, args: tuple[Any, ...]) -> Any:
            run = calls[site] % place.runs
            calls[site] += 1
            x = args[0]
            if x.shape[-1] % place.heads:
                raise ValueError(
                    f"the output projection {place.path!r} reads {x.shape[-1]} numbers: expected a multiple of "
                    f"{place.heads} heads"
                )
            changed = change(site, run, x.unflatten(-1, (place.heads, -1)))
            return None if changed is None else (changed.flatten(-2), *args[1:])

        return hook

    ran: list[bool] = []

    def note(_: nn.Module, __: tuple[Any, ...]) -> None:
        if not ran:
            ran.append(True)

    with ExitStack() as stack:
        for m in module.modules():
            stack.callback(m.register_forward_pre_hook(note).remove)
        for site, m in modules.items():
            stack.callback(m.register_forward_pre_hook(hook_of(site)).remove)
        yield
    silent = [site for site, number in calls.items() if not number]
    if silent and ran:  # a rank may have no batches
        raise RuntimeError(
            f"the output projections of {silent} did not run, so their heads were not changed: expected modules that "
            "the forward pass calls"
        )


@contextmanager
def ablated_heads(
    module: nn.Module,
    places: Mapping[str, HeadPlace],
    heads: Collection[tuple[str, int, int]],
    values: Mapping[tuple[str, int], Float[Tensor, "heads d"]] | None = None,
) -> Iterator[None]:
    """Replace the outputs of some heads, before the output projection, in the forward passes in this context.

    Args:
        module: the model.
        places: output projection by attention site.
        heads: heads to replace: site, number of the run in a forward pass (from 0), head.
        values: replacements by site and run; None replaces by zero.

    Raises:
        ValueError: for a path that is not a module, a head that does not exist, or if the input of a projection cannot
            be divided by the heads.
        RuntimeError: on exit, if a projection did not run in a forward pass, as in a module that reads only its weight.

    Example:
        >>> layer = nn.Linear(4, 1, bias=False)
        >>> _ = layer.weight.data.fill_(1.0)
        >>> with ablated_heads(layer, {"attn": HeadPlace("", heads=2)}, [("attn", 0, 1)]):
        ...     layer(torch.tensor([1.0, 1.0, 5.0, 5.0]))
        tensor([2.], grad_fn=<SqueezeBackward4>)
    """
    wrong = [
        h
        for h in heads
        if h[0] not in places or not 0 <= h[2] < places[h[0]].heads or not 0 <= h[1] < places[h[0]].runs
    ]
    if wrong:
        raise ValueError(f"there are no heads {wrong}: expected site, run and head of {dict(places)}")
    chosen: dict[tuple[str, int], list[int]] = {}
    for site, run, head in heads:
        chosen.setdefault((site, run), []).append(head)

    def change(site: str, run: int, x: Tensor) -> Tensor | None:
        which = chosen.get((site, run))
        if which is None:
            return None
        changed = x.clone()
        changed[..., which, :] = 0 if values is None else values[site, run][which].to(x)
        return changed

    with _before(module, {site: places[site] for site in dict.fromkeys(h[0] for h in heads)}, change):
        yield


class HeadInputs:
    """Float64 sums of the heads' outputs over tokens, by site and run; see :func:`head_inputs`."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], Tensor] = {}
        self._sums: dict[tuple[str, int], Tensor] = {}
        self._counts: dict[tuple[str, int], Tensor] = {}

    def see(self, site: str, run: int, x: Float[Tensor, "batch time heads d"]) -> None:
        """Hold the outputs of the heads in one run of the last forward pass."""
        self._last[site, run] = x.detach()

    def keep(self, tokens: Bool[Tensor, "batch time"] | None = None) -> None:
        """Add the last forward pass at ``tokens``, by default all. Passes that are not kept do not count."""
        for key, x in self._last.items():
            mask = exact_float(torch.ones(x.shape[:2]).to(x.device) if tokens is None else tokens)
            total, count = torch.einsum("bt,bthd->hd", mask, exact_float(x)), mask.sum()
            self._sums[key] = self._sums[key] + total if key in self._sums else total
            self._counts[key] = self._counts[key] + count if key in self._counts else count
        self._last.clear()

    @property
    def shapes(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return heads and their width by site and run, as kept by this rank."""
        return {key: (int(total.shape[0]), int(total.shape[1])) for key, total in self._sums.items()}

    def means(self, shapes: Mapping[tuple[str, int], tuple[int, int]]) -> dict[tuple[str, int], Tensor]:
        """Return the means over all ranks' tokens; every rank must call it with the same (heads, d) of each run."""
        found = {}
        for key, shape in shapes.items():
            own = self._sums.get(key)
            total = all_reduce_sum(torch.zeros(shape, dtype=torch.float64) if own is None else own.cpu())
            count = all_reduce_sum(self._counts.get(key, torch.zeros((), dtype=torch.float64)).cpu())
            found[key] = total / count
        return found


@contextmanager
def head_inputs(module: nn.Module, places: Mapping[str, HeadPlace]) -> Iterator[HeadInputs]:
    """Sum the outputs of all heads over the tokens of those forward passes in this context that are kept.

    Example:
        >>> layer = nn.Linear(4, 1)
        >>> with head_inputs(layer, {"attn": HeadPlace("", heads=2)}) as inputs:
        ...     _ = layer(torch.tensor([[[1.0, 1.0, 5.0, 5.0], [3.0, 3.0, 5.0, 5.0]]]))
        ...     inputs.keep()
        >>> inputs.means({("attn", 0): (2, 2)})["attn", 0].tolist()
        [[2.0, 2.0], [5.0, 5.0]]
    """
    inputs = HeadInputs()

    with _before(module, places, inputs.see):
        yield inputs
