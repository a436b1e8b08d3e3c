"""Requirements of an observation of Similarity: tokens for its dimensions, memory for its sums and references."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import nn

from lmdyn.callbacks.conditions.amounts import count_tokens, parameter_bytes
from lmdyn.callbacks.conditions.finding import Cost, Foreseen, expected
from lmdyn.callbacks.observing.probe import ProbeSet
from lmdyn.callbacks.observing.reference import Checkpoint, Earlier, Itself, OwnFinal, Previous, Reference
from lmdyn.callbacks.observing.run import Run
from lmdyn.callbacks.observing.token_groups import BLOCKS

__all__ = ["foreseen_sums"]


class Compared(Protocol):
    """Interface of an observer of similarity that has read its module."""

    @property
    def references(self) -> Mapping[str, Reference]:
        """References by name."""

    @property
    def measures(self) -> Sequence[str]:
        """Names of measures."""

    @property
    def max_samples(self) -> int:
        """Number of tokens of the n × n measures."""

    @property
    def pairs(self) -> Sequence[tuple[str, str]] | None:
        """Pairs of sites; None for the default."""

    @property
    def probe_set(self) -> ProbeSet:
        """The probe set."""

    @property
    def run(self) -> Run:
        """The run."""

    @property
    def hparams(self) -> Any:
        """The arguments."""


def foreseen_sums(observer: Compared, widths: Mapping[str, int], module: nn.Module) -> Iterator[Foreseen]:
    """Yield the findings and costs that are known before an observation.

    Args:
        observer: observer that has read its module.
        widths: width of each site per token.
        module: the observed module, for the size of its copies.
    """
    widest = sorted(widths.values(), reverse=True)[:2]
    correlations = [m for m in observer.measures if m.endswith("cca")]
    if correlations and widest:
        needed = sum(widest) if len(widest) > 1 else 2 * widest[0]
        tokens = count_tokens(observer.probe_set, needed + 1)
        if tokens <= needed:
            exact = {"cca", "pwcca"} & set(correlations)  # svcca keeps fewer dimensions
            yield expected(
                f"more than {needed:,} tokens for sites of {' and '.join(map(str, widest))} dimensions",
                f"{tokens:,} tokens, of which {needed - tokens + 1:,} correlations are 1 whatever the data"
                f" ({', '.join(correlations)})",
                "observe more text (`max_tokens`, `probe`), or use `linear_cka`",
                stops=bool(exact) and tokens - 1 <= min(widest),
            )
    narrow = min(widths.values(), default=0)
    directions = [int(m.removeprefix("svcca_")) for m in observer.measures if m.startswith("svcca_")]
    if directions and max(directions) > narrow:
        yield expected(
            f"sites of {max(directions)} dimensions or more for svcca_{max(directions)}",
            f"{narrow}",
            "name fewer directions",
            stops=False,
        )
    references = observer.references.values()
    copies = sum(_copies(reference, observer.run) for reference in references)
    if copies:
        yield Cost(
            f"{copies} copies of the model, of own checkpoints",
            copies * parameter_bytes(module),
            "name some steps, `Earlier: {at: […]}`",
        )
    others = [r.example(module) for r in references if isinstance(r, Checkpoint)]
    if others:
        yield Cost(f"{len(others)} models to compare with", sum(map(parameter_bytes, others)))
    number, largest = _pairs(observer, widths)
    sets = sum(max(1, _copies(r, observer.run)) * (1 if not isinstance(r, Itself) else 0) for r in references)
    of_itself = sum(isinstance(r, Itself) for r in references)
    sums = (
        number * sets
        + (len(widths) * (len(widths) - 1) // 2 if observer.pairs is None else number) * of_itself
    )
    if any(m not in ("kernel_cka", "rsa") for m in observer.measures):
        blocks = _blocks(observer.hparams)
        yield Cost(
            f"covariances of {sums} pairs of sites, up to {largest}² numbers"
            + (f", in {blocks} blocks of sentences" if blocks > 1 else ""),
            8 * sums * blocks * largest**2,
            "compare fewer sites, name `pairs`"
            + (", or use fewer blocks (`bootstrap: 0`, `jackknife`)" if blocks > 1 else ""),
        )
    if any(m in ("kernel_cka", "rsa") for m in observer.measures):
        yield Cost(
            f"samples of {sums} pairs of sites, and matrices of {observer.max_samples}²",
            4 * sums * observer.max_samples * largest + 6 * 8 * observer.max_samples**2,
            "lower `max_samples`",
        )


def _blocks(arguments: Mapping[str, Any]) -> int:
    """Return the number of blocks of sentences for intervals."""
    return BLOCKS if arguments.get("bootstrap") else max(int(arguments.get("jackknife") or 0), 1)


def _copies(reference: Reference, run: Run) -> int:
    """Return the number of copies of the model for a reference of own checkpoints at the last step."""
    if isinstance(reference, (OwnFinal, Previous)):
        return 1
    if isinstance(reference, Earlier):
        known = list(run.checkpoints or {})
        return sum(reference.at is None or step in reference.at for step in known[:-1]) if known else 0
    return 0


def _pairs(observer: Compared, widths: Mapping[str, int]) -> tuple[int, int]:
    """Return the number of pairs of sites per reference, and the width of both together, for similar references."""
    widest = max(widths.values(), default=0)
    if observer.pairs is not None:
        return len(observer.pairs), 2 * widest
    return len(widths), 2 * widest
