"""Killed at any moment and started again by the same command, a run ends as one that was left alone.

``LMDYN_KILLS=200 pytest -m slow tests/test_kills.py`` is the whole campaign (docs/reliability.md); its counts go to
``LMDYN_KILLS_LOG``.
"""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
import yaml

from lmdyn.cli.__main__ import main
from tests.cli.tiny_run import tiny_run
from tests.helpers import ranks
from tests.helpers import small_runs as S
from tests.helpers.recorded import in_tensorboard

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("LMDYN_KILLS", "1"))  # at random moments, of each kind of run
ROUNDS = 8  # in one run at most: then it is left alone

SIZES = {"embedding_size": 16, "hidden_size": 16, "num_layers": 2, "dropout": 0.2, "anneal_factor": 4.0}
LSTM = {"class_path": "LSTMLanguageModel", "init_args": SIZES}
ALBERT = {"class_path": "MaskedLanguageModel", "init_args": {"family": "albert", "config": S.ENCODER}}


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    return S.stream_files(tmp_path_factory.mktemp("text"))


def data_of(kind, stream):
    if kind in ("lstm", "two ranks"):
        settings = {"batch_size": 4, "sequence_length": 12}
        return {"class_path": "GrammarCorpus", "init_args": {**S.GRAMMAR, **settings}}
    files = {"path": "parquet", "data_files": str(stream / "*.parquet")}
    text = {"dataset": files, "tokenizer": str(stream / "tokenizer"), "epoch_batches": 12, "block_rows": 12}
    rows = {"sequence_length": 24, "batch_size": 4, "num_workers": 2}
    rows["corpus"] = {"class_path": "GrammarCorpus", "init_args": S.PIECES}
    rows["stream"] = {"class_path": "StreamedText", "init_args": text}
    return {"class_path": "PretrainingCorpus", "init_args": rows}


def command(kind, folder, version, stream):
    """The words of a run that observes and saves often, and those to go on with."""
    saver, watched = {"class_path": "ScheduledCheckpoint"}, {"schedule": {"every": 2}, "log_figures": False}
    callbacks = [
        {**saver, "init_args": {"schedule": {"every": 3, "epochs": True}}},
        {**saver, "init_args": {"schedule": {"every": 2}, "weights_only": False, "keep": 2}},
        {"class_path": "LearningCurves", "init_args": watched},
    ]
    length = {"max_steps": -1, "max_epochs": 2, "limit_val_batches": 2}
    if kind == "two ranks":
        length |= {"devices": 2, "strategy": "ddp"}
    else:
        length["devices"] = 1
        few = {**watched, "matched_size": None, "class_min_count": 5}
        callbacks.append({"class_path": "Sparsity", "init_args": few})
    content = {"seed_everything": 3, **tiny_run(folder, *callbacks, version=version, **length)}
    content |= {"model": LSTM if kind in ("lstm", "two ranks") else ALBERT, "data": data_of(kind, stream)}
    path = folder / f"{version}.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return ["fit", "--config", str(path)]


def again(words, folder):
    """The words with which a run begins, or goes on."""
    return [*words, "--ckpt_path", "last"] if (folder / "run" / "config.yaml").exists() else words


# ---------------------------------------------------------------- in the processes


def run(words, report):
    """The command, with or without its report; for a forked process."""
    if not report:
        import lmdyn.cli.report

        lmdyn.cli.report.write_report = lambda *_, **__: None
    main(words)


def run_and_die(words, where, at):
    """The command, until it writes for the ``at``-th time there: it leaves half a file and is killed."""
    import pyarrow.parquet as pq
    from lightning.pytorch.strategies import Strategy

    import lmdyn.cli.pages.html_parts
    import lmdyn.runs.atomic_files as files
    from lmdyn.cli.parsing.lightning_parser import Parser

    owner, name = {
        "configuration": (Parser, "save"),
        "checkpoint": (Strategy, "save_checkpoint"),
        "observation": (pq, "write_table"),
        "rename": (files, "_to_disk"),
        "report": (lmdyn.cli.pages.html_parts, "picture"),
    }[where]
    original, count = getattr(owner, name), 0

    def dying(*args, **kwargs):
        nonlocal count
        count += 1
        result = original(*args, **kwargs)
        if count == at:
            for path in (Path(a) for a in args if isinstance(a, (str, Path)) and Path(a).is_file()):
                os.truncate(path, path.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, dying)
    run(words, where == "report")


def processes_of(kind, words, folder, cache):
    """Start the command, of each rank."""
    of = {"LMDYN_CACHE": str(cache)}
    if kind != "two ranks":
        return [ranks.start(folder / "log.txt", run, words, False, **of)]
    of |= {**ranks.TORCHRUN, "MASTER_PORT": str(ranks.free_port())}
    of |= {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}
    each = [{**of, "RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]
    return [ranks.start(folder / f"log{one['RANK']}.txt", run, words, False, **one) for one in each]


# ---------------------------------------------------------------- what has to hold


def curves_of(run):
    """Steps and values by tag and line, as TensorBoard's own reader shows them."""
    return {tag: sorted(of) for tag, of in in_tensorboard(run).items()}


def assert_as_if_left_alone(run, whole):
    S.assert_same_weights(S.weights_of(whole), S.weights_of(run))
    S.assert_same_observations(S.observations_of(whole), S.observations_of(run))
    assert curves_of(run) == curves_of(whole)
    hidden = [str(p.relative_to(run)) for p in run.rglob("*") if p.name.startswith(".") or p.suffix == ".tmp"]
    assert hidden == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory, stream):
    """Runs that were left alone, by kind, and how long they took."""
    made = {}

    def of(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp("whole")
            began = time.monotonic()
            words = command(kind, folder, "whole", stream)
            processes = processes_of(kind, words, folder, folder / "cache")
            logs = ["log0.txt", "log1.txt"] if kind == "two ranks" else ["log.txt"]
            ranks.finish(processes, [folder / log for log in logs], 180)
            made[kind] = folder / "whole", time.monotonic() - began
        return made[kind]

    return of


@pytest.mark.parametrize("kind", ["lstm", "stream with workers", "two ranks"])
def test_killed_at_random(kind, whole, stream, tmp_path):
    left_alone, seconds = whole(kind)
    rng = random.Random(kind)
    kills, runs = [], 0
    while len(kills) < KILLS:
        folder = tmp_path / str(runs)
        folder.mkdir()
        words = command(kind, folder, "run", stream)
        for _ in range(ROUNDS):
            processes = processes_of(kind, again(words, folder), folder, folder / "cache")
            time.sleep(rng.uniform(0.0, seconds))
            victims = processes if rng.random() < 0.5 else [rng.choice(processes)]
            if not all(process.is_alive() for process in victims):
                break
            for process in victims:
                process.kill()
            killed_at = time.monotonic()
            while any(p.is_alive() for p in processes) and time.monotonic() < killed_at + 5:
                time.sleep(0.05)  # a rank whose peer has died may end by itself; else its launcher ends it
            for process in processes:
                process.kill()
                process.join()
            kills.append(runs)
        else:
            processes = processes_of(kind, again(words, folder), folder, folder / "cache")
        logs = sorted(folder.glob("log*.txt"))
        ranks.finish(processes, logs, 180)
        assert_as_if_left_alone(folder / "run", left_alone)
        shutil.rmtree(folder)
        runs += 1
    if path := os.environ.get("LMDYN_KILLS_LOG"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "kills": len(kills), "runs": runs}) + "\n")


@pytest.mark.parametrize(
    ("where", "at"), [("configuration", 1), ("checkpoint", 4), ("observation", 5), ("rename", 1)]
)
def test_killed_while_writing(where, at, whole, stream, tmp_path):
    words = command("lstm", tmp_path, "run", stream)
    cache = {"LMDYN_CACHE": str(tmp_path / "cache")}
    process = ranks.start(tmp_path / "log.txt", run_and_die, words, where, at, **cache)
    process.join(120)
    assert process.exitcode == -signal.SIGKILL, ranks.tail(tmp_path / "log.txt")
    process = ranks.start(tmp_path / "log2.txt", run, again(words, tmp_path), False, **cache)
    ranks.finish([process], [tmp_path / "log2.txt"], 180)
    assert_as_if_left_alone(tmp_path / "run", whole("lstm")[0])


def test_killed_while_reporting(whole, stream, tmp_path, capsys):
    words = command("lstm", tmp_path, "run", stream)
    cache = {"LMDYN_CACHE": str(tmp_path / "cache")}
    process = ranks.start(tmp_path / "log.txt", run_and_die, words, "report", 2, **cache)
    process.join(180)
    assert process.exitcode == -signal.SIGKILL, ranks.tail(tmp_path / "log.txt")
    main(["report", str(tmp_path / "run")])
    assert (tmp_path / "run" / "report" / "index.html").is_file()
    shutil.rmtree(tmp_path / "run" / "report")
    assert_as_if_left_alone(tmp_path / "run", whole("lstm")[0])
