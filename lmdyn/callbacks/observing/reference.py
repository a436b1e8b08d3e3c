"""References to compare a model with: another checkpoint, its own end, its own past, itself at another site."""

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.inspection.forward import Forward
from lmdyn.callbacks.observing.run import SAVE_WEIGHTS, Run, report, snake_case
from lmdyn.callbacks.training.lightning_internals import trainer_attributes, tree_leaves
from lmdyn.callbacks.training.resume import read_tokenizer
from lmdyn.runs.checkpoint_files import (
    build_module,
    load_weights,
    newest_checkpoint,
    read_checkpoint,
    weights_digest,
)

log = logging.getLogger(__name__)


class Reference(ABC):
    """A model to compare with. Subclasses are named in yaml by ``class_path``.

    ``forward`` is a dotted path to ``(module, batch) -> output`` if the reference does not take the names of Hugging
    Face; with None, the observed module's ``forward`` setting applies if the reference has the same class.
    """

    forward: Forward | None = None

    copies: ClassVar[bool] = False
    """Whether its modules are copies of the observed one; with sharded weights, no rank has the complete copy."""

    def __repr__(self) -> str:
        arguments = ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if k[0] != "_")
        return f"{type(self).__name__}({arguments})"

    def check(self, run: Run) -> None:  # noqa: B027 (most references need nothing)
        """Raise an error, before training, if the run cannot provide the reference.

        Raises:
            ValueError: if it cannot; the message contains the remedy.
        """

    def settings(self, run: Run) -> Any:
        """Return plain values that identify the reference."""
        return type(self).__name__

    def example(self, module: Module) -> Module:
        """Return a module like those of :meth:`modules` before they exist: the observed one for its own checkpoints."""
        return module

    def number(self, run: Run) -> int:
        """Return the number of its modules at the last step, at least 1, as far as it is known: they take memory."""
        return 1

    def named(self, name: str) -> "dict[str, Reference]":
        """Return the references that it represents: itself, under the given name."""
        return {name: self}

    @abstractmethod
    def modules(self, module: Module, run: Run, step: int) -> dict[str, Module]:
        """Return the modules to compare ``module`` with at ``step``, frozen, on the CPU, by name.

        The name "" denotes the reference itself. Empty if there is nothing to compare with at this step.
        """


class Checkpoint(Reference):
    """Another run's checkpoint, such as a tagger or a model with another seed.

    Args:
        path: a checkpoint, a run's folder (its last checkpoint) or a folder of checkpoints; ``$VAR`` and ``~`` are
            expanded.
        module: dotted path of its class, if the checkpoint does not contain it.
        forward: see :class:`Reference`.
        step: for a folder, the step of the checkpoint; 0 is the untrained model, a baseline without training.

    Raises:
        FileNotFoundError: on attaching, if the path does not exist, or if it has no checkpoint of this step.
        ValueError: on attaching, if its tokenizer differs from the run's, so that token ids denote other words.
    """

    def __init__(
        self, path: str, module: str | None = None, forward: Forward | None = None, step: int | None = None
    ) -> None:
        self.path = path
        self.class_path = module
        self.forward = forward
        self.step = step
        self._loaded: tuple[Path, str, Module] | None = None

    def check(self, run: Run) -> None:
        """Load the checkpoint and compare the tokenizers."""
        path, _, _ = self._load()
        published = (path / "tokenizer_config.json").is_file()  # as save_pretrained writes it
        folder = path if published else path.parent.parent / "tokenizer"
        if run.tokenizer is None or not folder.is_dir():
            log.warning(
                "reference %s: %s, so lmdyn cannot compare the tokenizers: use a reference with this run's token ids",
                path, "this run has no tokenizer" if run.tokenizer is None else f"{folder} does not exist",
            )  # fmt: skip
            return
        theirs = read_tokenizer(folder).get_vocab()
        if theirs != run.tokenizer.get_vocab():
            raise ValueError(
                f"reference {path} was trained with another tokenizer ({len(theirs)} tokens, this run has "
                f"{len(run.tokenizer)}), but lmdyn compares models token by token. Train the reference with this run's "
                "tokenizer, `data.init_args.tokenizer: RUN/tokenizer`"
            )

    def settings(self, run: Run) -> Any:
        """Return a digest of its weights; their location does not matter."""
        return {"class": "Checkpoint", "weights": self._load()[1], "forward": self.forward}

    def example(self, module: Module) -> Module:
        """Return the module of the checkpoint."""
        return self._load()[2]

    def modules(self, module: Module, run: Run, step: int) -> dict[str, Module]:
        """Return the module of the checkpoint, loaded once."""
        return {"": self._load()[2]}

    def _load(self) -> tuple[Path, str, Module]:
        if self._loaded is None:
            path = newest_checkpoint(self.path, self.step)
            checkpoint = read_checkpoint(path)
            built = build_module(checkpoint, path, self.class_path)
            self._loaded = path.absolute(), weights_digest(checkpoint["state_dict"]), built
        return self._loaded

    def foresee(self, path: Path, module: Module) -> None:
        """Use a module instead of a checkpoint that does not exist yet, in checks before it is written."""
        self._loaded = path.absolute(), "", module

    def __deepcopy__(self, memo: Any) -> "Checkpoint":
        return Checkpoint(self.path, self.class_path, self.forward, self.step)


class Checkpoints(Reference):
    """Checkpoints of several runs whose folders differ in one part; each is a separate reference.

    Args:
        path: as in :class:`Checkpoint`, with ``{}`` in place of each name.
        names: replacements of ``{}``; they are the names of the references in rows and tags. The name under which this
            object is given is not used.
        module: see :class:`Checkpoint`.
        forward: see :class:`Reference`.
        step: see :class:`Checkpoint`.

    Raises:
        ValueError: if the path contains no ``{}``.

    Example:
        >>> named = Checkpoints("runs/taggers/{}_next", ["upos", "topic"]).named("taggers")
        >>> {name: reference.path for name, reference in named.items()}
        {'upos': 'runs/taggers/upos_next', 'topic': 'runs/taggers/topic_next'}
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
            raise ValueError(f"path of Checkpoints is {path!r}: expected {{}} in place of each name")
        self.path = path
        self.names = names
        self.class_path = module
        self.forward = forward
        self.step = step

    def named(self, name: str) -> dict[str, Reference]:
        """Return a reference for each of the names."""
        others = self.class_path, self.forward, self.step
        return {own: Checkpoint(self.path.replace("{}", own), *others) for own in self.names}

    def modules(self, module: Module, run: Run, step: int) -> dict[str, Module]:
        """Return the modules of all references."""
        parts = self.named("")
        return {name: part.modules(module, run, step)[""] for name, part in parts.items()}


class Itself(Reference):
    """The observed model itself, at another site."""

    def modules(self, module: Module, run: Run, step: int) -> dict[str, Module]:
        """Return the module unchanged."""
        return {"": module}


class OwnFinal(Reference):
    """The run's own last checkpoint: how much a representation still differs from its final one. In replay only.

    Raises:
        ValueError: on attaching to a run in training, which has no last checkpoint yet.
    """

    copies = True

    def __init__(self) -> None:
        self._digest: tuple[Path, str] | None = None

    def check(self, run: Run) -> None:
        """Raise an error for a run in training."""
        if run.live:
            raise ValueError(
                "reference OwnFinal is the run's last checkpoint, which does not exist during training: replay this "
                "observer after training, `lmdyn analyze RUN --config OBSERVER.yaml`"
            )

    def settings(self, run: Run) -> Any:
        """Return its step and a digest of its weights."""
        if not run.checkpoints:
            return type(self).__name__
        last = max(run.checkpoints)
        if self._digest is None or self._digest[0] != run.checkpoints[last]:
            path = run.checkpoints[last]
            self._digest = path, weights_digest(read_checkpoint(path)["state_dict"])
        return {"class": "OwnFinal", "step": last, "weights": self._digest[1]}

    def modules(self, module: Module, run: Run, step: int) -> dict[str, Module]:
        """Return the last checkpoint in a copy of the module."""
        assert run.checkpoints
        return {"": _copy_with(module, run.checkpoints[max(run.checkpoints)], run)}


class _OwnPast(Reference):
    copies = True

    def __init__(self, optional: bool = False) -> None:
        self.optional = optional

    def check(self, run: Run) -> None:
        """Raise an error for a run that saves no weights."""
        if not self.optional and run.live and run.checkpoint_folder is None:
            raise ValueError(
                f"reference {type(self).__name__} requires the run's own checkpoints, but the run saves no "
                f"checkpoints: {SAVE_WEIGHTS}"
            )


class OwnInitial(_OwnPast):
    """The run's own untrained model, its checkpoint of step 0: a baseline. Empty at step 0 itself.

    Args:
        optional: whether it is empty, instead of an error, if the run saves no weights, or none of step 0.

    Raises:
        ValueError: on attaching, if the run saves no weights; at the first step after 0, if it saved none of step 0.
    """

    def modules(self, module: Module, run: Run, step: int) -> dict[str, Module]:
        """Return the checkpoint of step 0 in a copy of the module."""
        before = run.checkpoints_before(step)
        if step and 0 not in before:
            if self.optional:
                return {}
            raise ValueError(
                f"reference OwnInitial requires the run's checkpoint of step 0, got steps {sorted(before)}: save step "
                "0 with a ScheduledCheckpoint, `schedule: {at: [0]}`, or compare with Previous"
            )
        return {"": _copy_with(module, before[0], run)} if step else {}


class Previous(_OwnPast):
    """The run's preceding scheduled checkpoint: how much a representation changed since. Empty at the first.

    Args:
        optional: see :class:`OwnInitial`.

    Raises:
        ValueError: on attaching to a run in training that saves no weights.
    """

    def modules(self, module: Module, run: Run, step: int) -> dict[str, Module]:
        """Return the preceding checkpoint in a copy of the module."""
        before = run.checkpoints_before(step)
        return {"": _copy_with(module, before[max(before)], run)} if before else {}


class Earlier(_OwnPast):
    """Each of the run's earlier scheduled checkpoints, named ``step <n>``: rows of a heat map over pairs of steps.

    It keeps a copy of the model for each of them in memory.

    Args:
        at: restrict to these steps; None for every earlier checkpoint.

    Raises:
        ValueError: on attaching to a run in training that saves no weights.
    """

    def __init__(self, at: list[int] | None = None) -> None:
        super().__init__()
        self.at = at

    def settings(self, run: Run) -> Any:
        """Return the steps of the argument."""
        return {"class": "Earlier", "at": self.at}

    def number(self, run: Run) -> int:
        """Return the number of earlier checkpoints, as far as they are known."""
        return max(1, sum(self.at is None or s in self.at for s in list(run.checkpoints or {})[:-1]))

    def modules(self, module: Module, run: Run, step: int) -> dict[str, Module]:
        """Return the earlier checkpoints, each in a copy of the module."""
        before = run.checkpoints_before(step)
        return {
            f"step {s}": _copy_with(module, path, run)
            for s, path in before.items()
            if self.at is None or s in self.at
        }


def references_or_own_past(reference: "Reference | Mapping[str, Reference] | None") -> dict[str, Reference]:
    """Return references by name; for None the run's untrained model and its preceding checkpoint, if it saves them."""
    if reference is None:
        return {"initial": OwnInitial(optional=True), "previous": Previous(optional=True)}
    return named_references(reference) if reference else {}


def report_past(name: str, what: str, run: Run) -> bool:
    """Report from which of its own checkpoints a run's lines or distances are; return whether it saves any."""
    without_first = bool(run.checkpoints) and 0 not in (run.checkpoints or ())
    saved = without_first or not run.live or run.checkpoint_folder is not None
    past = f"{'' if without_first else 'the checkpoint of step 0 and '}the preceding checkpoint"
    left_out = f"lmdyn leaves out {what}: the run saves no checkpoints; {SAVE_WEIGHTS}"
    report(name, f"the references of {what} are {past}" if saved else left_out)
    return saved


def _copy_with(module: Module, path: Path, run: Run) -> Module:
    """Copy a module with the weights of a checkpoint, frozen; the trainer of a LightningModule is not copied."""
    memo: dict[int, Any] = {id(v): None for v in trainer_attributes(module).values()}
    for part in module.modules():  # tensors with a graph that training stored as attributes, such as a loss
        kept = (v for k, v in vars(part).items() if k not in {*trainer_attributes(part), "_modules"})
        leaves = (leaf for v in kept for leaf in tree_leaves(v))
        memo |= {id(t): t.detach() for t in leaves if isinstance(t, Tensor) and not t.is_leaf}
    copied = copy.deepcopy(module, memo)
    load_weights(copied, read_checkpoint(path, run.stored_names)["state_dict"], path)
    return copied.eval().requires_grad_(False)


def has_module(module: Module, path: str) -> bool:
    """Return whether a path is a module."""
    return path in dict(module.named_modules())


def named_references(reference: "Reference | Mapping[str, Reference]") -> dict[str, Reference]:
    """Return references by name; one without a name has the name of its class.

    Raises:
        ValueError: if there is none, or if a name cannot be part of a tag.
    """
    given = (
        {snake_case(type(reference).__name__): reference} if isinstance(reference, Reference) else reference
    )
    named: dict[str, Reference] = {}
    for key, one in given.items():
        for name, part in one.named(key).items():
            if not name or "/" in name:
                raise ValueError(f"reference name {name!r} is empty or contains '/': choose another name")
            if name in named:
                raise ValueError(f"two references have the name {name!r}: give each reference its own name")
            named[name] = part
    if not named:
        raise ValueError("expected at least one reference, got none: set `reference` (Checkpoints: `names`)")
    return named
