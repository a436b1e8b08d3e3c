"""What a model is compared with: another checkpoint, its own end, its own past, itself at another site."""

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import capture, resolve_sites
from lmdyn.analysis.inspection.forward import Forward
from lmdyn.callbacks.observing.probe import ObservedBatch, Reader
from lmdyn.callbacks.observing.run import Run, snake_case
from lmdyn.callbacks.training.checkpoint_files import (
    build_module,
    load_weights,
    newest_checkpoint,
    read_checkpoint,
    weights_digest,
)
from lmdyn.callbacks.training.lightning_internals import trainer_attributes, tree_leaves
from lmdyn.callbacks.training.resume import read_tokenizer

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "Earlier",
    "Itself",
    "OwnFinal",
    "OwnInitial",
    "Previous",
    "Reference",
]


log = logging.getLogger(__name__)


class Reference(ABC):
    """A model to compare with. Subclasses are named in yaml by ``class_path``.

    ``forward`` is a dotted path to ``(module, batch) -> output`` where the reference is called otherwise than in
    Hugging Face's names; None calls it as the observed module's ``forward`` setting says where it has its class.
    """

    forward: Forward | None = None

    copies: ClassVar[bool] = False
    """Whether its modules are copies of the observed one, of which no rank has all where they share its weights."""

    def __repr__(self) -> str:
        arguments = ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if k[0] != "_")
        return f"{type(self).__name__}({arguments})"

    def check(self, run: Run) -> None:  # noqa: B027 (most references need nothing)
        """Refuse, before training, what this run cannot have.

        Raises:
            ValueError: with the remedy.
        """

    def settings(self, run: Run) -> Any:
        """Plain values that say which reference it was."""
        return type(self).__name__

    def example(self, module: nn.Module) -> nn.Module:
        """A module like those of :meth:`modules`, before there are any: the observed one for its own checkpoints."""
        return module

    def named(self, name: str) -> "dict[str, Reference]":
        """The references that it stands for: itself, under the name that it was given."""
        return {name: self}

    @abstractmethod
    def modules(self, module: nn.Module, run: Run, step: int) -> dict[str, nn.Module]:
        """The modules to compare ``module`` with at ``step``, frozen, on the CPU, each with a name.

        The name "" stands for the reference itself. Empty where there is nothing to compare with yet.
        """


class Checkpoint(Reference):
    """Another run's checkpoint: a tagger, a model with another seed.

    Args:
        path: a checkpoint, a run's folder (its last checkpoint) or a folder of checkpoints; ``$VAR`` and ``~`` are
            expanded.
        module: dotted path of its class, where the checkpoint does not say.
        forward: see :class:`Reference`.
        step: of a folder, the checkpoint of this step; 0 is the untrained model, a floor of what training shares.

    Raises:
        FileNotFoundError: on attaching, nothing there, or no checkpoint of this step.
        ValueError: on attaching, a tokenizer other than the run's, by which token i would be another word.
    """

    def __init__(
        self, path: str, module: str | None = None, forward: Forward | None = None, step: int | None = None
    ) -> None:
        self.path = path
        self.class_path = module
        self.forward = forward
        self.step = step
        self._loaded: tuple[Path, str, nn.Module] | None = None

    def check(self, run: Run) -> None:
        """Load it, and compare the tokenizers."""
        path, _, _ = self._load()
        folder = path.parent.parent / "tokenizer"
        if run.tokenizer is None or not folder.is_dir():
            log.warning(
                "reference %s: %s, so nobody checks that token i is the same word in both models",
                path, "this run has no tokenizer" if run.tokenizer is None else f"there is no {folder}",
            )  # fmt: skip
            return
        theirs = read_tokenizer(folder).get_vocab()
        if theirs != run.tokenizer.get_vocab():
            raise ValueError(
                f"reference {path} was trained with another tokenizer ({len(theirs)} tokens, this run has "
                f"{len(run.tokenizer)}): models are compared token by token, so train it with this run's, "
                "`data.init_args.tokenizer: RUN/tokenizer`"
            )

    def settings(self, run: Run) -> Any:
        """The content of its weights: where they lie plays no part."""
        return {"class": "Checkpoint", "weights": self._load()[1], "forward": self.forward}

    def example(self, module: nn.Module) -> nn.Module:
        """The one module."""
        return self._load()[2]

    def modules(self, module: nn.Module, run: Run, step: int) -> dict[str, nn.Module]:
        """The one module, loaded once."""
        return {"": self._load()[2]}

    def _load(self) -> tuple[Path, str, nn.Module]:
        if self._loaded is None:
            path = newest_checkpoint(self.path, self.step)
            checkpoint = read_checkpoint(path)
            built = build_module(checkpoint, path, self.class_path)
            self._loaded = path.absolute(), weights_digest(checkpoint["state_dict"]), built
        return self._loaded

    def foresee(self, path: Path, module: nn.Module) -> None:
        """Let a module stand for a checkpoint that is not there yet, in checks before it is made."""
        self._loaded = path.absolute(), "", module

    def __deepcopy__(self, memo: Any) -> "Checkpoint":
        return Checkpoint(self.path, self.class_path, self.forward, self.step)


class Checkpoints(Reference):
    """Checkpoints of several runs whose folders differ in one part: each is a reference of its own.

    Args:
        path: as of :class:`Checkpoint`, with ``{}`` in the place of each name.
        names: what replaces ``{}``; rows and tags call the references so. The name under which this object is given
            plays no part.
        module: see :class:`Checkpoint`.
        forward: see :class:`Reference`.
        step: see :class:`Checkpoint`.

    Raises:
        ValueError: a path without ``{}``.

    Example:
        >>> Checkpoints("runs/taggers/{}_next", ["upos", "topic"]).named("taggers")
        {'upos': Checkpoint(path='runs/taggers/upos_next', class_path=None, forward=None, step=None), 'topic': ...}
    """

    def __init__(
        self,
        path: str,
        names: list[str],
        module: str | None = None,
        forward: Forward | None = None,
        step: int | None = None,
    ) -> None:
        if "{}" not in path:
            raise ValueError(f"Checkpoints expects a path with {{}} in the place of each name, got {path!r}")
        self.path = path
        self.names = names
        self.class_path = module
        self.forward = forward
        self.step = step

    def named(self, name: str) -> dict[str, Reference]:
        """A reference for each of the names."""
        return {
            own: Checkpoint(self.path.replace("{}", own), self.class_path, self.forward, self.step)
            for own in self.names
        }

    def modules(self, module: nn.Module, run: Run, step: int) -> dict[str, nn.Module]:
        """Those of all of them."""
        parts = self.named("")
        return {name: part.modules(module, run, step)[""] for name, part in parts.items()}


class Itself(Reference):
    """The very model, at another site."""

    def modules(self, module: nn.Module, run: Run, step: int) -> dict[str, nn.Module]:
        """The module as it is."""
        return {"": module}


class OwnFinal(Reference):
    """The run's own last checkpoint: how far a representation still is from its end. In replay only.

    Raises:
        ValueError: on attaching to a run in training, which has no end yet.
    """

    copies = True

    def __init__(self) -> None:
        self._digest: tuple[Path, str] | None = None

    def check(self, run: Run) -> None:
        """Refuse a run in training."""
        if run.live:
            raise ValueError(
                "reference OwnFinal is the run's last checkpoint, which does not exist while it is trained: replay "
                "this observer, `lmdyn analyze RUN --config OBSERVER.yaml`"
            )

    def settings(self, run: Run) -> Any:
        """Its step, and the content of its weights."""
        if not run.checkpoints:
            return type(self).__name__
        last = max(run.checkpoints)
        if self._digest is None or self._digest[0] != run.checkpoints[last]:
            path = run.checkpoints[last]
            self._digest = path, weights_digest(read_checkpoint(path)["state_dict"])
        return {"class": "OwnFinal", "step": last, "weights": self._digest[1]}

    def modules(self, module: nn.Module, run: Run, step: int) -> dict[str, nn.Module]:
        """The last checkpoint in a copy of the module."""
        assert run.checkpoints
        return {"": _copy_with(module, run.checkpoints[max(run.checkpoints)])}


class _OwnPast(Reference):
    copies = True

    def check(self, run: Run) -> None:
        """Refuse a run that saves no weights."""
        if run.live and run.checkpoint_folder is None:
            raise ValueError(
                f"reference {type(self).__name__} is the run's own checkpoints, and none are saved: attach a "
                "ScheduledCheckpoint"
            )


class OwnInitial(_OwnPast):
    """The run's own untrained model, its checkpoint of step 0: a floor. Nothing at step 0 itself.

    Raises:
        ValueError: on attaching, a run that saves no weights, or none of step 0.
    """

    def check(self, run: Run) -> None:
        """Refuse a run without the checkpoint, as far as it can be known."""
        super().check(run)
        if not run.live and run.checkpoints and 0 not in run.checkpoints:
            raise ValueError(self._missing(run.checkpoints))

    def modules(self, module: nn.Module, run: Run, step: int) -> dict[str, nn.Module]:
        """The checkpoint of step 0 in a copy of the module."""
        before = run.checkpoints_before(step)
        if step and 0 not in before:
            raise ValueError(self._missing(before))
        return {"": _copy_with(module, before[0])} if step else {}

    @staticmethod
    def _missing(steps: Mapping[int, Path]) -> str:
        return (
            f"reference OwnInitial is the run's checkpoint of step 0, and there is none among {sorted(steps)}: save it "
            "by a ScheduledCheckpoint with `schedule: {at: [0]}`"
        )


class Previous(_OwnPast):
    """The run's preceding scheduled checkpoint: how much a representation moved since. Nothing at the first.

    Raises:
        ValueError: on attaching to a run in training that saves no weights.
    """

    def modules(self, module: nn.Module, run: Run, step: int) -> dict[str, nn.Module]:
        """The preceding checkpoint in a copy of the module."""
        before = run.checkpoints_before(step)
        return {"": _copy_with(module, before[max(before)])} if before else {}


class Earlier(_OwnPast):
    """Each of the run's earlier scheduled checkpoints, named ``step <n>``: rows of a heat map over pairs of steps.

    A copy of the model is held for each of them.

    Args:
        at: only these steps; None is every earlier checkpoint.

    Raises:
        ValueError: on attaching to a run in training that saves no weights.
    """

    def __init__(self, at: list[int] | None = None) -> None:
        self.at = at

    def settings(self, run: Run) -> Any:
        """The steps that were asked for."""
        return {"class": "Earlier", "at": self.at}

    def modules(self, module: nn.Module, run: Run, step: int) -> dict[str, nn.Module]:
        """The earlier checkpoints, each in a copy of the module."""
        before = run.checkpoints_before(step)
        return {
            f"step {s}": _copy_with(module, path)
            for s, path in before.items()
            if self.at is None or s in self.at
        }


def _copy_with(module: nn.Module, path: Path) -> nn.Module:
    """A frozen copy of a module with the weights of a checkpoint; the trainer of a LightningModule is left out."""
    memo: dict[int, Any] = {id(v): None for v in trainer_attributes(module).values()}
    for part in module.modules():  # what training left there with its graph, as a loss
        kept = (v for k, v in vars(part).items() if k not in {*trainer_attributes(part), "_modules"})
        leaves = (leaf for v in kept for leaf in tree_leaves(v))
        memo |= {id(t): t.detach() for t in leaves if isinstance(t, Tensor) and not t.is_leaf}
    copied = copy.deepcopy(module, memo)
    load_weights(copied, read_checkpoint(path)["state_dict"], path)
    return copied.eval().requires_grad_(False)


def placed_like(reference: nn.Module, own: nn.Module) -> nn.Module:
    """The reference on the model's device; in float64 where the model is."""
    parameter = next(own.parameters(), None)
    if parameter is None:
        return reference
    return reference.to(parameter.device, torch.float64 if parameter.dtype == torch.float64 else None)


def has_module(module: nn.Module, path: str) -> bool:
    """Whether a path names a module."""
    return path in dict(module.named_modules())


class ReferenceReader:
    """A reference that reads the probe set along with the observed module.

    Args:
        name: how rows call it.
        module: the reference's module; None for the observed module itself, which is not run again.
        sites: display name to module path, in the reference.
        attention_sites: the same of attention modules.
        forward: see :class:`Reference`.

    Raises:
        ValueError: a path that names no module.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module | None,
        sites: Mapping[str, str],
        attention_sites: Mapping[str, str],
        forward: Forward | None = None,
    ) -> None:
        self.name = name
        self.sites = sites
        self.attention_sites = attention_sites
        self._module = module
        if module is not None:
            resolve_sites(module, {**sites, **attention_sites})
            self._read = Reader(module, forward)

    @property
    def itself(self) -> bool:
        """Whether it is the observed module."""
        return self._module is None

    def read(self, seen: ObservedBatch) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Activations and attention weights of the reference for the same batch.

        Raises:
            ValueError: tokens that the reference does not know.
        """
        if self._module is None:
            return seen.activations, seen.attentions
        with capture(self._module, self.sites, attention_sites=self.attention_sites) as captured:
            try:
                self._read(seen.batch)
            except IndexError as error:
                raise ValueError(
                    f"reference {self.name!r} does not know all tokens of the probe set ({error}): was it trained "
                    "with this run's tokenizer?"
                ) from error
            return captured.activations, captured.attentions


def named_references(reference: "Reference | Mapping[str, Reference]") -> dict[str, Reference]:
    """References by name; one that was given none is called after its class.

    Raises:
        ValueError: none, or a name that cannot be part of a tag.
    """
    given = (
        {snake_case(type(reference).__name__): reference} if isinstance(reference, Reference) else reference
    )
    named: dict[str, Reference] = {}
    for key, one in given.items():
        for name, part in one.named(key).items():
            if not name or "/" in name:
                raise ValueError(
                    f"reference name {name!r} is part of the tags: it may not be empty or hold '/'"
                )
            if name in named:
                raise ValueError(f"two references are called {name!r}: give each a name of its own")
            named[name] = part
    if not named:
        raise ValueError("reference is empty: name at least one")
    return named
