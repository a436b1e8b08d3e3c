"""Schedules of observations over optimizer updates, and over amounts of training text."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import wraps
from numbers import Integral, Real
from typing import Any, Literal


def _names_arguments(cls: type) -> Any:
    """Let a dataclass answer an unknown argument with the nearest ones."""
    init: Any = cls.__init__  # type: ignore[misc] # its own

    @wraps(init)
    def checked(self: Any, *args: Any, **given: Any) -> None:
        try:
            init(self, *args, **given)
        except TypeError:
            from lmdyn.analysis.inspection.attributes import refuse_unknown  # slow import

            refuse_unknown(cls, given)
            raise

    cls.__init__ = checked  # type: ignore[misc]
    return cls


BABYLM = tuple(10**6 * n for n in (*range(1, 10), *range(10, 100, 10), *range(100, 1001, 100)))
"""Words of the training text at the checkpoints of the BabyLM challenge, 1 to 1,000 million."""


@_names_arguments
@dataclass(frozen=True)
class Steps:
    """A schedule over steps, where a step is the number of optimizer updates done (0: the untrained model).

    Amounts of text are reached by the first update at or past them; the observation records the amount reached.

    Attributes:
        every: each multiple of this number.
        per_decade: number of steps in each factor of ten, evenly spaced in the logarithm: 10^(k/n), rounded.
        at: these steps.
        epochs: whether to include the end of each epoch.
        last: whether to include the end of training.
        tokens: amounts of labelled tokens trained on, those of the column ``tokens``.
        words: amounts of words of the training text, repeated ones counted again; ``babylm`` for :data:`BABYLM`.

    Raises:
        ValueError: for an interval or amount below 1 or a negative step.
        TypeError: for a value that is not a whole number.

    Example:
        >>> schedule = Steps(per_decade=2, at=(0, 5))
        >>> [step for step in range(101) if step in schedule]
        [0, 1, 3, 5, 10, 32, 100]
    """

    every: int | None = None
    per_decade: int | None = None
    at: tuple[int, ...] = (0,)
    epochs: bool = False
    last: bool = True
    tokens: tuple[float, ...] = ()
    words: tuple[float, ...] | Literal["babylm"] = ()

    def __post_init__(self) -> None:
        for name in ("every", "per_decade"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Integral):
                raise TypeError(f"Steps.{name} is {value!r}: expected a whole number, or null for never")
            if value is not None and value < 1:
                raise ValueError(f"Steps.{name} is {value}: expected a number from 1, or null for never")
        at: Any = tuple(self.at) if isinstance(self.at, Iterable) else self.at  # yaml has lists
        if not isinstance(at, tuple) or not all(isinstance(step, Integral) for step in at):
            raise TypeError(f"Steps.at is {self.at!r}: expected a list of whole numbers, such as [0, 100]")
        if any(step < 0 for step in at):
            raise ValueError(f"Steps.at has {min(at)}: expected steps from 0 (the untrained model)")
        object.__setattr__(self, "at", tuple(int(step) for step in at))
        for name in ("tokens", "words"):
            object.__setattr__(self, name, _amounts(name, getattr(self, name)))

    @property
    def amounts(self) -> dict[str, tuple[int, ...]]:
        """Amounts of text, by ``tokens`` and ``words``; only those that the schedule has."""
        both: Any = {"tokens": self.tokens, "words": self.words}
        return {name: amounts for name, amounts in both.items() if amounts}

    def __contains__(self, step: int) -> bool:
        return step in self.at or (step > 0 and self.following(step - 1) == step)

    def following(self, step: int) -> float:
        """Return the first scheduled step after ``step``; infinity if there is none.

        Example:
            >>> Steps(per_decade=2, at=(0, 5)).following(3), Steps().following(0)
            (5, inf)
        """
        found: list[float] = [at for at in self.at if at > step]
        if self.every is not None:
            found.append((step // self.every + 1) * self.every)
        if self.per_decade is not None:
            k = 0
            while (due := round(10 ** (k / self.per_decade))) <= step:
                k += 1
            found.append(due)
        return min(found, default=math.inf)

    def passed(self, before: "Progress", now: "Progress") -> bool:
        """Return whether the training reached a step or an amount of the schedule after ``before``.

        Raises:
            ValueError: if the schedule has amounts of something that is not counted.

        Example:
            >>> schedule = Steps(tokens=(1000,))
            >>> first, second, third = Progress(1, tokens=512), Progress(2, tokens=1024), Progress(3, tokens=1536)
            >>> schedule.passed(first, second), schedule.passed(second, third)
            (True, False)
        """
        if self.following(before.step) <= now.step:
            return True
        for name, amounts in self.amounts.items():
            reached = getattr(now, name)
            earlier = getattr(before, name)
            if reached is None:
                raise ValueError(
                    f"the schedule has amounts of {name}, but your loop does not count {name}: pass `{name}` to "
                    "watcher.step (Trainer: include_num_input_tokens_seen; WatchCallback: `words`), or schedule steps"
                )
            if earlier is None:  # a continued run that does not know
                earlier = reached if before.step else 0
            if any(earlier < amount <= reached for amount in amounts):
                return True
        return False


def _amounts(name: str, given: Any) -> tuple[int, ...]:
    if given == "babylm" and name == "words":
        return BABYLM
    found = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    if not all(isinstance(n, Real) and float(n).is_integer() for n in found):
        raise TypeError(f"Steps.{name} is {given!r}: expected a list of whole numbers, such as [1e6, 1e7]")
    if any(n < 1 for n in found):
        raise ValueError(f"Steps.{name} has {min(found)}: expected amounts from 1")
    return tuple(int(n) for n in found)


@dataclass(frozen=True)
class Progress:
    """Progress of the training at an observation.

    Attributes:
        step: optimizer updates done.
        tokens: labelled tokens trained on so far, over all ranks; None without a ``RunState``, which counts them.
        learning_rate: learning rate of the first parameter group; None in evaluation of a plain module.
        words: words of the training text read so far, if they are counted.
        stage: number of the stage of the training to which the steps belong, if the checkpoint's name has one.
    """

    step: int
    tokens: int | None = None
    learning_rate: float | None = None
    words: int | None = None
    stage: int | None = None
