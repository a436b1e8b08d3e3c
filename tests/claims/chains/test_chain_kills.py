"""A chain that is killed in whatever way is started again by the same command, and ends as if nothing had been."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml

from lmdyn.cli.__main__ import main
from lmdyn.runs.folder_lock import CHAIN

ROOT = Path(__file__).parents[3]

CONFIG = {
    "snakefile": "configs/mini/Snakefile", "cores": 2, "nolock": True, "rerun-incomplete": True,
    "rerun-triggers": "mtime", "keep-going": True,
    "config": {"profile": "small", "seeds": [{"init": 2, "order": 4}], "runs": {"lm": ""}},
}  # fmt: skip
LM = {
    "trainer": {
        "accelerator": "cpu", "max_steps": 800, "max_epochs": -1, "limit_val_batches": 2, "log_every_n_steps": 10,
        "logger": {"class_path": "CSVLogger",
                   "init_args": {"save_dir": "runs/mini/small", "name": "", "version": "lm"}},
        "callbacks": [
            {"class_path": "ScheduledCheckpoint", "init_args": {"schedule": {"at": [0, 300]}}},
            {"class_path": "ScheduledCheckpoint",
             "init_args": {"schedule": {"every": 20}, "weights_only": False, "keep": 1}},
        ],
    },
    "model": {"class_path": "LSTMLanguageModel", "init_args": {"embedding_size": 64, "hidden_size": 64}},
    "data": {"class_path": "GrammarCorpus", "init_args": {
        "n_train_tokens": 6000, "n_validation_tokens": 300, "n_test_tokens": 50, "n_nouns": 40, "n_verbs": 30,
        "n_adjectives": 20, "n_adverbs": 10, "n_names": 20, "n_facts": 10, "batch_size": 8, "sequence_length": 35}},
}  # fmt: skip
OBSERVERS = {
    "trainer": {"callbacks": [{"class_path": "LearningCurves", "init_args": {"log_figures": False}}]}
}


def study(folder):
    """A study of its own over the shipped chain."""
    here = folder / "configs" / "mini" / "small"
    here.mkdir(parents=True)
    (here.parent / "Snakefile").write_text(
        f'include: "{ROOT}/configs/study.smk"\n\n\nrule all:\n    input:\n        RESULTS,\n',
        encoding="utf-8",
    )
    for name, content in (("config", CONFIG), ("lm", LM), ("observers", OBSERVERS)):
        (here / f"{name}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return here


def start(folder, *words):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LMDYN_CACHE": str(folder / "cache")}
    return subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--profile", "configs/mini/small", *words], cwd=folder, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def processes(mark):
    """Those that have an environment variable: all that the chain has started."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def steps(run):
    return [int(p.stem.removeprefix("step=")) for p in run.glob("resume/step=*.ckpt")]


def until(found, chain, seconds=200):
    """What ``found()`` answers once it is there, while the chain runs."""
    end = time.monotonic() + seconds
    while not (answer := found()):
        assert chain.poll() is None, chain.stdout.read()
        assert time.monotonic() < end
        time.sleep(0.02)
    return answer


def training(chain, mark, seed):
    """The process that trains this seed's run for this chain (its orphans are of other sessions)."""
    for pid, command in processes(mark).items():
        if (
            "-m lmdyn.cli fit" in command
            and "bash" not in command
            and f"--seed_everything {seed} " in command
        ):
            with suppress(ProcessLookupError):
                if os.getsid(pid) == chain.pid:
                    return pid
    return None


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")
def test_a_chain_that_is_killed_goes_on(tmp_path, monkeypatch, without_report):
    study(tmp_path)
    runs = tmp_path / "runs" / "mini" / "small"
    mark = f"{CHAIN}={runs}"
    for kill in ("snakemake", "group", "child"):
        chain = start(tmp_path)
        pid = until(lambda: training(chain, mark, 2), chain)  # noqa: B023
        before = max(steps(runs / "lm_2_4"), default=0)
        until(lambda: max(steps(runs / "lm_2_4"), default=0) > before, chain)  # noqa: B023
        if kill == "snakemake":
            chain.kill()
            chain.wait()
            assert pid in processes(mark)  # an orphan, which goes on
        elif kill == "group":
            os.killpg(chain.pid, signal.SIGKILL)
            chain.wait()
        else:
            os.kill(pid, signal.SIGKILL)
            output, _ = chain.communicate(timeout=300)
            assert chain.returncode == 1, output
        chain.stdout.close()
    assert max(steps(runs / "lm_2_4")) < LM["trainer"]["max_steps"]
    chain = start(tmp_path)
    output, _ = chain.communicate(timeout=300)
    assert chain.returncode == 0, output
    assert not processes(mark)

    # the same run without a kill
    monkeypatch.chdir(tmp_path)
    whole = ["fit", "--config", "configs/mini/small/lm.yaml", "--trainer.logger.init_args.version"]
    main([*whole, "whole", "--seed_everything", "2", "--data.init_args.order_seed", "4"])
    for path in (runs / "whole" / "checkpoints").iterdir():
        there, here = (
            torch.load(p, weights_only=True)["state_dict"]
            for p in (path, runs / "lm_2_4" / "checkpoints" / path.name)
        )
        assert all(torch.equal(there[name], here[name]) for name in there)
    main(["analyze", str(runs / "whole"), "--config", "configs/mini/small/observers.yaml"])
    tables = [pd.read_parquet(runs / run / "observations" / "learning_curves") for run in ("whole", "lm_2_4")]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    (seeds,) = (
        (config["seed_everything"], config["data"]["init_args"]["order_seed"])
        for config in [yaml.safe_load((runs / "lm_2_4" / "config.yaml").read_text(encoding="utf-8"))]
    )
    assert seeds == (2, 4)

    # other observers: what was trained stays
    later = {"trainer": {"callbacks": [*OBSERVERS["trainer"]["callbacks"],
             {"class_path": "LearningCurves", "init_args": {"name": "second", "log_figures": False}}]}}  # fmt: skip
    (tmp_path / "configs" / "mini" / "small" / "observers.yaml").write_text(yaml.safe_dump(later))
    output, _ = start(tmp_path, "-n").communicate(timeout=300)
    assert "rule observe:" in output
    assert "rule language_model:" not in output
