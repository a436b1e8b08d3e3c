"""Attention heads without effect: their part of the input of the output projection is replaced."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import resolve_sites

__all__ = ["HeadPlace", "ablated_heads"]


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
        ValueError: for a path that is not a module, or a head that does not exist.
        RuntimeError: on exit, if a projection did not run in a forward pass, as in a module that reads only its weight.

    Example:
        >>> layer = nn.Linear(4, 1, bias=False)
        >>> _ = layer.weight.data.fill_(1.0)
        >>> with ablated_heads(layer, {"attn": HeadPlace("", heads=2)}, [("attn", 0, 1)]):
        ...     layer(torch.tensor([1.0, 1.0, 5.0, 5.0]))
        tensor([2.], grad_fn=<SqueezeBackward4>)
    """
    for site, run, head in heads:
        if site not in places or not (0 <= head < places[site].heads and 0 <= run < places[site].runs):
            known = ", ".join(f"{name} (heads: {p.heads}, runs: {p.runs})" for name, p in places.items())
            raise ValueError(
                f"site {site!r} has no head {head} in run {run}: count heads and runs from 0. The sites are {known}"
            )
    chosen: dict[tuple[str, int], list[int]] = {}
    for site, run, head in heads:
        chosen.setdefault((site, run), []).append(head)
    calls = dict.fromkeys((site for site, _, _ in heads), 0)
    modules = resolve_sites(module, {site: places[site].path for site in calls})

    def hook_of(site: str) -> Any:
        place = places[site]

        def hook(_: nn.Module, args: tuple[Any, ...]) -> Any:
            run = calls[site] % place.runs
            calls[site] += 1
            x = args[0]
            if (which := chosen.get((site, run))) is None:
                return None
            changed = x.unflatten(-1, (place.heads, -1)).clone()
            changed[..., which, :] = 0 if values is None else values[site, run][which].to(x)
            return (changed.flatten(-2), *args[1:])

        return hook

    ran: list[bool] = []
    with ExitStack() as stack:
        for m in module.modules():
            stack.callback(m.register_forward_pre_hook(lambda *_: ran.append(True)).remove)
        for site, m in modules.items():
            stack.callback(m.register_forward_pre_hook(hook_of(site)).remove)
        yield
    silent = [site for site, number in calls.items() if not number]
    if silent and ran:  # a rank may have no batches
        raise RuntimeError(
            f"the forward pass did not call the output projections of some sites ({', '.join(silent)}), so the output "
            "does not change: name modules that the forward pass calls"
        )
