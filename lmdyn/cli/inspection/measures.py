"""Measured properties of a model: what it reads, how it is called, how often its blocks run."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import observing, resolve_sites
from lmdyn.analysis.inspection.forward import Forward, call_module, called_module, device_of, logits_of
from lmdyn.analysis.inspection.label_convention import model_reading
from lmdyn.analysis.inspection.sites import FoundSites

__all__ = [
    "Reach",
    "count_parameters",
    "how_called",
    "how_often",
    "input_rows",
    "measure_reach",
]

log = logging.getLogger(__name__)

_LENGTHS = (64, 32, 16, 8, 4)


@dataclass(frozen=True)
class Reach:
    """What a model reads, as measured.

    Attributes:
        length: number of positions, at most 64.
        vocabulary: number of ids that it reads and predicts.
        bidirectional: whether logits depend on later tokens.
    """

    length: int
    vocabulary: int
    bidirectional: bool


def input_rows(module: nn.Module) -> int | None:
    """Return the number of rows of the embedding that reads the ids; None if no embedding does."""
    found: list[int] = []
    ids = torch.tensor([[0, 1, 1, 0]], device=device_of(module))  # these cannot be positions or types
    with _reading(module, ids, found):
        try:
            call_module(module, _batch(ids))
        except Exception:
            log.debug("the embedding was not measured", exc_info=True)
    return min(found, default=None)


@contextmanager
def _reading(module: nn.Module, ids: Tensor, found: list[int]) -> Iterator[None]:
    """Within the context, record the number of rows of each embedding that is called on exactly these ids."""

    def note(embedding: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor) and args[0].shape == ids.shape and args[0].equal(ids):
            found.append(int(embedding.num_embeddings))  # type: ignore[arg-type] # of an nn.Embedding

    handles = [m.register_forward_pre_hook(note) for m in module.modules() if isinstance(m, nn.Embedding)]
    with observing(module), torch.no_grad():
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _batch(ids: Tensor) -> dict[str, Tensor]:
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def measure_reach(module: nn.Module, forward: Forward | None = None) -> Reach:
    """Measure what a model reads, by forward passes over the ids 0 and 1.

    Raises:
        ValueError: if it cannot be called on token ids, or does not return logits (batch, time, classes).

    Example:
        >>> net = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
        >>> net.forward = lambda input_ids: net[1](net[0](input_ids))
        >>> measure_reach(net)
        Reach(length=64, vocabulary=9, bidirectional=False)
    """
    generator = torch.Generator().manual_seed(0)
    whole = torch.randint(0, 2, (2, _LENGTHS[0]), generator=generator).to(device_of(module))
    problem: Exception | None = None
    for length in _LENGTHS:
        ids, rows = whole[:, :length], list[int]()
        try:
            with _reading(module, ids, rows):
                output = call_module(module, _batch(ids), forward=forward)
        except Exception as error:
            problem = problem or error
            continue
        logits = logits_of(output)
        if logits.ndim != 3 or logits.shape[:2] != ids.shape:
            raise ValueError(
                f"{type(module).__name__} returns logits {tuple(logits.shape)} for ids {tuple(ids.shape)}: expected "
                "(batch, time, classes); name a function that returns these, --forward package.function"
            )
        return Reach(
            length,
            min([*rows, logits.shape[-1]]),
            model_reading(module, _batch(ids), forward) == "bidirectional",
        )
    assert problem is not None
    raise ValueError(
        f"{type(module).__name__} cannot be called on token ids ({type(problem).__name__}: "
        f"{' '.join(str(problem).split())}): give --data with batches that it reads, or --forward "
        "package.function, a function (module, batch) -> logits"
    ) from problem


def count_parameters(module: nn.Module) -> int:
    """Count all parameters; tied ones count once."""
    return sum(p.numel() for p in module.parameters())


def how_called(module: nn.Module, batch: Mapping[str, Any], forward: Forward | None) -> str:
    """Return which fields of a batch its forward receives, and the shape of the logits."""
    seen: list[str] = []
    names = {id(value): key for key, value in batch.items()}

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not seen:
            given = [names.get(id(value), "…") for value in args]
            given += [k if names.get(id(v), k) == k else f"{k}={names[id(v)]}" for k, v in kwargs.items()]
            seen.append(", ".join(given))

    handle = (
        called_module(module).register_forward_pre_hook(note, with_kwargs=True) if forward is None else None
    )
    try:
        with observing(module), torch.no_grad():
            output = call_module(module, batch, forward=forward)
    finally:
        if handle is not None:
            handle.remove()
    how = f"{forward}(module, batch)" if forward is not None else f"forward({seen[0] if seen else ''})"
    read = set(seen[0].replace("=", ", ").split(", ")) if seen else set(batch)
    unread = sorted(set(batch) - {"labels"} - read)
    more = f" and {len(unread) - 4} more" if len(unread) > 5 else ""
    rest = f"; the batch also has {', '.join(unread[:4] if more else unread)}{more}" if unread else ""
    return f"{how} returns logits {tuple(logits_of(output).shape)}{rest}"


def how_often(module: nn.Module, batch: Mapping[str, Any], sites: FoundSites, forward: Forward | None) -> str:
    """Return whether its blocks run once, repeatedly, or once per token."""
    blocks = {name: path for name, path in sites.sites.items() if sites.kinds[name] == "block"}
    if not blocks:
        return "no blocks were found"
    runs = _runs(module, blocks, batch, forward)
    most = max(runs, key=lambda name: runs[name])
    recurrent = [
        n for n, m in resolve_sites(module, blocks).items() if isinstance(m, (nn.RNNBase, nn.RNNCellBase))
    ]
    if runs[most] > 1:
        width = batch["input_ids"].shape[1]
        shorter = {
            k: v[:, :-1] if isinstance(v, Tensor) and v.ndim > 1 and v.shape[1] == width else v
            for k, v in batch.items()
        }
        if _runs(module, blocks, shorter, forward)[most] != runs[most]:
            return f"recurrent: {blocks[most]} runs once per token"
        last = f"{most}@{runs[most] - 1}"
        return f"looped: {blocks[most]} runs {runs[most]} times in one forward pass, sites {most}@0 … {last}"
    if recurrent:
        return f"recurrent over tokens ({', '.join(blocks[n] for n in recurrent)}); not looped in depth"
    return f"not looped: {len(blocks)} blocks, each of which runs once"


def _runs(
    module: nn.Module, sites: Mapping[str, str], batch: Mapping[str, Any], forward: Forward | None
) -> dict[str, int]:
    """Count how often each site's module runs in one forward pass."""
    runs = dict.fromkeys(sites, 0)

    def counting(name: str) -> Any:
        def count(*_: Any) -> None:
            runs[name] += 1

        return count

    handles = [m.register_forward_hook(counting(name)) for name, m in resolve_sites(module, sites).items()]
    try:
        with observing(module), torch.no_grad():
            call_module(module, batch, forward=forward)
    finally:
        for handle in handles:
            handle.remove()
    return runs
