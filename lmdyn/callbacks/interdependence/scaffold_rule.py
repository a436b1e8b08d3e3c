"""Learning of a rule over a distance across a scaffold: probability, interdependence, gradients."""

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.inspection.predictions import hits
from lmdyn.analysis.interdependence.decomposition import Variant, contextual_decomposition
from lmdyn.analysis.interdependence.lstm_layers import initial_state, lstm_layers, run_layers, state_gradients
from lmdyn.analysis.interdependence.pairwise import relative_norm
from lmdyn.analysis.statistics.clustered import clustered_means
from lmdyn.analysis.statistics.distributed import all_reduce_sum, rank_and_world_size
from lmdyn.callbacks.interdependence.lstm_parts import LSTMParts
from lmdyn.callbacks.observing.checked_fields import From
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.panels import standard_figures
from lmdyn.callbacks.observing.protocols import RuleInstances, offers
from lmdyn.callbacks.observing.sums import Row, tabulate
from lmdyn.runs.schema import Quantity

__all__ = ["ScaffoldRule"]

_BATCH = 250  # instances per batch
_STATES: dict[str, Literal["hidden", "cell"]] = {"gradient": "hidden", "cell_gradient": "cell"}
_RULE = "<domain>/<scaffold>/length=<k>/rules=<n>"
_RULE_FOCUS = "<domain>/<scaffold>/<focus>/length=<k>/rules=<n>"
_of_rule = partial(Quantity, low=0.0, tags=(_RULE,))


def _line(panel: str, name: str, *focus: str, over: str = "") -> Quantity:
    high = 1.0 if name == "probability" else None
    return Quantity(
        name, "", low=0.0, high=high, panel=panel, over=over, lines="rule", where=(("focus", focus),)
    )


_FIGURES = (
    _line("probability", "probability", ""),
    _line("probability_open", "probability", "open"),
    _line("interdependence", "di", ""),
    _line("probability_prefix", "probability", "prefix", over="words"),
    *(_line(f"{q}_{of}", q, of, over="words") for q in _STATES for of in ("close", "all")),
    _line("probability_by_rules", "probability", "open", "scaffold", over="length"),
)


class ScaffoldRule(Observer):
    """Whether α … ω is learned, the basis of the prediction of ω, and the interdependence of α and the scaffold.

    For instances of the rule that were not in the text, with scaffolds of the training text (domain ``in``) and
    scaffolds drawn uniformly (``out``), each after ``context`` words of noise, means over instances:

    ``probability``: of ω after the scaffold. With empty ``focus`` it is the model's own; ``open`` has only α in
    focus, ``scaffold`` only the scaffold, ``prefix`` α and the first ``words`` words of the scaffold (0 is α
    alone). For words in focus it is softmax(W h_β), without the decoder's bias, at the position that predicts ω.

    ``di``: interdependence of α and the scaffold at this position.

    ``gradient``: ‖∂E/∂h‖ of the hidden state ``words`` words after α (0 is at α itself), with a fixed cell state. E is
    the error of ω alone (``focus`` is ``close``), or of all words from the first of the scaffold to ω (``all``), in
    nats. ``cell_gradient``: ‖dE/dc‖ of the cell state, with which the hidden state changes
    (:func:`~lmdyn.analysis.state_gradients`).

    ``accuracy``: share of the instances in which ω is the most probable word. ``rise``: the probability of ω with all
    in focus minus that with α alone. ``gradient_inside`` and ``cell_gradient_inside``: means over the scaffold's words.

    ``probability_inside``: of the scaffold's words after the first, from all before, if the language has a first use of
    the rule: what the model knows of the phrases.

    ``<quantity>_error`` is the standard error of each over instances; those of one scaffold are one cluster.

    ``site`` is the domain. Every row contains the language: ``length`` k, ``scaffold`` (``familiar``,
    ``unfamiliar`` or ``scrambled``) and ``rules`` n, so that observations of several runs can be combined.

    Args:
        instances: number of instances of the rule in each domain.
        context: number of words of noise before each.
        embedding: path of the module that maps ids to word vectors.
        lstm: path of the ``nn.LSTM`` or stack of LSTMs.
        decoder: path of the linear layer to logits.
        variant: relevant products: see :data:`~lmdyn.analysis.interdependence.decomposition.Variant`.
        **kwargs: see :class:`~lmdyn.callbacks.Observer`. The data is a
            :class:`~lmdyn.datamodules.ScaffoldCorpus`: the run's own, or ``probe``.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for data that is no ScaffoldCorpus, a tokenizer without its words, or missing modules.

    Reference: Saphra & Lopez 2020, section 4, figures 7 to 12 (Saphra 2021, chapter 5).
    """

    instances: Annotated[int, From(1)] = 1000
    context: Annotated[int, From(0)] = 20
    embedding: str = "embedding"
    lstm: str = "lstm"
    decoder: str = "decoder"
    variant: Variant = "published"

    uses_labels = False
    needs = (RuleInstances,)
    several_runs = True
    recorded = (
        _of_rule(
            "probability",
            "Mean probability of ω after the scaffold, from all words or from those in focus.",
            high=1.0,
            tags=(_RULE, _RULE_FOCUS),
        ),
        _of_rule(
            "probability_inside", "Mean probability of the words of the scaffold after its first.", high=1.0
        ),
        _of_rule("di", "Mean interdependence of α and the scaffold, where ω is predicted."),
        _of_rule("accuracy", "Share of instances with ω ranked first.", "share", high=1.0, better="higher"),
        _of_rule("rise", "P(ω) from all words minus P(ω) from α alone.", low=-1.0, high=1.0),
        _of_rule(
            "gradient_inside",
            "Mean of `gradient` over the words of the scaffold.",
            tags=(_RULE_FOCUS,),
        ),
        _of_rule("cell_gradient_inside", "Mean of `cell_gradient` over the scaffold.", tags=(_RULE_FOCUS,)),
        _of_rule("gradient", "Norm of ∂E/∂h for the hidden state h at α or a later word.", tags=()),
        _of_rule("cell_gradient", "Norm of dE/dc for the cell state c at α or a later word.", tags=()),
        _of_rule("<quantity>_error", "Standard error over instances, clustered by scaffold.", tags=()),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._parts = LSTMParts(self.embedding, self.lstm, self.decoder)

    def prepare(self) -> None:
        """Draw the instances."""
        data, own = self.data, self.run.datamodule
        if offers(own, RuleInstances) and own.content_key() != data.content_key():
            raise ValueError(
                f"{self.name}: the language of the probe differs from the language of the run: remove `probe`"
            )
        self._examples: dict[str, Tensor] = {
            d: data.examples(d, self.instances, self.context) for d in ("in", "out")
        }
        scaffold = "familiar" if data.familiar else "unfamiliar"
        scaffold = "scrambled" if getattr(data, "scrambled", False) else scaffold
        self._language = {"scaffold": scaffold, "length": data.length, "rules": data.n_rules}
        self._found |= self._language

    def check_module(self, module: nn.Module) -> None:
        """Raise an error for modules that are missing, or no LSTM."""
        self._parts.of(module, self.name)

    @torch.no_grad()
    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Measure all quantities in both domains, each rank for some of the instances."""
        row = self._examples["in"][:1, :-1]
        embedding, lstm, decoder = self._parts.checked(module, row, self.name, self.forward)
        assert decoder is not None
        device = decoder.weight.device
        rank, world_size = rank_and_world_size()
        rows: list[Row] = []
        for domain, examples in self._examples.items():
            names = list(self._look(embedding, lstm, decoder, examples[:1].to(device)))
            values = torch.zeros(len(names), len(examples), dtype=torch.float64, device=device)
            for at in torch.arange(len(examples)).split(_BATCH)[rank::world_size]:
                found = self._look(embedding, lstm, decoder, examples[at].to(device))
                values[:, at[0] : at[-1] + 1] = torch.stack([found[name].double() for name in names])
            each = all_reduce_sum(values).cpu().numpy()
            scaffold = torch.unique(examples[:, self.context + 1 : -1], dim=0, return_inverse=True)[1].numpy()
            for (quantity, focus, words), of in zip(names, each, strict=True):
                mean = clustered_means(of, np.zeros(len(of), dtype=np.int64), scaffold)
                place = {"site": domain, "focus": focus, "words": words, **self._language}
                numbers = {quantity: float(mean.mean[0]), f"{quantity}_error": float(mean.error[0])}
                rows.append((place, numbers))
        columns = {"scaffold": "", "focus": "", "words": int, "length": int, "rules": int}
        return tabulate(
            rows, columns, self.name, step, "the model diverged, or the probe has only one scaffold"
        )

    def _look(
        self, embedding: nn.Module, lstm: nn.Module, decoder: nn.Linear, ids: Tensor
    ) -> dict[tuple[str, str, int | None], Tensor]:
        """Return each quantity of each instance of a batch."""
        k = self._language["length"]
        layers = lstm_layers(lstm)
        before = embedding(ids[:, : self.context])
        state = initial_state(layers, before, None)
        if self.context:  # never in focus
            _, state = run_layers(layers, before, state)
        ids = ids[:, self.context :]
        vectors = embedding(ids[:, :-1])  # α and the scaffold; ω is predicted, not read
        time = torch.arange(k + 1, device=ids.device)
        focus = torch.stack([*(time <= i for i in range(k + 1)), time > 0])[:, None].expand(-1, len(ids), -1)
        parts = contextual_decomposition(lstm, vectors, focus, state, variant=self.variant)
        relevant = parts.relevant[-1][:, :, -1]  # (masks, instances, hidden) at the position that predicts ω
        close = ids[0, -1]
        p = nn.functional.linear(relevant, decoder.weight).softmax(-1)[..., close]
        hidden = (parts.relevant[-1][0] + parts.irrelevant[-1][0])[:, -1]
        joint, alone = relevant[k], relevant[0] + relevant[k + 1]
        logits = decoder(hidden)
        values: dict[tuple[str, str, int | None], Tensor] = {
            ("probability", "", None): logits.softmax(-1)[..., close],
            ("probability", "open", None): p[0],
            ("probability", "scaffold", None): p[k + 1],
            **{("probability", "prefix", i): p[i] for i in range(k + 1)},
            ("di", "", None): relative_norm(joint - alone, joint),
            ("accuracy", "", None): hits(logits, close.expand(len(logits))),
            ("rise", "", None): p[k] - p[0],
        }
        if getattr(self.data, "first_use", 0):
            of_all = decoder(parts.relevant[-1][0] + parts.irrelevant[-1][0]).softmax(-1)
            inside = of_all[:, 1:-1].gather(-1, ids[:, 2:-1, None])
            values["probability_inside", "", None] = inside.mean((1, 2))
        labels = {"close": ids[:, 1:].masked_fill(time < k, -100), "all": ids[:, 1:]}
        norms = {
            (quantity, of_error): state_gradients(lstm, decoder, vectors, labels[of_error], state, of)
            for (quantity, of), of_error in itertools.product(_STATES.items(), labels)
        }
        values |= {
            (f"{quantity}_inside", of_error, None): v[:, 1:].mean(1)
            for (quantity, of_error), v in norms.items()
        }
        for (quantity, of_error), v in norms.items():
            values |= {(quantity, of_error, i): v[:, i] for i in range(k + 1)}
        return values

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return the rows with one value per domain, except for errors."""
        return observations["words"].isna() & ~observations["quantity"].str.endswith("_error")

    @staticmethod
    def record_rows(observations: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows for a record of a run: all of the last observation, and those with one value per domain.

        For another variant than the published one, only the interdependence: the rest does not depend on the variant.
        """
        last = observations["step"].eq(observations["step"].max())
        kept = observations["words"].isna() | last
        if settings.get("variant", "published") != "published":
            kept &= observations["quantity"].isin(["di", "di_error"])
        return observations[kept]

    @classmethod
    def figures(cls, observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw figures 7 to 12 of the publication, for the existing runs: a line for each rule."""
        table = observations.drop(columns="run", errors="ignore")
        rule = table["scaffold"].astype(str) + table["rules"].map(", n = {:,.0f}".format)
        by_length = table.assign(rule=rule).drop(columns=["scaffold", "rules"])
        others = by_length.assign(rule=table["length"].map("k = {:.0f}, ".format) + rule).drop(
            columns="length"
        )
        drawn = (standard_figures(by_length if q.over == "length" else others, [q]) for q in _FIGURES)
        return {name: figure for figures in drawn for name, figure in figures.items()}
