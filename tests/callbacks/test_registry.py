"""Every exported observer: invisible, live = replayed, logs what it documents, builds from yaml."""

import itertools
import re
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest
import torch
import yaml
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import lmdyn.callbacks
from lmdyn.callbacks import Observer
from lmdyn.callbacks.observing.figures import pixels
from lmdyn.callbacks.observing.loggers import log_figure
from lmdyn.callbacks.observing.run import snake_case
from lmdyn.cli.__main__ import main
from lmdyn.datamodules import GrammarCorpus, PretrainingCorpus
from lmdyn.runs.schema import declared
from lmdyn.runs.store import ObservationStore
from tests.helpers.figure_faults import figure_faults
from tests.helpers.recorded import UNITS, check_tags, check_values, exported, is_elsewhere

SCHEDULE = {"at": [0, 3], "epochs": True}

GRAMMAR = {
    "n_train_tokens": 2000, "n_validation_tokens": 600, "n_test_tokens": 100, "n_nouns": 40, "n_verbs": 30,
    "n_adjectives": 20, "n_adverbs": 10, "n_names": 20, "n_facts": 10,
}  # fmt: skip


def built(class_path: str, **arguments: object) -> dict[str, object]:
    return {"class_path": class_path, "init_args": arguments}


PROBED = built("GrammarCorpus", **GRAMMAR, fact_rate=0.3)
# some names are one piece of it
WORDPIECE = {**PROBED["init_args"], "vocabulary": "wordpiece", "vocab_size": 300}


# Arguments with which each observer looks at the tiny models below: a new observer has to be entered here.
OBSERVERS = {
    "Sparsity": {"matched_size": 4, "matched_tolerance": 0.5, "class_min_count": 5},
    "LearningCurves": {"layers": ["upos", "semtag_coarse"], "bands": [5, 50]},
    "Similarity": {
        "reference": {"before": {"class_path": "Previous"}, "itself": {"class_path": "Itself"}},
        "measures": [
            "cca", "svcca", "svcca_2", "pwcca", "linear_cka", "debiased_linear_cka", "procrustes", "kernel_cka", "rsa",
        ],
        "max_samples": 50,
        "bootstrap": 4,
        "jackknife": 64,
    },
    "DiagnosticProbe": {
        "tasks": ["upos", "topic"],
        "train_tokens": 600,
        "description_length": True,
        "shuffled": True,
        "bootstrap": 5,
        "classifier": {"epochs": 2},
    },
    "Interdependence": {"max_distance": 3, "min_pairs": 5},
    "ScaffoldRule": {"instances": 20, "context": 4},
    "TokenLearning": {
        "max_words": 40,
        "bands": [[5, 20], [30, 90]],
        "probe": built("SpanCorpus", tasks=[], corpus=PROBED),
    },
    "EdgeProbe": {
        "train_tokens": 300,
        "classifier": {"max_updates": 20, "evaluate_every": 10},
        "probe": built("SpanCorpus", corpus=PROBED),
    },
    "WorldKnowledge": {
        "probe": built("FactCorpus", source=built("GrammarFacts", corpus=PROBED, template="both")),
    },
    "AttentionPatterns": {"max_tokens": 600, "size": 8},
    "Downstream": {
        "budget": {"max_updates": 2},
        "probe": built("GrammarTasks", n_train=32, n_evaluation=20, corpus=PROBED),
    },
    "EncoderDynamics": {
        "length": 12, "lengths": [8], "sentences": 6, "short_term": {"steps": 20, "dimension_times": [0, 10]},
        "long_term": {"steps": 60, "tau": 5, "check": 1, "check_steps": 20, "max_period": 4}, "examples": 2,
        "numerics": {"threshold": 1e-3},
    },
    "LoopConvergence": {"horizon": 6, "times": [0, 1, 2, 5], "max_tokens": 200},
    "DepthPerformance": {
        "times": [0, 2, 3], "training": {"updates": 3}, "batch_rows": 4, "fine_tuned_times": [1],
        "budget": {"max_updates": 2},
        "tasks": built("GrammarTasks", n_train=32, n_evaluation=20, max_sequence_length=64, corpus=PROBED),
    },
    "Handwriting": {
        "starts": 8, "lengths": 30,
        "probe": built("GrammarTasks", n_train=60, n_evaluation=40, max_sequence_length=64, corpus=PROBED),
    },
    "TowerPreference": {
        "training": {"updates": 5}, "batch_rows": 4, "min_count": 1, "previous": True, "second_seed": 1,
    },
    "Landscape": {
        "reference": {"before": {"class_path": "Previous"}}, "points": 3, "match": True, "plane": "random",
        "plane_size": 3, "bootstrap": 5, "max_tokens": 300,
    },
    "Curvature": {"max_tokens": 200, "eigenvalues": 2, "probes": 2, "tolerance": 0.1},
    "Geometry": {"attention_sites": "auto", "max_tokens": 600, "max_samples": 200, "alpha_range": [2, None]},
    "Trajectory": {"words": 8, "min_count": 3, "max_tokens": 600},
    "LossChangeAllocation": {"max_tokens": 300, "layers": ["upos"], "bands": [5, 50], "most_points": 5},
    "WordClusters": {"words": 60, "components": 4, "max_iterations": 100, "matrix_words": 20},
    "Induction": {"length": 8, "sequences": 20, "max_tokens": 300},
    "WeightSpectra": {"gradients": True, "singular_values": 2},
}  # fmt: skip
# What they look at, where it is not the LSTM on the grammar.
LANGUAGE_OF = {
    "ScaffoldRule": "scaffold",
    **dict.fromkeys(
        ["TokenLearning", "EdgeProbe", "WorldKnowledge", "AttentionPatterns", "Geometry", "Downstream",
         "EncoderDynamics", "LoopConvergence", "DepthPerformance", "Handwriting"], "masked",
    ),
    **dict.fromkeys(["TowerPreference", "WordClusters"], "towers"),
    "Induction": "causal",
}  # fmt: skip

CONFIG = {
    "seed_everything": 3,
    "trainer": {
        "max_epochs": 2,
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "log_every_n_steps": 1,
    },
}
LSTM = built("LSTMLanguageModel", embedding_size=12, hidden_size=12, dropout=0.3, anneal_factor=1.5)
ADAMW = built("torch.optim.AdamW", lr=0.01)
ALBERT = built("MaskedLanguageModel", family="albert", optimizer=ADAMW, warmup_steps=3, config={
    "embedding_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 128, "hidden_dropout_prob": 0.1,
})  # fmt: skip
TOWERS = built(
    "TwoTowerLanguageModel", tower="bert", hidden_size=8, num_layers=1, intermediate_size=16,
    max_position_embeddings=24, optimizer=ADAMW, warmup_steps=3,
)  # fmt: skip
CAUSAL = built(
    "CausalLanguageModel", config={"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 32}, optimizer=ADAMW
)
STREAMS = {"batch_size": 8, "sequence_length": 20}
ROWS = {"corpus": built("GrammarCorpus", **WORDPIECE), "batch_size": 8, "sequence_length": 24}
SCAFFOLD = {
    "familiar": True, "length": 2, "n_rules": 20, "n_phrases": 10, "n_outside": 5, "n_types": 20,
    "n_train_tokens": 2000, "n_validation_tokens": 600, "n_test_tokens": 100, **STREAMS,
}  # fmt: skip

LANGUAGES = {
    "grammar": {"model": LSTM, "data": built("GrammarCorpus", **GRAMMAR, **STREAMS)},
    "causal": {"model": CAUSAL, "data": built("GrammarCorpus", **GRAMMAR, **STREAMS)},
    "scaffold": {"model": LSTM, "data": built("ScaffoldCorpus", **SCAFFOLD)},
    "masked": {"model": ALBERT, "data": built("PretrainingCorpus", **ROWS, pairs="order")},
    "towers": {"model": TOWERS, "data": built("PretrainingCorpus", **ROWS)},
}


def labels_of(language: str, batches: int) -> int:
    """How many tokens are predicted in the first batches."""
    if language in ("grammar", "causal", "scaffold"):
        return batches * 8 * 20
    data = PretrainingCorpus(
        GrammarCorpus(**WORDPIECE),
        **{k: v for k, v in LANGUAGES[language]["data"]["init_args"].items() if k != "corpus"},
    )
    data.prepare_data()
    first = itertools.islice(data.train_dataloader(), batches)
    return sum(int((batch["labels"] != -100).sum()) for batch in first)


def language_of(name: str) -> str:
    return LANGUAGE_OF.get(name, "grammar")


def log_and_look(loggers: object, tag: str, figure: Figure, step: int) -> None:
    """As ``log_figure``, and a line in ``faults.txt`` of the run for each fault of the figure."""
    (logger,) = loggers
    with (Path(logger.log_dir) / "faults.txt").open("a") as lines:
        lines.writelines(f"{tag} at step {step}: {fault!r}\n" for fault in figure_faults(figure))
    log_figure(loggers, tag, figure, step)


def fit(folder: Path, callbacks: list[dict], language: str = "grammar", figures: bool = False) -> Path:
    """Figures take most of the time: without them there is no report, either."""
    checkpoint = built("ScheduledCheckpoint", schedule=SCHEDULE)
    drawn = {"log_figures": "every" if figures else False}
    callbacks = [{**c, "init_args": {**c["init_args"], **drawn}} for c in callbacks]
    logger = built("TensorBoardLogger", save_dir=str(folder), name=None, version="run")
    config = {
        **CONFIG,
        **LANGUAGES[language],
        "trainer": {**CONFIG["trainer"], "logger": logger, "callbacks": [*callbacks, checkpoint]},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "in.yaml").write_text(yaml.safe_dump(config))
    with ExitStack() as patches:
        if not figures:
            patches.enter_context(mock.patch("lmdyn.cli.report.write_report"))
        else:
            patches.enter_context(mock.patch("lmdyn.callbacks.observing.loggers.log_figure", log_and_look))
        main(["fit", "--config", str(folder / "in.yaml")])
    return folder / "run"


def final_weights(run: Path) -> dict[str, torch.Tensor]:
    last = max((run / "checkpoints").glob("*.ckpt"))
    return torch.load(last, weights_only=True)["state_dict"]


def identical(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


class Runs(dict):
    """A run of each language, trained when it is first asked for."""

    def __init__(self, train):
        super().__init__()
        self.train = train

    def __missing__(self, language: str) -> Path:
        self[language] = self.train(language)
        return self[language]


def observers_of(language: str, schedule: dict = SCHEDULE) -> list[dict]:
    return [
        built(name, **OBSERVERS[name], schedule=schedule)
        for name in exported()
        if language_of(name) == language
    ]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(lambda language: fit(tmp_path_factory.mktemp("plain"), [], language))


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(lambda language: fit(tmp_path_factory.mktemp("observed"), observers_of(language), language))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """As ``observed``, with figures of a single step and of two, both while it trains, and a report."""
    return Runs(
        lambda language: fit(
            tmp_path_factory.mktemp("drawn"), observers_of(language, {"at": [0, 3]}), language, True
        )
    )


@pytest.fixture(scope="module")
def diverged(observed) -> Runs:
    """Observations of step 3, all of whose weights are NaN."""

    def replay(language: str) -> Path:
        def observe(self, module, step, passes=None):
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.fill_(torch.nan)
            return measured(self, module, step, passes)

        measured, run = Observer.observe, observed[language]
        checkpoint = run / "checkpoints" / "step=000000003.ckpt"
        out = run.parent / "diverged"
        with mock.patch.object(Observer, "observe", observe):
            main(["analyze", str(run), "--checkpoints", str(checkpoint), "--out", str(out)])
        return out

    return Runs(replay)


def folder_of(run: Path, name: str) -> Path:
    return run / "observations" / snake_case(name)


def fast_if(first: bool) -> tuple:
    """Marks of the fast tier for runs of one language, of the slow tier for others."""
    return () if first else (pytest.mark.slow,)


EACH = [pytest.param(name, marks=fast_if(language_of(name) == "grammar")) for name in OBSERVERS]
EACH_LANGUAGE = [pytest.param(name, marks=fast_if(name == "grammar")) for name in LANGUAGES]


def test_every_exported_observer_is_in_the_registry():
    assert exported().keys() == OBSERVERS.keys()


@pytest.mark.parametrize("language", EACH_LANGUAGE)
def test_observation_is_invisible(plain, observed, language):
    assert identical(final_weights(plain[language]), final_weights(observed[language]))


@pytest.mark.slow
@pytest.mark.parametrize("language", EACH_LANGUAGE)
def test_drawing_is_invisible(plain, drawn, language):
    assert identical(final_weights(plain[language]), final_weights(drawn[language]))


class Loud(lmdyn.callbacks.LearningCurves):
    """A control: an observer that forgets to be invisible."""

    def on_train_batch_end(self, *args, **kwargs):
        torch.rand(1)


def test_the_invisibility_test_can_fail(plain, tmp_path):
    loud = fit(tmp_path, [{"class_path": f"{__name__}.Loud", "init_args": {}}])
    assert not identical(final_weights(plain["grammar"]), final_weights(loud))


@pytest.mark.parametrize("name", EACH)
def test_observations_are_tidy(observed, name):
    language = language_of(name)
    table = pd.read_parquet(folder_of(observed[language], name))
    assert list(table.columns[:4]) == ["step", "tokens", "quantity", "site"]
    assert table.columns[-1] == "value"
    steps = sorted(table["step"].unique())
    per_epoch = (steps[-1]) // 2
    assert steps == [0, 3, per_epoch, 2 * per_epoch]
    tokens = table.groupby("step")["tokens"].unique()
    assert tokens[0].tolist() == [0]
    assert tokens[3].tolist() == [labels_of(language, 3)]
    key = [c for c in table.columns if c not in ("tokens", "value")]
    assert not table.duplicated(key).any()


@pytest.mark.parametrize("name", EACH)
def test_live_equals_replayed(observed, tmp_path_factory, name):
    observed = observed[language_of(name)]
    out = observed.parent / "replayed"
    if not out.exists():
        main(["analyze", str(observed), "--out", str(out)])
    live, replayed = (pd.read_parquet(folder_of(root, name)) for root in (observed, out))
    pd.testing.assert_frame_equal(live, replayed, check_exact=True)


@pytest.mark.parametrize("name", EACH)
def test_logged_tags_are_the_declared_ones(observed, name):
    observed = observed[language_of(name)]
    events = EventAccumulator(str(observed)).Reload()
    snake = folder_of(observed, name).name
    logged = {tag for tag in events.Tags()["scalars"] if tag.startswith(f"{snake}/")}
    assert logged
    cls = exported()[name]
    check_tags(cls, snake, logged, lambda quantity: not is_elsewhere(cls, quantity))
    steps = {e.step for e in events.Scalars(min(logged))}
    assert steps <= set(pd.read_parquet(folder_of(observed, name))["step"].unique())


@pytest.mark.parametrize("name", EACH)
def test_what_is_stored_is_declared_and_in_its_range(observed, name):
    check_values(exported()[name], pd.read_parquet(folder_of(observed[language_of(name)], name)))


# What does not depend on the module's numbers: facts about the text, chance, and settings.
WITHOUT_THE_MODEL = {
    "average_baseline", "baseline", "between_floor", "chi_gaussian", "chi_uniform", "coarse_floor",
    "converged", "depth", "fine_floor", "horizon", "learning_rate", "majority", "separation_floor",
    "uniform_attention", "unigram_entropy",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", OBSERVERS)
def test_a_model_of_nan_has_no_number(diverged, observed, name):
    """Ranks, shares and accuracies too: a comparison with NaN is no answer."""
    cls, language = exported()[name], language_of(name)

    def of_the_model(table: pd.DataFrame) -> pd.DataFrame:
        counts = [
            q for q in table["quantity"].unique() if (d := declared(cls.recorded, q)) and d.unit == "count"
        ]
        most_frequent = table.get("how", table["site"]).eq("most_frequent")  # the floor of DepthPerformance
        reference = table.get("alpha", table["site"]).eq("0")  # the end of Landscape's line
        left_out = table["quantity"].isin([*counts, *WITHOUT_THE_MODEL]) | most_frequent | reference
        return table[~left_out & table["value"].notna()]

    (file,) = folder_of(diverged[language], name).glob("*.parquet")
    found = of_the_model(pd.read_parquet(file))
    assert found.empty, found.groupby("quantity")["value"].unique()
    sound = pd.read_parquet(folder_of(observed[language], name) / "000000003.parquet")
    assert len(of_the_model(sound))  # the control


def drawn_of(name: str, table: pd.DataFrame, settings: dict) -> dict[str, Figure]:
    figures = exported()[name].figures(table, settings)
    for figure in figures.values():
        figure.set_dpi(30)
        pixels(figure)
    return figures


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_figures_of_nan_are_gaps(diverged, observed, name):
    """No figure raises or warns, neither of a diverged step nor of files that hold no row for it."""
    language = language_of(name)
    store = ObservationStore(folder_of(observed[language], name))
    settings, sound = store.about()["settings"], store.read(steps=frozenset([0, 3]))
    nan = pd.read_parquet(folder_of(diverged[language], name) / "000000003.parquet")
    before = sound[sound["step"].eq(0)]
    counts = {
        q for q in sound["quantity"].unique() if (d := declared(exported()[name].recorded, q)) and d.low == 0
    }
    lost = sound["step"].eq(3) & ~sound["quantity"].isin(counts)
    there = drawn_of(name, sound, settings)
    for table in (
        pd.concat([before, nan], ignore_index=True),
        pd.concat([before, nan.dropna(subset="value")], ignore_index=True),
        nan,
        nan.dropna(subset="value"),
        sound.assign(value=sound["value"].mask(lost)),
        sound.assign(value=float("nan")),
    ):
        assert drawn_of(name, table, settings).keys() <= there.keys()


def test_declarations_are_sentences_with_known_units():
    for name, cls in exported().items():
        assert len({q.name for q in cls.recorded}) == len(cls.recorded), f"{name} declares a quantity twice"
        for q in cls.recorded:
            assert q.unit in UNITS, f"{name}: {q.name} has the unit {q.unit!r}"
            assert re.fullmatch(r".+\.", q.meaning), f"{name}: {q.name} means {q.meaning!r}"
            assert q.low is None or q.high is None or q.low < q.high


def test_the_tests_of_declarations_can_fail():
    cls = lmdyn.callbacks.LearningCurves
    of_groups = [
        f"{quantity}/{group}" for quantity in ("loss", "accuracy") for group in ("upos/X", "rank/1-9")
    ]
    logged = [f"name/{tag}" for tag in ("loss", "perplexity", "accuracy", *of_groups)]
    check_tags(cls, "name", logged)
    with pytest.raises(AssertionError, match="name/loss/X is logged but not declared"):
        check_tags(cls, "name", [*logged, "name/loss/X"])
    with pytest.raises(AssertionError, match="<band>'] are declared but not logged"):
        check_tags(cls, "name", [tag for tag in logged if tag != "name/loss/rank/1-9"])
    table = pd.DataFrame(
        {"quantity": ["learning_rate", "accuracy", "loss", "loss"], "value": [-3, 1, 3, float("nan")]}
    )
    check_values(cls, table)
    for quantity, value, says in (("accuracy", 1.01, "outside of 0 to 1"), ("hits", 1.0, "not declared")):
        with pytest.raises(AssertionError, match=says):
            check_values(cls, pd.concat([table, pd.DataFrame({"quantity": [quantity], "value": [value]})]))


@pytest.mark.slow
@pytest.mark.parametrize("language", EACH_LANGUAGE)
def test_figures_can_be_read(drawn, language):
    """Texts are whole, apart and large enough, marks are whole, lines are told apart, no panel is empty."""
    faults = (drawn[language] / "faults.txt").read_text()
    assert not faults


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_figures_are_logged_and_reported(drawn, name):
    observed = drawn[language_of(name)]
    events = EventAccumulator(str(observed)).Reload()
    snake = folder_of(observed, name).name
    images = {tag for tag in events.Tags()["images"] if tag.startswith(f"{snake}/")}
    assert images
    page = (observed / "report" / "index.html").read_text()
    for tag in images:
        file = observed / "report" / (tag.replace("/", "_", 1) + ".png")
        assert file.stat().st_size > 5000
        assert file.with_suffix(".svg").exists()
    assert page.count("data:image/png;base64") >= len(images)
    page = re.sub(r"base64,[\w+/=]+", "", page)  # four letters of an image may be any word
    page = page.replace("<meta http-equiv=", "")  # the page's own ban on what it does not hold
    page = re.sub(r"/\*!.*?\*/", "", page)  # the licence of the chart library
    assert not re.search("https?:", re.sub(r"<pre>.*?</pre>", "", page, flags=re.S))  # self-contained
