"""How long does a report of many observations take, and how much memory?

Question: 10 observers × 1,000 steps: a report within 60 s. The observations are those of two tiny runs, by ten classes
of lmdyn, their rows copied under other steps with other values and written by its own writer. The report is made by
the command, in a process of its own; its seconds are those after the imports, its memory is the most that the process
holds (looked at every 50 ms). Also: what a write takes beside so many files, and a read of one observer by claims.

Run: ``python benchmarks/many_observations.py`` (``--smoke`` for seconds)
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import yaml
from common import machine, quiet, table

from lmdyn.cli.__main__ import main as lmdyn
from lmdyn.runs.store import ObservationStore

REPORT_S = 60.0
REAL = 4  # steps that are really observed

GRAMMAR = {
    "n_train_tokens": 2000, "n_validation_tokens": 600, "n_test_tokens": 100, "n_nouns": 40, "n_verbs": 30,
    "n_adjectives": 20, "n_adverbs": 10, "n_names": 20, "n_facts": 10,
}  # fmt: skip
FACTS = {**GRAMMAR, "fact_rate": 0.3}


def of(class_path: str, **arguments: object) -> dict[str, object]:
    """An object in yaml."""
    return {"class_path": class_path, "init_args": arguments}


CORPUS = of("GrammarCorpus", **FACTS)
RUNS = {
    "lstm": {
        "model": of("LSTMLanguageModel", embedding_size=12, hidden_size=12),
        "data": of("GrammarCorpus", **GRAMMAR, batch_size=8, sequence_length=20),
        "observers": {
            "LearningCurves": {"layers": ["upos", "semtag_coarse"], "bands": [5, 50]},
            "Sparsity": {"matched_size": 4, "matched_tolerance": 0.5, "class_min_count": 5},
            "Similarity": {"reference": {"itself": {"class_path": "Itself"}}, "bootstrap": 4, "jackknife": 64},
            "DiagnosticProbe": {
                "tasks": ["upos", "topic"], "train_tokens": 600, "bootstrap": 5, "classifier": {"epochs": 1},
            },
            "Interdependence": {"max_distance": 3, "min_pairs": 5},
        },
    },
    "albert": {
        "model": of(
            "MaskedLanguageModel",
            family="albert",
            config={
                "embedding_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
                "num_attention_heads": 2, "max_position_embeddings": 128,
            },
            optimizer=of("torch.optim.AdamW", lr=0.01),
            warmup_steps=3,
        ),
        "data": of(
            "PretrainingCorpus",
            corpus=of("GrammarCorpus", **FACTS, vocabulary="wordpiece", vocab_size=300),
            sequence_length=24, batch_size=8, pairs="order",
        ),
        "observers": {
            "TokenLearning": {
                "max_words": 40, "bands": [[5, 20], [30, 90]], "probe": of("SpanCorpus", tasks=[], corpus=CORPUS),
            },
            "EdgeProbe": {
                "train_tokens": 300, "classifier": {"max_updates": 20, "evaluate_every": 10},
                "probe": of("SpanCorpus", corpus=CORPUS),
            },
            "WorldKnowledge": {
                "probe": of("FactCorpus", source=of("GrammarFacts", corpus=CORPUS, template="both")),
            },
            "AttentionPatterns": {"max_tokens": 600, "size": 8},
            "EncoderDynamics": {
                "length": 12, "lengths": [8], "sentences": 6,
                "short_term": {"steps": 20, "dimension_times": [0, 10]}, "long_term": {"steps": 60, "tau": 5},
            },
        },
    },
}  # fmt: skip


def observed(folder: Path, *, few: bool) -> list[Path]:
    """The folders of observations of the tiny runs, or only of two observers."""
    runs = RUNS
    if few:
        observers = dict(list(RUNS["lstm"]["observers"].items())[:2])
        runs = {"lstm": {**RUNS["lstm"], "observers": observers}}
    for name, run in runs.items():
        observers = [
            of(cls, **arguments, schedule={"at": list(range(REAL)), "last": False}, log_figures=False)
            for cls, arguments in run["observers"].items()
        ]
        logger = of("CSVLogger", save_dir=str(folder), name=None, version=name)
        config = {
            "seed_everything": 3, "model": run["model"], "data": run["data"],
            "trainer": {
                "max_steps": REAL, "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False,
                "log_every_n_steps": 1, "limit_val_batches": 0, "logger": logger, "callbacks": observers,
            },
        }  # fmt: skip
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
        with mock.patch("lmdyn.cli.report.write_report"):
            lmdyn(["fit", "--config", str(folder / f"{name}.yaml")])
    return sorted(p for name in runs for p in (folder / name / "observations").iterdir())


def write_many(sources: list[Path], run: Path, steps: int) -> dict[str, int]:
    """Observations of very many steps; rows of each observer."""
    rows = {}
    random = np.random.default_rng(0)
    with mock.patch("lmdyn.runs.atomic_files._to_disk"):  # not what is measured
        for source in sources:
            there = ObservationStore(source)
            about = there.about()
            tables = [table for _, table in there.read().groupby("step")]
            store = ObservationStore(run / "observations" / source.name, about["observer"], about["settings"])
            rows[source.name] = 0
            for i in range(steps):
                table = tables[i % len(tables)]
                noise = 1 + 0.02 * random.standard_normal(len(table))  # else it takes no room on the disk
                noise[table["quantity"].eq("learning_rate").to_numpy()] = 1
                store.write(10 * i, table.assign(step=10 * i, tokens=160 * i, value=table["value"] * noise))
                rows[source.name] += len(table)
    return rows


CHILD = """
import json, os, sys, time
from pathlib import Path
import lmdyn.callbacks
{imports}
began, before = time.monotonic(), os.times()
{work}
used = sum(now - then for now, then in zip(os.times()[:4], before[:4]))  # also of processes that have ended
print(json.dumps([time.monotonic() - began, used]))
"""
REPORT = (
    "import lmdyn.cli.report\nfrom lmdyn.cli.__main__ import main",
    "main(['report', sys.argv[1]])",
)
CLAIMS = (
    "from lmdyn.runs.observed_run import RunFolder",
    "RunFolder(sys.argv[1]).read('sparsity', quantities=('rho_gradient',))",
)


def child(what: tuple[str, str], run: Path) -> list[str]:
    """Seconds after the imports, by the clock and of CPU time, and peak GB, of a process of its own."""
    code = CHILD.format(imports=what[0], work=what[1])
    # cwd: the directory of this repository comes first on sys.path for -c
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(run)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[1], env={**os.environ, "LMDYN_TRACEBACK": "1"},
    )  # fmt: skip
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, held_gb(process.pid))
        time.sleep(0.05)
    out, errors = process.communicate()
    if process.returncode or "Traceback" in errors:
        raise RuntimeError(errors)
    seconds, cpu = json.loads(out.splitlines()[-1])
    return [f"{seconds:.1f}", f"{cpu:.1f}", f"{peak:.2f}"]


def held_gb(process: int) -> float:
    """What a process holds in memory, with what those that it started hold of their own."""
    try:
        started = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        kb = _kb(process, "Rss")
        return (kb + sum(_kb(int(child), "Private_Clean", "Private_Dirty") for child in started)) / 1e6
    except (OSError, IndexError):  # one has ended meanwhile
        return 0.0


def _kb(process: int, *names: str) -> float:
    about = Path(f"/proc/{process}/smaps_rollup").read_text()
    return sum(float(about.partition(f"\n{name}:")[2].split()[0]) for name in names)


def one_more(folder: Path) -> float:
    """Write an observation beside all that is there, after the last step; its seconds."""
    store = ObservationStore(folder)
    about, step = store.about(), store.steps()[-1] + 10
    last = pd.read_parquet(store.path(step - 10))
    writer = ObservationStore(store.folder, about["observer"], about["settings"])
    writer.check_settings()
    began = time.monotonic()
    writer.write(step, last.assign(step=step, tokens=16 * step))
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="keep the run there, and use what is there")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    if args.smoke:
        args.steps = 6
    quiet()
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = args.folder or Path(name)
        run = folder / "run"
        if not run.is_dir():
            folder.mkdir(exist_ok=True)
            rows = write_many(observed(folder, few=args.smoke), run, args.steps)
            (folder / "rows.json").write_text(json.dumps(rows))
        rows = json.loads((folder / "rows.json").read_text())
        n = f"{len(rows)} observers × {args.steps:,} steps, {sum(rows.values()):,} rows"
        results.append([f"a report of {n}", *child(REPORT, run), f"{REPORT_S:g} s"])
        sparsity = run / "observations" / "sparsity"
        one_more(sparsity)
        seconds = one_more(sparsity)
        results.append(["a write of an observation beside them", f"{seconds:.4f}", "", "", ""])
        results.append(["claims read a quantity of Sparsity", *child(CLAIMS, run), ""])
    print(machine())
    print(table(["many observations", "seconds", "CPU seconds", "peak GB", "goal"], results))


if __name__ == "__main__":
    main()
