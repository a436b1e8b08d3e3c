"""Measured properties of a model: what it reads, how it is called, how often its blocks run."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module

from lmdyn.analysis.inspection.activations import observing, resolve_sites
from lmdyn.analysis.inspection.forward import Batch, Forward, call_module, called_module, device_of, logits_of
from lmdyn.analysis.inspection.label_convention import model_reading
from lmdyn.analysis.inspection.sites import FoundSites

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


def _called(
    module: Module,
    batch: Batch,
    forward: Forward | None,
    noted: Iterable[Module],
    note: Callable[[Module, tuple[Any, ...], dict[str, Any]], None],
) -> Any:
    """Return the module's output; ``note`` is called with the arguments of each of these modules when it runs."""
    handles = [m.register_forward_pre_hook(note, with_kwargs=True) for m in noted]
    try:
        with observing(module), torch.no_grad():
            return call_module(module, batch, forward=forward)
    finally:
        for handle in handles:
            handle.remove()


def measure_reach(module: Module, forward: Forward | None = None) -> Reach:
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
    embeddings = [m for m in module.modules() if isinstance(m, nn.Embedding)]
    problem: Exception | None = None
    for length in _LENGTHS:
        ids, rows = whole[:, :length], list[int]()

        def note(m: Module, args: tuple[Any, ...], _: Any, ids: Tensor = ids, rows: list[int] = rows) -> None:
            if args and isinstance(args[0], Tensor) and args[0].shape == ids.shape and args[0].equal(ids):
                rows.append(m.num_embeddings)  # type: ignore[arg-type] # of an nn.Embedding

        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
        try:
            output = _called(module, batch, forward, embeddings, note)
        except Exception as error:
            problem = problem or error
            continue
        logits = logits_of(output)
        if logits.ndim != 3 or logits.shape[:2] != ids.shape:
            raise ValueError(
                f"{type(module).__name__} returns logits {tuple(logits.shape)} for token ids {tuple(ids.shape)}: "
                "expected (batch, time, classes). Name a function that returns such logits: --forward package.function"
            )
        reading = model_reading(module, batch, forward)
        return Reach(length, min([*rows, logits.shape[-1]]), reading == "bidirectional")
    assert problem is not None
    raise ValueError(
        f"{type(module).__name__} cannot be called on token ids ({type(problem).__name__}: "
        f"{' '.join(str(problem).split())}): give --data with batches for the model, or "
        "--forward package.function, a function (module, batch) -> logits"
    ) from problem


def how_called(module: Module, batch: Batch, forward: Forward | None) -> str:
    """Return which fields of a batch its forward receives, and the shape of the logits."""
    read: dict[str, str] = {}  # by name in the batch, as it is given
    names = {id(value): key for key, value in batch.items()}

    def note(_: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for key, value in [*(("", v) for v in args), *kwargs.items()]:
            name = names.get(id(value), key or "…")
            read.setdefault(name, name if key in ("", name) else f"{key}={name}")

    noted = [called_module(module)] if forward is None else []
    shape = tuple(logits_of(_called(module, batch, forward, noted, note)).shape)
    if forward is not None:
        return f"{forward}(module, batch) returns logits {shape}"
    unread = sorted(set(batch) - {"labels"} - read.keys())
    listed = [*unread[:4], f"{len(unread) - 4} more"] if len(unread) > 5 else unread
    rest = f"; the batch also has {', '.join(listed)}" if unread else ""
    return f"forward({', '.join(read.values())}) returns logits {shape}{rest}"


def how_often(module: Module, batch: Batch, sites: FoundSites, forward: Forward | None) -> str:
    """Return whether its blocks run once, repeatedly, or once per token."""
    blocks = {name: path for name, path in sites.sites.items() if sites.kinds[name] == "block"}
    if not blocks:
        return "lmdyn found no blocks"
    modules = resolve_sites(module, blocks)

    def runs(batch: Batch) -> Counter[Module]:
        found: Counter[Module] = Counter()
        _called(module, batch, forward, modules.values(), lambda m, *_: found.update([m]))
        return found

    most, times = runs(batch).most_common(1)[0]
    name = next(name for name, m in modules.items() if m is most)
    if times > 1:
        width = batch["input_ids"].shape[1]
        shorter = {
            k: v[:, :-1] if isinstance(v, Tensor) and v.ndim > 1 and v.shape[1] == width else v
            for k, v in batch.items()
        }
        if runs(shorter)[most] != times:
            return f"recurrent: {blocks[name]} runs once per token"
        return f"looped: {blocks[name]} runs {times} times in one forward pass, sites {name}@0 … {name}@{times - 1}"
    recurrent = [blocks[n] for n, m in modules.items() if isinstance(m, (nn.RNNBase, nn.RNNCellBase))]
    if recurrent:
        return f"recurrent over tokens ({', '.join(recurrent)}); not looped in depth"
    return f"not looped: each of {len(blocks)} blocks runs once"
