"""Every exported observer: invisible, live = replayed, logs what it documents, builds from yaml."""

import copy
import itertools
import pickle
import re
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from matplotlib.figure import Figure

import lmdyn.callbacks
from lmdyn.callbacks import Observer
from lmdyn.callbacks.observing.figures import lay_out, pixels
from lmdyn.callbacks.observing.loggers import scalar_tags
from lmdyn.callbacks.observing.run import snake_case
from lmdyn.cli.__main__ import main
from lmdyn.cli.report import write_report
from lmdyn.datamodules import GrammarCorpus, PretrainingCorpus
from lmdyn.runs.schema import declared
from lmdyn.runs.store import ObservationStore
from tests.golden import runs as golden
from tests.golden.runs import object_of as built
from tests.helpers.figure_faults import figure_faults
from tests.helpers.recorded import (
    UNITS,
    check_tags,
    check_values,
    exported,
    in_tensorboard,
    is_elsewhere,
    logged_tags,
)

BATCHES = 8  # of an epoch of the LSTM
# of the LSTM: at the start, within an epoch and at the end of one, after which training goes on
SCHEDULE = {"at": [0, 3, BATCHES], "last": False}
EPOCHS = {"at": [0, 3], "epochs": True}  # of one of its observers, and of checkpoints
SHORT = {"at": [0, 3], "last": False}  # of what the slow tier trains

# Arguments with which each observer looks at the tiny models below: a new observer has to be entered there.
OBSERVERS = {
    **golden.OBSERVERS,
    "AttentionPatterns": {"max_tokens": 300, "size": 8},
    "Sparsity": {"matched_size": 4, "matched_tolerance": 0.5, "class_min_count": 5},
    "EncoderDynamics": {
        "length": 12, "lengths": [8], "sentences": 6, "short_term": {"steps": 20, "dimension_times": [0, 10]},
        "long_term": {"steps": 60, "tau": 5, "check": 1, "check_steps": 20, "max_period": 4, "transverse_skip": 0},
        "examples": 2, "numerics": {"threshold": 10.0},  # below which tokens are from the start: all quantities exist
    },
    "Handwriting": {"starts": 8, "lengths": 30, "probe": golden.TASKS},
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

LANGUAGES = {
    name: {part: copy.deepcopy(family[part]) for part in ("model", "data")}
    for name, family in golden.FAMILIES.items()
}
# what draws at random in training, which an observer must not change
LANGUAGES["scaffold"]["model"] = LANGUAGES["recurrent"]["model"]
LANGUAGES["masked"]["model"]["init_args"]["config"]["hidden_dropout_prob"] = 0.1


def labels_of(language: str, batches: int) -> int:
    """How many tokens are predicted in the first batches."""
    if language in ("recurrent", "causal", "scaffold"):
        return batches * 8 * 24
    arguments = {**LANGUAGES[language]["data"]["init_args"], "corpus": GrammarCorpus(**golden.PIECES)}
    data = PretrainingCorpus(**arguments)
    data.prepare_data()
    first = itertools.islice(data.train_dataloader(), batches)
    return sum(int((batch["labels"] != -100).sum()) for batch in first)


def language_of(name: str) -> str:
    return LANGUAGE_OF.get(name, "recurrent")


def fit(folder: Path, callbacks: list[dict], language: str = "recurrent") -> Path:
    checkpoint = built("ScheduledCheckpoint", schedule=EPOCHS)
    callbacks = [{**c, "init_args": {**c["init_args"], "log_figures": False}} for c in callbacks]
    logger = built("TensorBoardLogger", save_dir=str(folder), name=None, version="run")
    config = {
        "seed_everything": 3,
        **LANGUAGES[language],
        "trainer": {
            "max_epochs": 2 if language == "recurrent" else 1,
            "max_steps": BATCHES + 2 if language == "recurrent" else -1,
            "accelerator": "cpu",
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "log_every_n_steps": 1,
            "logger": logger,
            "callbacks": [*callbacks, checkpoint],
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "in.yaml").write_text(yaml.safe_dump(config))
    with mock.patch("lmdyn.cli.report.write_report"):
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


def observers_of(language: str) -> list[dict]:
    schedules = {"LearningCurves": EPOCHS} if language == "recurrent" else {}
    usual = SCHEDULE if language == "recurrent" else SHORT
    return [
        built(name, **OBSERVERS[name], schedule=schedules.get(name, usual))
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
def faults(observed) -> Runs:
    """What is wrong with the figures of a run's first step, and with those of its report, which is made."""

    def looked_at(language: str) -> list[str]:
        found = []

        def lay_out_and_look(figure: Figure, dpi: float) -> None:
            lay_out(figure, figure.get_dpi())
            found.extend(figure_faults(figure))
            figure.set_dpi(dpi)

        for name in filter(lambda name: language_of(name) == language, OBSERVERS):
            store = ObservationStore(folder_of(observed[language], name))
            table, before = store.read(steps=frozenset([0])), random_states()
            for figure in exported()[name].figures(table, store.about()["settings"]).values():
                found.extend(figure_faults(figure))
            found.extend([f"{name} draws with common random states"] * (random_states() != before))
        with mock.patch("lmdyn.cli.pages.html_parts.lay_out", lay_out_and_look):
            write_report([observed[language]], observed[language] / "report")
        return found

    return Runs(looked_at)


def random_states() -> bytes:
    """Of what training draws from; Python's own is drawn from by beartype, of each sequence that it checks."""
    return pickle.dumps((np.random.get_state(), torch.get_rng_state().numpy()))


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


LANGUAGES_IN_USE = sorted({*map(language_of, OBSERVERS)})
EACH = [pytest.param(name, marks=fast_if(language_of(name) == "recurrent")) for name in OBSERVERS]
EACH_LANGUAGE = [pytest.param(name, marks=fast_if(name == "recurrent")) for name in LANGUAGES_IN_USE]


def test_every_exported_observer_is_in_the_registry():
    assert exported().keys() == OBSERVERS.keys()


@pytest.mark.parametrize("language", EACH_LANGUAGE)
def test_observation_is_invisible(plain, observed, language):
    assert identical(final_weights(plain[language]), final_weights(observed[language]))


class Loud(lmdyn.callbacks.LearningCurves):
    """A control: an observer that forgets to be invisible."""

    def on_train_batch_end(self, *args, **kwargs):
        torch.rand(1)


def test_the_invisibility_test_can_fail(plain, tmp_path):
    loud = fit(tmp_path, [{"class_path": f"{__name__}.Loud", "init_args": {}}])
    assert not identical(final_weights(plain["recurrent"]), final_weights(loud))


@pytest.mark.parametrize("name", EACH)
def test_observations_are_tidy(observed, name):
    language = language_of(name)
    table = pd.read_parquet(folder_of(observed[language], name))
    assert list(table.columns[:4]) == ["step", "tokens", "quantity", "site"]
    assert table.columns[-1] == "value"
    steps = sorted(table["step"].unique())
    expected = [0, 3, BATCHES] if language == "recurrent" else [0, 3]
    assert steps == expected + [BATCHES + 2] * (name == "LearningCurves")
    tokens = table.groupby("step")["tokens"].unique()
    assert tokens[0].tolist() == [0]
    assert tokens[3].tolist() == [labels_of(language, 3)]
    key = [c for c in table.columns if c not in ("tokens", "value")]
    assert not table.duplicated(key).any()


@pytest.mark.parametrize("name", EACH)
def test_live_equals_replayed(observed, tmp_path_factory, name):
    language = language_of(name)
    observed = observed[language]
    out = observed.parent / "replayed"
    if not out.exists():
        replay = ["analyze", str(observed), "--out", str(out)]
        first = observed / "checkpoints" / "step=000000000.ckpt"
        main([*replay, "--checkpoints", str(first)])
        main([*replay, "--scheduled"])  # goes on, as after a kill
    live, replayed = (pd.read_parquet(folder_of(root, name)) for root in (observed, out))
    again = live["step"].isin(replayed["step"])
    # `--scheduled` knows of no epochs
    ends = {BATCHES} if language == "recurrent" and name == "LearningCurves" else set()
    assert set(live.loc[~again, "step"]) == ends
    live = live[again].reset_index(drop=True)
    pd.testing.assert_frame_equal(live, replayed, check_exact=True)


@pytest.mark.parametrize("name", EACH)
def test_logged_tags_are_the_declared_ones_and_tensorboard_shows_them(observed, name):
    run = observed[language_of(name)]
    folder, cls = folder_of(run, name), exported()[name]
    logged = logged_tags(cls, folder)
    assert logged
    check_tags(cls, folder.name, logged, lambda quantity: not is_elsewhere(cls, quantity))
    shown = in_tensorboard(run)
    cards = {t.partition(": ")[2] or t for t in shown if f"{folder.name}/" in t}
    assert 1 <= len(cards) <= 12
    points = Counter(
        step for t, of in shown.items() if re.search(rf"(^|: ){folder.name}(_details)?/", t) for step, _ in of
    )
    table = pd.read_parquet(folder)
    rows = table[cls.is_scalar(table) & table["quantity"].ne("learning_rate") & table["value"].notna()]
    for step, of_step in rows.groupby("step"):
        assert points[step] >= len(scalar_tags("", of_step))  # and means over heads


@pytest.mark.parametrize("name", EACH)
def test_what_is_stored_is_declared_and_in_its_range(observed, name):
    check_values(exported()[name], pd.read_parquet(folder_of(observed[language_of(name)], name)))


# What does not depend on the module's numbers: facts about the text, chance, and settings.
WITHOUT_THE_MODEL = {
    "average_baseline", "baseline", "between_floor", "chance", "chi_gaussian", "chi_uniform", "coarse_floor",
    "converged", "depth", "drawn_entropy", "fine_floor", "horizon", "learning_rate", "majority", "separation_floor",
    "shorter", "uniform_attention", "unigram", "unigram_entropy",
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


@pytest.mark.slow
@pytest.mark.parametrize("name", OBSERVERS)
def test_figures_of_nan_are_gaps(diverged, observed, name):
    """No figure raises or warns, neither of a diverged step nor of files that hold no row for it."""
    cls, language = exported()[name], language_of(name)
    store = ObservationStore(folder_of(observed[language], name))
    settings, sound = store.about()["settings"], store.read(steps=frozenset([0, 3]))
    nan = pd.read_parquet(folder_of(diverged[language], name) / "000000003.parquet")
    before = sound[sound["step"].eq(0)]
    there = cls.figures(sound, settings).keys()
    for laid_out, table in (
        (True, pd.concat([before, nan], ignore_index=True)),
        (False, nan.dropna(subset="value")),
        (False, sound.assign(value=float("nan"))),
    ):
        figures = cls.figures(table, settings)
        assert figures.keys() <= there
        for figure in figures.values():
            figure.set_dpi(30)
            if not laid_out:  # which takes most of the time
                figure.set_layout_engine("none")
            pixels(figure)


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
@pytest.mark.parametrize("language", LANGUAGES_IN_USE)
def test_figures_can_be_read(faults, language):
    """Texts are whole, apart and large enough, marks are whole, lines are told apart, no panel is empty."""
    assert not faults[language]


@pytest.mark.slow
@pytest.mark.parametrize("name", OBSERVERS)
def test_figures_are_reported(faults, observed, name):
    language = language_of(name)
    assert language in faults or faults[language] is not None  # which makes the report
    report = observed[language] / "report"
    images = list(report.glob(f"{snake_case(name)}_*.png"))
    assert images
    page = (report / "index.html").read_text()
    for file in images:
        assert file.stat().st_size > 5000
        assert file.with_suffix(".svg").exists()
    assert page.count("data:image/png;base64") >= len(images)
    page = re.sub(r"base64,[\w+/=]+", "", page)  # four letters of an image may be any word
    page = page.replace("<meta http-equiv=", "")  # the page's own ban on what it does not hold
    page = re.sub(r"/\*!.*?\*/", "", page)  # the licence of the chart library
    assert not re.search("https?:", re.sub(r"<pre>.*?</pre>", "", page, flags=re.S))  # self-contained
