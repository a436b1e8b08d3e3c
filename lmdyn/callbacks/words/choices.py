"""Choices: how often a language model gives the right completion of a text the highest probability."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import pyarrow.compute as pc
from torch.nn import Module

from lmdyn.analysis.statistics.intervals import share_interval
from lmdyn.analysis.words.choices import choice_accuracy
from lmdyn.callbacks.observing.checked_fields import From
from lmdyn.callbacks.observing.findings import Foreseen
from lmdyn.callbacks.observing.protocols import HasChoices
from lmdyn.callbacks.observing.sums import Row, tabulate
from lmdyn.callbacks.words.scored_texts import ScoredTexts, first_row
from lmdyn.runs.schema import Quantity

__all__ = ["Choices"]

_share = partial(Quantity, unit="share", low=0.0, high=1.0, better="higher", tags=("", "<group>"))


class Choices(ScoredTexts):
    """Share of multiple-choice items of which the model gives the right option the highest probability.

    The probe has ``choices``, such as :class:`~lmdyn.datamodules.ChoiceFiles`. An option's score is the sum of the
    log-probabilities of its pieces after its prefix: of all pieces that end in the option, so that a piece of white
    space and a word counts. Beginnings that options share are read once by causal models that can continue. A masked
    model predicts each of these pieces under a mask, and ``mntp`` from the position before it. ``accuracy_by_token``
    divides scores by the number of their pieces.

    Of options with equal scores, each counts its share, or the first is chosen, or one is drawn. Items of one option
    are scored only. Accuracies that include logits that are not finite are NaN. Intervals are Wilson's, for other
    items.

    Args:
        scoring: ``causal``, ``masked`` or ``mntp``, by default causal or masked, as measured; for encoder-decoders
            ``enc_dec_mask`` or ``enc_dec_prefix``, see :func:`~lmdyn.analysis.surprisals`.
        pseudo: what is masked when a masked model predicts a piece.
        start: the token before a causal model's text; see :func:`~lmdyn.analysis.surprisals`.
        batch_tokens: maximum number of tokens of a batch.
        most: number of items of a group, the first ones; None for all.
        ties: what equal scores count: their ``share``, as if the ``first`` were chosen, or a ``draw``.
        seed: seed of the draws.
        probe: datamodule with ``choices``, required.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for data without choices, a run without tokenizer, an encoder-decoder, texts longer than the model
            can read (with file and line), or options without a predicted piece.

    Reference: EWoK: Ivanova et al. 2024; entity tracking: Kim & Schuster 2023; COMPS: Misra et al. 2023; by token:
        Brown et al. 2020, section 2.4.
    """

    most: Annotated[int, From(1)] | None = None
    ties: Literal["share", "first", "draw"] = "share"
    seed: int = 0

    needs = (HasChoices,)
    columns = {"group": "", "item": "", "option": int}
    figure_rows = pc.field("item") == ""
    recorded = (
        _share(
            "accuracy",
            "Share of items in which the right option has the highest probability.",
            panel="accuracy",
            lines="group",
            floor="chance",
            headline=True,
        ),
        Quantity(
            "accuracy_low", "Lower end of the 95 % interval of `accuracy`, over items.", "share", tags=()
        ),
        Quantity(
            "accuracy_high", "Upper end of the 95 % interval of `accuracy`, over items.", "share", tags=()
        ),
        _share(
            "accuracy_by_token",
            "Share of items in which the right option has the highest mean log-probability of its pieces.",
        ),
        _share("chance", "Accuracy of choosing an option at random.", better=None),
        Quantity("items", "Number of items.", "count", low=0.0, tags=("", "<group>")),
        Quantity("log_probability", "Log-probability of each option.", "nats", high=0.0, tags=()),
    )

    @property
    def content(self) -> Any:
        """The options, without where they are from."""
        return self.options.drop(columns=["file", "line"]).to_numpy().tolist()

    def prepare(self) -> None:
        """Read the items."""
        options = self.open_texts("a `probe` with choices, such as ChoiceFiles").choices.reset_index(
            drop=True
        )
        if self.most is not None:
            number = options.groupby("group")["item"].transform(lambda items: pd.factorize(items)[0])
            options = options[number < self.most].reset_index(drop=True)
        self.options = options
        self.items = pd.factorize(options["item"])[0]

    def check_module(self, module: Module) -> None:
        """Encode the options as the module reads them."""
        texts, begins = (self.options[name].tolist() for name in ("text", "begin"))
        self.encoded = self.encode(module, texts, begins)
        pieces = self.encoded.text[self.encoded.scored]
        self.pieces = np.bincount(pieces, minlength=len(self.options))

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report options that cannot be scored; the memory of logits."""
        yield from self.unscored(self.encoded, partial(first_row, self.options))
        yield from super().foresee(module)

    def measure(self, module: Module, step: int) -> pd.DataFrame:
        """Score the options, divided among ranks."""
        found = self.encoded.log_probabilities(module, self.batch_tokens)
        scores = np.bincount(
            self.encoded.text[self.encoded.scored],
            weights=found[self.encoded.scored],
            minlength=len(self.options),
        ).astype(np.float64)
        return tabulate(self._rows(scores), self.columns, self.name, step)

    def _rows(self, scores: "np.ndarray[Any, np.dtype[np.float64]]") -> Iterator[Row | pd.DataFrame]:
        right = self.options["right"].to_numpy(dtype=bool)
        numbers = {
            name: choice_accuracy(of, self.items, right, self.ties, self.seed)
            for name, of in {"accuracy": scores, "accuracy_by_token": scores / self.pieces}.items()
        }
        numbers["chance"] = 1 / np.bincount(self.items)
        items = pd.DataFrame({"group": self.options.drop_duplicates("item")["group"].to_numpy(), **numbers})
        items = items[items["chance"] < 1]  # others are scored only
        for group in dict.fromkeys(("", *items["group"])) if len(items) else ():
            of = items[items["group"].eq(group) | (group == "")]
            means = of[list(numbers)].mean(skipna=False)
            mean = float(means["accuracy"])
            low, high = share_interval(mean, len(of)) if np.isfinite(mean) else (mean, mean)
            ends = {"accuracy_low": low, "accuracy_high": high, "items": len(of)}
            yield {"group": group}, {**means.to_dict(), **ends}
        of_options = self.options[["group", "item", "option"]]
        yield of_options.assign(quantity="log_probability", value=scores)
