"""Knowledge of a masked language model about the world, fact by fact, during training."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.inspection.forward import device_of
from lmdyn.analysis.inspection.predictions import logits_at
from lmdyn.analysis.statistics.distributed import gather, rank_and_world_size
from lmdyn.callbacks.observing.figures import spread_out
from lmdyn.callbacks.observing.findings import Foreseen, expected
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.panels import standard_figures
from lmdyn.callbacks.observing.probe import to_device
from lmdyn.callbacks.observing.protocols import HasFacts
from lmdyn.callbacks.observing.sums import Row, tabulate
from lmdyn.runs.schema import Quantity, select, wide

__all__ = ["WorldKnowledge"]

_EXAMPLES = 12  # facts of the table of predictions
_MOST_STEPS = 7  # its columns


_precision = partial(Quantity, unit="share", low=0.0, high=1.0, better="higher")


_OF_KINDS = ("", "<kind>", "<relation>")
_MEANS: dict[str, Any] = {
    "panel": "mean",
    "lines": "kind",
    "where": (("relation", ("",)),),
    "floor": "majority",
}


class WorldKnowledge(Observer):
    """Precision at 1 of cloze questions about facts: by relation, by kind of relation, and the mean over relations.

    The probe set is a ``FactCorpus``: questions with one mask. A fact is known if its object has the highest
    logit at the mask, in the whole vocabulary (``p_at_1``) or among the candidates (``p_at_1_candidates``; facts
    whose object is not a candidate are left out). The score of the relation's most frequent object is
    recorded for comparison (``majority``). Means are over facts within a relation, and over relations with equal
    weights above it. The means that include logits that are not finite are NaN.

    For each fact the records contain a row ``hit`` (1 or 0) with the ``prediction``, the first piece of the whole
    vocabulary. Facts gained and lost are those whose hit differs from the previous observation's; figures and
    report compute them from these rows.

    If the module's forward takes ``predict``, only the masked positions are projected to the vocabulary.

    Args:
        **kwargs: see :class:`~lmdyn.callbacks.Observer`; ``probe`` is required.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for a probe set without facts.

    Reference: Petroni et al. 2019; Chiang et al. 2020, section 6, figures 6 and 14, tables 8 and 9.
    """

    uses_labels = True
    reads = "masked"
    figure_rows = pc.field("quantity") != "hit"

    recorded = (
        _precision(
            "p_at_1",
            "Share of facts that the model knows in a relation, or the mean over all relations or a kind of relation.",
            tags=_OF_KINDS,
            **_MEANS,
        ),
        _precision(
            "p_at_1_candidates", "Share of facts known if only candidates compete.", tags=_OF_KINDS, **_MEANS
        ),
        _precision(
            "p_at_1_lowest",
            "Lowest p_at_1 of a wording of the questions; p_at_1 itself is the mean over wordings.",
            tags=("", "<relation>"),
        ),
        _precision(
            "p_at_1_highest", "Highest p_at_1 of a wording of the questions.", tags=("", "<relation>")
        ),
        _precision(
            "majority",
            "Share of correct answers if each answer is the relation's most frequent object.",
            better=None,
            tags=_OF_KINDS,
        ),
        Quantity("facts", "Number of questions.", "count", low=0.0, tags=("", "<relation>")),
        Quantity("known", "Number of questions with a correct answer.", "count", low=0.0, better="higher"),
        Quantity("hit", "1 if the answer is correct, else 0.", low=0.0, high=1.0, tags=()),
    )

    needs = (HasFacts,)

    def prepare(self) -> None:
        """Check the questions and select examples for figures."""
        if missing := [name for name in ("relation", "fact") if name not in self.probe_set.label_names]:
            raise ValueError(
                f"{self.name}: the `label_names` of the probe set lack {', '.join(missing)}: pass a FactCorpus as "
                "`probe`, or name each relation and each fact in `label_names`"
            )
        facts = self._facts
        self._found |= {"templates": facts.templates, "relation_kinds": facts.relation_kinds}
        self._found["candidates"] = len(facts.candidates)

    @property
    def _facts(self) -> HasFacts:
        return cast(HasFacts, self.probe_set.loader)

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report facts whose object is a token for unknown words, and candidates without any object."""
        objects = [int(o) for e in self._facts.examples for o in np.asarray(e["labels"]).ravel() if o >= 0]
        special = set(self.run.tokenizer.all_special_ids) if self.run.tokenizer is not None else set()
        unknown = sum(o in special for o in objects)
        if unknown:
            yield expected(
                "facts with a word of the vocabulary as object",
                f"{unknown} of {len(objects)} facts with a special token as object",
                "remove these facts, or train the tokenizer on text that contains the objects",
                stops=unknown == len(objects),
            )
        if not set(objects) & set(self._facts.candidates):
            yield expected(
                "objects among the candidates",
                f"none of {len(set(objects))}",
                "use the tokenizer for which the questions were made",
                stops=False,
            )

    def measure(self, module: Module, step: int) -> pd.DataFrame:
        """Evaluate all facts."""
        asked = self._ask(module, torch.tensor(self._facts.candidates))
        columns = dict.fromkeys(("kind", "relation", "fact", "prediction"), "")
        return tabulate(self._rows(asked), columns, self.name, step)

    @torch.no_grad()
    def _ask(self, module: Module, candidates: Tensor) -> pd.DataFrame:
        """Return a row for each question, of all ranks, in the order of the facts."""
        device = device_of(module)
        candidates = candidates.to(device)
        parts = []
        for batch in self.probe_set.batches(*rank_and_world_size()):
            batch = to_device(batch, device)
            masked = batch["labels"] >= 0
            if not (masked.sum(1) == 1).all():
                raise ValueError(f"{self.name}: expected one label other than -100 per row: use a FactCorpus")
            objects = batch["labels"][masked]
            logits = logits_at(module, batch, masked, self.forward).float()
            highest = logits.max(-1)
            columns = {
                **{name: batch[name] for name in ("example", "relation", "fact")},
                "wording": batch.get("wording", torch.zeros_like(batch["fact"])),
                "object": objects,
                "prediction": highest.indices,
                "hit": highest.indices == objects,
                "is_candidate": torch.isin(objects, candidates),
                "candidate_hit": candidates[logits[:, candidates].argmax(-1)] == objects,
                "broken": ~highest.values.isfinite(),
            }
            parts.append(pd.DataFrame({name: values.cpu().numpy() for name, values in columns.items()}))
        asked = pd.concat([part for of_rank in gather(parts) for part in of_rank])
        asked = asked.sort_values("example", ignore_index=True)
        hits = asked[["hit", "candidate_hit"]].astype(float)
        return asked.assign(**hits.mask(asked["broken"]))

    def _rows(self, asked: pd.DataFrame) -> Iterator[Row | pd.DataFrame]:
        """Yield numbers of facts, means over facts and over relations, and the answer to each question."""
        names = self.probe_set.label_names
        kinds = self._facts.relation_kinds
        # means are in the order of the names
        relations = pd.Series(pd.Categorical.from_codes(asked["relation"], pd.Index(names["relation"])))

        def of_relations(values: "pd.Series[float]", *further: "pd.Series[Any]") -> "pd.Series[float]":
            return values.groupby([relations[values.index], *further], observed=True).mean(skipna=False)

        yield {}, {"facts": len(asked), "known": asked["hit"].sum(skipna=False)}
        objects = asked["object"].groupby(relations, observed=True)
        for quantity, means in (
            ("p_at_1", of_relations(asked["hit"])),
            ("p_at_1_candidates", of_relations(asked["candidate_hit"][asked["is_candidate"]])),
            ("majority", objects.agg(lambda of: of.value_counts(normalize=True).max())),
        ):
            yield from (({"relation": str(r)}, {quantity: value}) for r, value in means.items())
            of_kind = means.groupby(means.index.map(kinds), sort=False, observed=True).mean(skipna=False)
            yield from (({"kind": str(kind)}, {quantity: value}) for kind, value in of_kind.items())
            if len(means):
                yield {}, {quantity: means.mean(skipna=False)}
        if asked["wording"].any():
            of_wordings = of_relations(asked["hit"], asked["wording"]).groupby(level=0, observed=True)
            for end, ends in (
                ("lowest", of_wordings.min(skipna=False)),
                ("highest", of_wordings.max(skipna=False)),
            ):
                yield from (({"relation": str(r)}, {f"p_at_1_{end}": value}) for r, value in ends.items())
                yield {}, {f"p_at_1_{end}": ends.mean(skipna=False)}
        yield from (({"relation": str(r)}, {"facts": number}) for r, number in objects.size().items())
        prediction = asked["prediction"].astype(str)
        if self.run.tokenizer is not None:
            prediction = pd.Series(self.run.tokenizer.convert_ids_to_tokens(asked["prediction"].tolist()))
        facts = np.array(names["fact"], dtype=object)[asked["fact"]]
        table = pd.DataFrame({"relation": relations.astype(str), "fact": facts, "value": asked["hit"]})
        yield table.assign(quantity="hit", prediction=prediction.mask(asked["broken"], ""))

    @classmethod
    def figures(cls, observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw precision on average and by relation."""
        of_relations = observations[observations["relation"].ne("")]
        by_relation = replace(cls.recorded[0], panel="by_relation", lines="relation", where=(), floor="")
        return super().figures(observations, settings) | standard_figures(of_relations, [by_relation])

    @staticmethod
    def tables(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
        """Return ``examples``: the predictions at some steps for the facts that are learned or forgotten most often."""
        steps = spread_out(sorted(observations["step"].unique()), _MOST_STEPS)
        answers = select(observations, quantity="hit", step=steps)
        turns = wide(answers, "step", ["relation", "fact"]).diff(axis=1).abs().sum(axis=1)
        chosen = turns[turns > 0].nlargest(_EXAMPLES).index
        table = answers.pivot(index=["relation", "fact"], columns="step", values="prediction")  # noqa: PD010 (text)
        return {"examples": table.loc[chosen].rename(columns=str).reset_index()} if len(chosen) else {}
