"""The page that shows which observers run on which architectures, and why the other observers do not run.

``python -m tests.helpers.architecture_table`` runs every observer on every architecture, and writes
``docs/architectures.md``. The command takes minutes.
"""

import linecache
import re
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from lmdyn import datamodules as D
from lmdyn.analysis.probing.edge_probes import EdgeClassifier
from lmdyn.analysis.probing.probes import DiagnosticClassifier
from lmdyn.analysis.probing.tower_heads import HeadTraining
from lmdyn.callbacks import DynamicsNumerics, LongTerm, Observer, ShortTerm
from lmdyn.callbacks.observing.recording import observe_together
from lmdyn.callbacks.observing.run import Run, snake_case
from lmdyn.callbacks.training.fine_tuning import Budget
from tests.helpers.architectures import ARCHITECTURES, MASKED, VOCABULARY
from tests.helpers.recorded import exported

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"

LEXICON = {
    "n_train_tokens": 1500, "n_validation_tokens": 800, "n_test_tokens": 100, "n_nouns": 10, "n_verbs": 10,
    "n_adjectives": 10, "n_adverbs": 10, "n_names": 10, "n_facts": 8, "fact_rate": 0.3,
}  # fmt: skip
WORDPIECE = {**LEXICON, "vocabulary": "wordpiece", "vocab_size": VOCABULARY}


def pieces() -> D.GrammarCorpus:
    return D.GrammarCorpus(**WORDPIECE)


def words() -> D.GrammarCorpus:
    return D.GrammarCorpus(**LEXICON, batch_size=4, sequence_length=16)


def tasks() -> D.GrammarTasks:
    return D.GrammarTasks(pieces(), n_train=40, n_evaluation=20, max_sequence_length=60)


SMALL_DYNAMICS: dict[str, Any] = {
    "length": 12, "lengths": [8], "sentences": 3, "short_term": ShortTerm(steps=20, dimension_times=[0, 10]),
    "long_term": LongTerm(steps=60, tau=10, check=1, check_steps=20, max_period=4, transverse_skip=0),
    "examples": 1, "numerics": DynamicsNumerics(threshold=1e-3),
}  # fmt: skip

# Arguments of each observer that differ from its defaults: small budgets, and data that suits the observer.
OBSERVERS: dict[str, Callable[[], dict[str, Any]]] = {
    "Sparsity": lambda: {"class_min_count": 5},
    "LearningCurves": lambda: {},
    "Similarity": lambda: {},
    "DiagnosticProbe": lambda: {"train_tokens": 300, "classifier": DiagnosticClassifier(epochs=2)},
    "Interdependence": lambda: {"max_distance": 2, "min_pairs": 10, "max_tokens": 300},
    "ScaffoldRule": lambda: {"instances": 10, "context": 4},
    "TokenLearning": lambda: {"max_words": 20, "probe": D.SpanCorpus(pieces(), tasks=[])},
    "EdgeProbe": lambda: {
        "train_tokens": 150, "classifier": EdgeClassifier(max_updates=10, evaluate_every=10),
        "probe": D.SpanCorpus(pieces()),
    },
    "WorldKnowledge": lambda: {"probe": D.FactCorpus(D.GrammarFacts(pieces()))},
    "Surprisals": lambda: {"least_contexts": 2, "least_context_tokens": 2},
    "MinimalPairs": lambda: {"probe": D.PairFiles("tests/golden/pairs.jsonl"), "most": 2},
    "Choices": lambda: {
        "probe": D.ChoiceFiles("tests/golden/pairs.jsonl", ["{sentence_good}", "{sentence_bad}"]), "most": 2
    },
    "Reading": lambda: {"probe": D.ReadingFiles("tests/golden/reading.csv")},
    "NgramDivergence": lambda: {"order": 3, "max_tokens": 200, "drawn_tokens": 60},
    "AttentionPatterns": lambda: {"max_tokens": 200, "size": 8},
    "Geometry": lambda: {"max_tokens": 200, "max_samples": 40},
    "Trajectory": lambda: {"max_tokens": 200, "words": 4, "min_count": 2},
    "Downstream": lambda: {"budget": Budget(max_updates=1), "tasks": ["acceptability"], "probe": tasks()},
    "EncoderDynamics": lambda: SMALL_DYNAMICS,
    "LoopConvergence": lambda: {"horizon": 4, "max_tokens": 100},
    "DepthPerformance": lambda: {"times": [0, 2], "training": HeadTraining(updates=3), "batch_rows": 4},
    "Handwriting": lambda: {"starts": 4, "lengths": 12, "probe": tasks()},
    "TowerPreference": lambda: {"training": HeadTraining(updates=3), "batch_rows": 4, "min_count": 1, "top": 10},
    "Induction": lambda: {"sequences": 20, "max_tokens": 200},
    "WordClusters": lambda: {"words": 30, "components": 3, "matrix_words": 10},
    "Landscape": lambda: {"reference": {}, "plane": "random", "plane_size": 3, "max_tokens": 60},
    "Curvature": lambda: {"max_tokens": 30, "eigenvalues": 1, "probes": 2, "tolerance": 0.5},
    "WeightSpectra": lambda: {"gradients": True},
    "LossChangeAllocation": lambda: {"allocation": "path", "max_tokens": 60, "bands": ()},
}  # fmt: skip


# The runs of masked models have rows without annotation: observers that need annotation get the annotated text.
FOR_MASKED: dict[str, Callable[[], dict[str, Any]]] = {
    "DiagnosticProbe": lambda: {"probe": pieces()},
    "Interdependence": lambda: {"probe": pieces()},
}


# Names of the submodules that an observer asks for.
PARTS = {"deep_lstm": {"embedding": "encoder", "lstm": "rnn", "decoder": "decoder"}}


def arguments_of(observer: str, architecture: str) -> dict[str, Any]:
    own = FOR_MASKED.get(observer, dict)() if architecture in MASKED else {}
    if observer == "Interdependence" and architecture not in PARTS:
        own |= {"backend": "shapley", "samples": 4, "exact_up_to": 4, "max_length": 12, "longer": "skip"}
    if observer in ("Interdependence", "ScaffoldRule"):
        own |= PARTS.get(architecture, {})
    return {**OBSERVERS[observer](), **own}


# Quantities that may be NaN: sentences that never synchronize have no offset, and windows of one step have no error.
UNDEFINED = {
    "EncoderDynamics": (
        "full_map_exponent", "reduced_map_exponent", "sentence_offset", "sentence_switched_at",
        "synchronization_offset", "transverse_exponent",
        # no sentence has a chaotic transient; all start from one state, of which some loops do
        "mean_exponent", "sentence_exponent", "effective_dimension", "share_of_ceiling",
        # no transient ended; orbits that nothing had to be looked for in
        "escape_rate", "sentence_orbit_line_change",
    ),
    "Handwriting": ("nmse",),
}  # fmt: skip


PIECES = (
    "DepthPerformance", "Downstream", "EdgeProbe", "EncoderDynamics", "Handwriting", "TokenLearning", "WorldKnowledge",
)  # fmt: skip
"""Observers with data in word pieces, which need mask and separator tokens."""


@cache
def run_of(language: str) -> tuple[Any, pd.DataFrame | None, Any]:
    """Return tokenizer, counts and data of a run: on next words, on masked pieces, or on the scaffold's language."""
    data: Any
    if language == "words":
        data = words()
    elif language == "scaffold":
        data = D.ScaffoldCorpus(
            familiar=True, length=2, n_rules=10, n_phrases=6, n_outside=4, n_types=12, n_train_tokens=600,
            n_validation_tokens=300, n_test_tokens=100, batch_size=4, sequence_length=16,
        )  # fmt: skip
    else:
        data = D.PretrainingCorpus(pieces(), sequence_length=24, batch_size=4)
    data.prepare_data()
    data.setup("fit")
    assert len(data.tokenizer) <= VOCABULARY
    return data.tokenizer, data.token_counts, data


def language_of(observer: str, architecture: str) -> str:
    if observer == "ScaffoldRule":
        return "scaffold"
    return "pieces" if architecture in MASKED or observer in PIECES else "words"


class RawError(AssertionError):
    """An observer raised an error that lmdyn did not mean to raise, or gave values that are not finite."""


def refusal(error: Exception, whose: str, module: nn.Module) -> str:
    """Return the message of a refusal, with "the model" in place of the model's class.

    Raises:
        RawError: an error that lmdyn did not mean to raise.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    where = str(trace.tb_frame.f_globals.get("__name__"))
    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip()
    meant = where.startswith("lmdyn.") and line.startswith("raise ")
    if not isinstance(error, (ValueError, TypeError)) or not meant or len(str(error)) < 40:
        raise RawError(f"{whose}: {type(error).__name__} in {where}, `{line}`: {error}") from error
    text = str(error).removeprefix(f"{snake_case(whose)}: ")
    for name in {
        type(m).__name__
        for m in module.modules()
        if type(m).__module__.startswith(("transformers.", "tests."))
    }:
        text = re.sub(rf"\b{name}\b", "the model", text)
    return " ".join(text.split())


def measure(architecture: str) -> dict[str, str]:
    """Return why each observer does not run on an architecture, empty if it does; those that run share one pass.

    Raises:
        RawError: if an observer raises an error that lmdyn did not mean to raise, or gives values that are not finite.
    """
    module = ARCHITECTURES[architecture]()
    cells: dict[str, str] = {}
    ready: dict[str, Observer] = {}
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, cls in exported().items():
            tokenizer, counts, data = run_of(language_of(name, architecture))
            try:
                observer = cls(**arguments_of(name, architecture), log_figures=False)
                observer.attach(Run(Path(folder), tokenizer, counts, data))
                observer.bind(module)
                ready[name] = observer
            except Exception as error:
                try:
                    cells[name] = refusal(error, name, module)
                except RawError as raw:
                    problems.append(str(raw))
        tables = observe_together([*ready.values()], module, 0)
        for name, found in zip(ready, tables, strict=True):
            cells[name] = ""
            values = found["value"].to_numpy(float)
            absent = np.isnan(values) & found["quantity"].isin(UNDEFINED.get(name, ()))
            wrong = found[~np.isfinite(values) & ~absent]
            if found.empty or len(wrong):
                which = sorted(set(wrong["quantity"]))
                problems.append(
                    f"{name}: {len(wrong)} of {len(found)} values are no finite numbers, of {which}"
                )
    if problems:
        raise RawError(f"{architecture}: " + "; ".join(problems))
    return {name: cells[name] for name in exported()}


# ---------------------------------------------------------------- the page

Table = Mapping[str, Mapping[str, str]]


def page(table: Table) -> str:
    """Return the page of a table, with the introduction of the existing page."""
    observers = [*next(iter(table.values()))]
    reasons: dict[tuple[str, str], int] = {}
    for observer in observers:
        for cells in table.values():
            if reason := cells[observer]:
                reasons.setdefault((observer, reason), len(reasons) + 1)

    def cell(observer: str, reason: str) -> str:
        return f"no ({reasons[observer, reason]})" if reason else "yes"

    rows = [
        ["", *observers],
        ["---"] * (len(observers) + 1),
        *([name, *(cell(o, c) for o, c in cells.items())] for name, cells in table.items()),
    ]
    introduction = PAGE.read_text(encoding="utf-8").partition("\n|")[0]
    lines = [introduction, *(f"| {' | '.join(row)} |" for row in rows), "", "## Reasons", ""]
    for (observer, reason), number in reasons.items():
        lines.append(f"{number}. {observer}: {reason}")
    return "\n".join(lines) + "\n"


def read_page(text: str) -> dict[str, dict[str, str]]:
    """Return the table of a page."""
    reasons = {m[1]: m[2] for m in re.finditer(r"^(\d+)\. \w+: (.*)$", text, re.M)}
    rows = [
        [part.strip() for part in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"
    ]
    observers = rows[0][1:]

    def cell(written: str) -> str:
        match = re.fullmatch(r"no \((\d+)\)", written)
        if match is None and written != "yes":
            raise ValueError(f"expected 'yes' or 'no (number)', got {written!r}")
        return reasons[match[1]] if match else ""

    return {row[0]: dict(zip(observers, map(cell, row[1:]), strict=True)) for row in rows[2:]}


if __name__ == "__main__":
    PAGE.write_text(page({name: measure(name) for name in ARCHITECTURES}), encoding="utf-8")
