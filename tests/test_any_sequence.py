"""Whatever a user does with a run, in whatever order: weights and observations are those of one that was left alone.

``LMDYN_SEQUENCES=8`` sequences of ten steps are the whole campaign (docs/reliability.md).
"""

import os
import random
import shutil
import signal
import tempfile
from pathlib import Path

import lightning as L
import pandas as pd
import pytest
import yaml
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lmdyn.cli.__main__ import main
from lmdyn.runs.checkpoint_files import weights_digest
from tests.cli.tiny_run import tiny_run
from tests.helpers import ranks
from tests.helpers.small_runs import ENCODER, PIECES, observations_of, weights_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*does not have many workers")]

SEQUENCES = int(os.environ.get("LMDYN_SEQUENCES", "2"))
LAST = 9  # updates of the run that was left alone; an epoch has 7
EVERY = {"schedule": {"every": 1}, "log_figures": False}
CURVES = {"class_path": "LearningCurves", "init_args": EVERY}
SPARSITY = {"class_path": "Sparsity", "init_args": {**EVERY, "matched_size": None, "class_min_count": 5}}


class Dies(L.Callback):
    """Kills the process before an update."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class Stops(L.Callback):
    """Ends the training after an update, as early stopping does; fewer ``max_steps`` would be other learning rates."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        trainer.should_stop = trainer.global_step >= self.step


def words(folder, *, until, observers, workers=0, dies=None):
    """A command that trains until an update, from where the run in a folder is."""
    saver = {"class_path": "ScheduledCheckpoint"}
    callbacks = [
        {**saver, "init_args": {"schedule": {"every": 1}}},
        {**saver, "init_args": {"schedule": {"every": 2}, "weights_only": False, "keep": 2}},
        *observers,
        *([] if dies is None else [{"class_path": f"{__name__}.Dies", "init_args": {"step": dies}}]),
        *([] if until == LAST else [{"class_path": f"{__name__}.Stops", "init_args": {"step": until}}]),
    ]
    content = {
        "seed_everything": 3,
        **tiny_run(folder, *callbacks, devices=1, max_steps=LAST, max_epochs=-1),
        "model": {"class_path": "MaskedLanguageModel", "init_args": {"family": "albert", "config": ENCODER}},
        "data": {"class_path": "PretrainingCorpus", "init_args": {
            "sequence_length": 24, "batch_size": 4, "num_workers": workers,
            "corpus": {"class_path": "GrammarCorpus", "init_args": PIECES}}},
    }  # fmt: skip
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    goes_on = ["--ckpt_path", "last"] if (folder / "run" / "config.yaml").exists() else []
    return ["fit", "--config", str(path), *goes_on]


def fit(*args):
    """Without the report at its end; for this process and for one that is forked."""
    import lmdyn.cli.report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lmdyn.cli.report, "write_report", lambda *_, **__: None)
        main(list(args))


def digests(run):
    return {name: weights_digest(weights) for name, weights in weights_of(run).items()}


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory):
    """A run that was left alone, with both observers: digests of its weights, and its observations."""
    folder = tmp_path_factory.mktemp("left_alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMDYN_CACHE", str(folder / "cache"))
        fit(*words(folder, until=LAST, observers=[CURVES, SPARSITY]))
    return digests(folder / "run"), observations_of(folder / "run")


def machine(left_alone):
    weights, observed = left_alone

    class AnySequence(RuleBasedStateMachine):
        @initialize()
        def begins(self):
            self.folder = Path(tempfile.mkdtemp(prefix="lmdyn-sequence-"))
            self.run, self.step = self.folder / "run", 0
            self.observers, self.workers = [CURVES], 0

        @precondition(lambda self: self.step < LAST)
        @rule(updates=st.integers(1, 3))
        def trains(self, updates):
            self.step = min(LAST, self.step + updates)
            fit(*words(self.folder, until=self.step, observers=self.observers, workers=self.workers))

        @precondition(lambda self: self.step < LAST)
        @rule(after=st.integers(0, 3))
        def is_killed(self, after):
            dies = min(LAST - 1, self.step + after)
            given = words(self.folder, until=LAST, observers=self.observers, dies=dies)
            process = ranks.start(self.folder / "log", fit, *given)
            process.join(120)
            assert process.exitcode == -signal.SIGKILL, ranks.tail(self.folder / "log")
            saved = [int(p.stem.partition("=")[2]) for p in self.run.glob("resume/*.ckpt")]
            self.step = max([0, *saved])

        @rule(workers=st.integers(0, 1))
        def has_workers(self, workers):
            self.workers = workers

        @rule()
        def is_observed_by_another(self):
            self.observers = [CURVES, SPARSITY]

        @precondition(lambda self: any(self.run.glob("checkpoints/*.ckpt")))
        @rule(shard=st.sampled_from(["0/2", "1/2", "0/1"]))
        def is_replayed(self, shard):
            overlay = self.folder / "observers.yaml"
            overlay.write_text(yaml.safe_dump({"trainer": {"callbacks": self.observers}}), encoding="utf-8")
            main(["analyze", str(self.run), "--config", str(overlay), "--shard", shard])

        @precondition(lambda self: any(self.run.glob("observations/*/*.parquet")))
        @rule(seed=st.integers(0, 99))
        def loses_an_observation(self, seed):
            random.Random(seed).choice(sorted(self.run.glob("observations/*/*.parquet"))).unlink()

        @precondition(lambda self: any(self.run.glob("observations/*/*.parquet")))
        @rule()
        def is_reported(self):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("lmdyn.cli.pages.observer_section.picture", lambda *_, **__: "")
                main(["report", str(self.run)])

        @invariant()
        def is_as_if_left_alone(self):
            if not hasattr(self, "run"):
                return
            here = digests(self.run)
            assert here == {name: weights[name] for name in here}
            for name, table in observations_of(self.run).items():
                pd.testing.assert_frame_equal(table, observed[name], check_exact=True)

        def teardown(self):
            """In the end nothing is missing."""
            self.observers = [CURVES, SPARSITY]
            if self.step < LAST:
                fit(*words(self.folder, until=LAST, observers=self.observers))
            self.is_replayed("0/1")
            assert digests(self.run) == weights
            assert list(observations_of(self.run)) == list(observed)
            self.is_as_if_left_alone()
            assert not list(self.run.rglob(".*"))
            shutil.rmtree(self.folder)

    return AnySequence


def test_any_sequence(left_alone):
    case = machine(left_alone).TestCase
    case.settings = settings(
        max_examples=SEQUENCES, stateful_step_count=10, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate],
    )  # fmt: skip
    case().runTest()
