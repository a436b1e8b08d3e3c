"""The runs whose numbers are frozen: one for each family of models, with each observer that reads it.

``python -m tests.golden.runs`` writes the files of this folder, those of version 0.1 and of its run folder. They are
the reference of what every later version computes: write them again only for a number that was wrong, and say so.
"""

import hashlib
import json
import os
import platform
import shutil
import sys
from pathlib import Path
from unittest import mock

import lightning as L
import pandas as pd
import torch
import yaml

import lmdyn.callbacks
from lmdyn.callbacks.observing.run import snake_case
from lmdyn.cli.__main__ import main
from lmdyn.runs.store import ObservationStore
from tests.helpers.recorded import logged_tags

HERE = Path(__file__).parent
RUN = "lstm_run"  # the folder of a run, as version 0.1 left it
LAST = Path("checkpoints", "step=000000046.ckpt")
STEPS = 3
SCHEDULE = {"at": [0, STEPS], "last": False}

GRAMMAR = {
    "n_train_tokens": 1200, "n_validation_tokens": 400, "n_test_tokens": 100, "n_topics": 3, "n_nouns": 24,
    "n_verbs": 12, "n_adjectives": 8, "n_adverbs": 4, "n_names": 20, "n_facts": 8,
}  # fmt: skip
FACTS = {**GRAMMAR, "fact_rate": 0.3}
PIECES = {**FACTS, "vocabulary": "wordpiece", "vocab_size": 200}
ROWS = {"batch_size": 8, "sequence_length": 24}


def object_of(class_path: str, **arguments: object) -> dict[str, object]:
    return {"class_path": class_path, "init_args": arguments}


CORPUS = object_of("GrammarCorpus", **FACTS)
ADAM = {"optimizer": object_of("torch.optim.AdamW", lr=0.01), "warmup_steps": 3}
TASKS = object_of("GrammarTasks", n_train=32, n_evaluation=20, max_sequence_length=64, corpus=CORPUS)
SHORT_FIT = {"budget": {"max_updates": 2}}

# The arguments of each observer; a few of them differ between families, below.
OBSERVERS = {
    "AttentionPatterns": {"max_tokens": 300, "size": 4},
    "Choices": {
        "probe": object_of(
            "ChoiceFiles", files="tests/golden/pairs.jsonl", group="{UID}",
            options=["{sentence_good}", "{sentence_bad}"],
        ),
    },
    "Curvature": {"max_tokens": 100, "eigenvalues": 2, "probes": 2, "tolerance": 0.1},
    "DepthPerformance": {
        "times": [0, 2, 3], "training": {"updates": 3}, "batch_rows": 4, "fine_tuned_times": [1], **SHORT_FIT,
        "tasks": TASKS,
    },
    "DiagnosticProbe": {
        "tasks": ["upos", "topic"], "train_tokens": 400, "description_length": True, "shuffled": True, "bootstrap": 5,
        "classifier": {"epochs": 2},
    },
    "Downstream": {**SHORT_FIT, "probe": TASKS},
    "EdgeProbe": {
        "train_tokens": 200, "classifier": {"max_updates": 10, "evaluate_every": 5},
        "probe": object_of("SpanCorpus", corpus=CORPUS),
    },
    "EncoderDynamics": {
        "length": 8, "lengths": [6], "sentences": 4, "short_term": {"steps": 10, "dimension_times": [0, 5]},
        "long_term": {"steps": 20, "tau": 5, "check": 1, "check_steps": 10, "max_period": 4}, "examples": 2,
        "numerics": {"threshold": 1e-3, "dtype": "float64"},
    },
    "Geometry": {"attention_sites": "auto", "max_tokens": 400, "max_samples": 100, "alpha_range": [2, None]},
    "Handwriting": {"starts": 4, "lengths": 20, "probe": TASKS},
    "Induction": {"length": 8, "sequences": 8, "max_tokens": 200},
    "Interdependence": {"max_distance": 2, "min_pairs": 5},
    "Landscape": {
        "reference": {"before": {"class_path": "Previous"}}, "points": 3, "match": True, "plane": "random",
        "plane_size": 3, "bootstrap": 5, "max_tokens": 200,
    },
    "LearningCurves": {"layers": ["upos", "semtag_coarse"], "bands": [5, 50]},
    "LoopConvergence": {"horizon": 5, "times": [0, 1, 4], "max_tokens": 100},
    "LossChangeAllocation": {"max_tokens": 200, "layers": ["upos"], "bands": [5, 50], "most_points": 5},
    "MinimalPairs": {"probe": object_of("PairFiles", files="tests/golden/pairs.jsonl"), "ties": "draw"},
    "NgramDivergence": {"order": 3, "max_tokens": 200, "drawn_tokens": 60},
    "Reading": {"probe": object_of("ReadingFiles", files="tests/golden/reading.csv")},
    "ScaffoldRule": {"instances": 10, "context": 4},
    "Similarity": {
        "reference": {"before": {"class_path": "Previous"}, "itself": {"class_path": "Itself"}},
        "measures": ["cca", "svcca", "svcca_2", "pwcca", "linear_cka", "debiased_linear_cka", "procrustes",
                     "kernel_cka", "rsa"],
        "max_samples": 50, "bootstrap": 4, "jackknife": 64,
    },
    "Sparsity": {"matched_size": 4, "matched_tolerance": 0.5, "class_min_count": 40, "min_count": 15},
    "Surprisals": {"least_contexts": 2, "least_context_tokens": 3, "most_words": 20, "most_contexts": 6},
    "TokenLearning": {
        "max_words": 20, "bands": [[5, 20], [30, 90]], "probe": object_of("SpanCorpus", tasks=[], corpus=CORPUS),
    },
    "TowerPreference": {
        "training": {"updates": 3}, "batch_rows": 4, "min_count": 5, "previous": True, "second_seed": 1,
    },
    "Trajectory": {"words": 8, "min_count": 3, "max_tokens": 400},
    "WeightSpectra": {"gradients": True, "singular_values": 2},
    "WordClusters": {"words": 40, "components": 3, "max_iterations": 50, "matrix_words": 10},
    "WorldKnowledge": {
        "probe": object_of("FactCorpus", source=object_of("GrammarFacts", corpus=CORPUS, template="both")),
    },
}  # fmt: skip
# … where they differ between families
OF_FAMILY = {
    ("recurrent", "Geometry"): {"max_tokens": 400, "max_samples": 100, "alpha_range": [2, None]},
    ("masked", "LearningCurves"): {"bands": [5, 50]},
    ("masked", "LossChangeAllocation"): {"max_tokens": 200},
    ("masked", "Sparsity"): {"matched_size": None, "pos_classes": False, "min_count": 5},
}
COMMON = (
    "Choices", "Curvature", "DiagnosticProbe", "Geometry", "Landscape", "LearningCurves", "LossChangeAllocation",
    "MinimalPairs", "NgramDivergence", "Reading", "Similarity", "Sparsity", "Surprisals", "Trajectory", "WeightSpectra",
)  # fmt: skip
ENCODER = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
WORDS = object_of("GrammarCorpus", **GRAMMAR, **ROWS)
MASKED = {"corpus": object_of("GrammarCorpus", **PIECES), **ROWS}

FAMILIES = {
    "recurrent": {
        "model": object_of(
            "LSTMLanguageModel", embedding_size=12, hidden_size=12, dropout=0.3, anneal_factor=1.5
        ),
        "data": WORDS,
        "observers": (*COMMON, "Interdependence"),
    },
    "scaffold": {
        "model": object_of("LSTMLanguageModel", embedding_size=8, hidden_size=8),
        "data": object_of(
            "ScaffoldCorpus", familiar=True, length=2, n_rules=20, n_phrases=10, n_outside=5, n_types=20,
            n_train_tokens=1200, n_validation_tokens=400, n_test_tokens=100, **ROWS,
        ),
        "observers": ("ScaffoldRule",),
    },
    "causal": {
        "model": object_of(
            "CausalLanguageModel", config={"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 32}, **ADAM
        ),
        "data": WORDS,
        "observers": (*COMMON, "AttentionPatterns", "Induction"),
    },
    "looped": {
        "model": object_of(
            "LoopedLanguageModel", depth=3,
            config={**ENCODER, "hidden_size": 8, "max_position_embeddings": 32}, **ADAM,
        ),
        "data": WORDS,
        "observers": ("LearningCurves", "LoopConvergence"),
    },
    "masked": {
        "model": object_of(
            "MaskedLanguageModel", family="albert", **ADAM,
            config={**ENCODER, "embedding_size": 8, "num_hidden_layers": 2, "max_position_embeddings": 128},
        ),
        "data": object_of("PretrainingCorpus", pairs="order", **MASKED),
        "observers": (
            "AttentionPatterns", "Choices", "Curvature", "DepthPerformance", "Downstream", "EdgeProbe",
            "EncoderDynamics", "Geometry", "Handwriting", "Landscape", "LearningCurves", "LoopConvergence",
            "LossChangeAllocation", "MinimalPairs", "NgramDivergence", "Reading", "Similarity", "Sparsity",
            "Surprisals", "TokenLearning", "Trajectory", "WeightSpectra", "WorldKnowledge",
        ),
    },
    "towers": {
        "model": object_of(
            "TwoTowerLanguageModel", tower="bert", hidden_size=8, num_layers=1, intermediate_size=16,
            max_position_embeddings=24, **ADAM,
        ),
        "data": object_of("PretrainingCorpus", **MASKED),
        "observers": ("TowerPreference", "WordClusters"),
    },
}  # fmt: skip


class RoundedStart(L.Callback):
    """Weights are rounded before training, so that they are the same numbers on each machine."""

    def on_fit_start(self, trainer, module):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(4096).round_().div_(4096)


def configuration(family: str, folder: Path) -> Path:
    """The file of a family's run: three updates in float64, observed before the first and after the last."""
    made = FAMILIES[family]
    given = {name: OF_FAMILY.get((family, name), OBSERVERS[name]) for name in made["observers"]}
    every = {"schedule": SCHEDULE, "log_figures": False}
    observers = [object_of(name, **arguments, **every) for name, arguments in given.items()]
    saver = object_of("ScheduledCheckpoint", schedule=SCHEDULE)
    logger = object_of("TensorBoardLogger", save_dir=str(folder), name=None, version="run")
    content = {
        "seed_everything": 3,
        "trainer": {
            "max_steps": STEPS, "max_epochs": -1, "limit_val_batches": 0, "precision": "64-true", "accelerator": "cpu",
            "devices": 1, "enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1,
            "logger": logger, "callbacks": [object_of("tests.golden.runs.RoundedStart"), *observers, saver],
        },
        "model": made["model"],
        "data": made["data"],
    }  # fmt: skip
    path = folder / "in.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def observe(family: str, folder: Path) -> Path:
    """Train and observe; returns the run's folder."""
    with mock.patch("lmdyn.cli.report.write_report"):
        main(["fit", "--config", str(configuration(family, folder))])
    return folder / "run"


def saved_arguments(file: Path) -> dict[str, object]:
    """The arguments of each observer in a saved configuration."""
    callbacks = yaml.safe_load(file.read_text(encoding="utf-8"))["trainer"]["callbacks"]
    named = {each["class_path"].rpartition(".")[2]: each.get("init_args", {}) for each in callbacks}
    return {name: named[name] for name in named if name in OBSERVERS}


def table(run: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(run / "observations" / snake_case(name))


def described(family: str, run: Path) -> dict[str, object]:
    """What there is to a run's observations apart from the tables: arguments, settings, tags."""
    found = {}
    for name in FAMILIES[family]["observers"]:
        folder = run / "observations" / snake_case(name)
        found[name] = {
            "arguments": saved_arguments(run / "config.yaml")[name],
            "settings": ObservationStore(folder).about()["settings"],
            "tags": sorted(logged_tags(getattr(lmdyn.callbacks, name), folder)),
        }
    return found


def write(family: str) -> None:
    scratch = HERE / "scratch"
    scratch.mkdir()
    try:
        run = observe(family, scratch)
        shutil.rmtree(HERE / family, ignore_errors=True)
        (HERE / family).mkdir()
        for name, about in described(family, run).items():
            path = HERE / family / f"{snake_case(name)}.parquet"
            table(run, name).to_parquet(path, compression="zstd", compression_level=19)
            text = yaml.safe_dump(about, sort_keys=True, width=110)
            path.with_suffix(".yaml").write_text(text, encoding="utf-8")
    finally:
        shutil.rmtree(scratch)


SPARSE = {"at": [0, 20], "last": True}
KEPT = {  # the configuration of the run folder
    "seed_everything": 1,
    "trainer": {
        "accelerator": "cpu", "devices": 1, "max_epochs": 2, "num_sanity_val_steps": 0, "enable_model_summary": False,
        "enable_progress_bar": False,
        "logger": object_of("TensorBoardLogger", save_dir=".", name="", version=RUN, default_hp_metric=False),
        "callbacks": [
            object_of("ScheduledCheckpoint", schedule=SPARSE),
            object_of("ScheduledCheckpoint", schedule={"at": [30], "last": False}, weights_only=False),
            object_of("Sparsity", schedule=SPARSE, matched_size=None, class_min_count=5),
            object_of("LearningCurves", schedule=SPARSE, layers=["upos"], bands=[5]),
            object_of(
                "Similarity", schedule=SPARSE, reference={"start": {"class_path": "Previous"}}, measures=["svcca"]
            ),
        ],
    },
    "model": object_of("LSTMLanguageModel", embedding_size=8, hidden_size=8, num_layers=2, dropout=0.2),
    "data": object_of(
        "GrammarCorpus", n_train_tokens=1600, n_validation_tokens=300, n_test_tokens=50, batch_size=4,
        sequence_length=20, n_topics=3, n_nouns=30, n_verbs=15, n_adjectives=10, n_adverbs=3, n_names=10, n_facts=5,
    ),
}  # fmt: skip


def write_run() -> None:
    os.chdir(HERE)
    shutil.rmtree(RUN, ignore_errors=True)
    Path("in.yaml").write_text(yaml.safe_dump(KEPT), encoding="utf-8")
    main(["fit", "--config", "in.yaml"])
    Path("in.yaml").unlink()
    shutil.rmtree(Path(RUN, "report"))
    for events in Path(RUN).glob("events.out.*"):
        events.unlink()
    provenance = Path(RUN, "provenance.json")
    content = json.loads(provenance.read_text(encoding="utf-8"))
    for session in content["sessions"]:
        session.update(host="host", command=["lmdyn", "fit", "--config", "in.yaml"])
    # which reads what is here
    content["claims"] = {"saphra2019_sparsity": content["claims"]["saphra2019_sparsity"]}
    provenance.write_text(json.dumps(content, indent=1), encoding="utf-8")
    Path(f"{RUN}.json").write_text(json.dumps({**machine(), "sha256": digest(Path(RUN, LAST))}) + "\n")


def machine() -> dict[str, str]:
    """What the last bits of a number depend on."""
    return {
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "arch": platform.machine(),
    }


def digest(checkpoint: Path) -> str:
    """Of the names and bytes of the weights."""
    made = hashlib.sha256()
    for name, value in sorted(torch.load(checkpoint, weights_only=True)["state_dict"].items()):
        made.update(name.encode() + value.numpy().tobytes())
    return made.hexdigest()


if __name__ == "__main__":
    for each in sys.argv[1:] or (*FAMILIES, RUN):
        write_run() if each == RUN else write(each)
