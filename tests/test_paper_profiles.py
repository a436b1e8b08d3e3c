"""Full-size profiles from the first job to claims, by their one command: made tiny, on a stand-in of the hub."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.helpers import published as P
from tests.helpers.excerpts import excerpt_data, plain_documents, stand_in_spacy
from tests.helpers.hub import Hub
from tests.helpers.interpreter import Interpreter
from tests.helpers.tiny import tiny_configs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.realdata,
    pytest.mark.skipif("LMDYN_DATA" not in os.environ, reason="LMDYN_DATA is not set"),
    pytest.mark.skipif(
        shutil.which("snakemake", path=Path(sys.executable).parent) is None, reason="no snakemake"
    ),
]

ROOT = Path(__file__).parents[1]


class Place:
    """A folder with tiny configurations, excerpts of the data, and a hub that has all that they name."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        whole = Path(os.environ["LMDYN_DATA"])
        self.folder, self.hub = folder, hub
        data = excerpt_data(whole, folder / "data")
        documents = plain_documents(whole / "wikitext-2" / "valid.txt")
        P.publish_albert(hub, "albert/albert-large-v2", documents)
        P.publish_tokenizers(hub, whole / "vocab")
        P.publish_wikipedia(hub, documents)
        for publish in (P.publish_gutenberg, P.publish_openwebtext, P.publish_books, P.publish_squad):
            publish(hub, documents)
        splits = {"train": "train", "validation": "valid", "test": "test"}
        P.publish_wikitext(hub, {s: data / "wikitext-2" / f"{file}.txt" for s, file in splits.items()})
        P.publish_glue(hub, whole / "glue")
        packages = stand_in_spacy(folder / "packages", data / "ud_ewt" / "en_ewt-ud-train.conllu")
        tiny_configs(ROOT / "configs", folder)
        self.environment = {
            **os.environ, **hub.environment(folder / "home"), "PYTHONPATH": f"{packages}:{ROOT}",
            "LMDYN_DATA": str(data), "LMDYN_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self.interpreter = Interpreter(self.environment)

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [self.interpreter.executable, *arguments]
        place = {"env": self.environment, "cwd": self.folder}
        return subprocess.run(command, **place, capture_output=True, text=True, timeout=1200, check=False)

    def chain(self, profile: str, *runs: str) -> Path:
        """``lmdyn check`` and the profile's command, to its claims; answers the folder of its runs.

        With names of runs, to their observations, and the command of claims: without the report, whose figures take
        longer than all else.
        """
        self.check(profile)
        cores = str(min(2, len(os.sched_getaffinity(0))))
        there = Path("runs", profile)
        targets = [str(there / "done" / f"observed_{run}") for run in runs]
        done = self.run("-m", "snakemake", "--profile", f"configs/{profile}", "--cores", cores, *targets)
        logs = {path.name: path.read_text() for path in (self.folder / there).rglob("logs/*.log")}
        assert done.returncode == 0, done.stderr[-2000:] + "\n".join(
            f"{name}: {log[-1500:]}" for name, log in logs.items() if "rror" in log
        )
        claims = there / "claims.md"
        if runs:
            study, folders = profile.partition("/")[0], [str(there / run) for run in runs]
            done = self.run("-m", "lmdyn.cli", "claims", study, *folders, "--markdown", str(claims))
            assert done.returncode == 0
        else:
            assert (self.folder / there / "report" / "index.html").exists()
        said = (self.folder / claims).read_text()
        assert "\n| " in said
        verdicts = re.findall(r"\d+ ([a-z ]+)", " ".join(re.findall("; questions: (.*)", said)))
        assert set(verdicts) - {"not measured"}, said[:3000]
        return self.folder / there

    def check(self, profile: str) -> None:
        """``lmdyn check`` finds no error, and says what of memory and disk is needed."""
        words = ["--config", f"configs/{profile}/lm.yaml", "--json"]
        if profile == "saphra2019_svcca/paper":  # whose tokenizer and references earlier runs make
            words.append("--data.init_args.tokenizer=null")
        elif not profile.startswith(("he2022", "inoue2022")):
            words += ["--replay", f"configs/{profile}/observers.yaml"]
        done = self.run("-m", "lmdyn.cli", "check", *words)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
        lines = json.loads(done.stdout)
        assert not [line for line in lines if line["verdict"] == "error"]
        assert any("memory about" in line["says"] and "checkpoint" in line["says"] for line in lines)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    with Hub(folder / "hub").serve() as served:
        made = Place(folder, served)
        with made.interpreter:
            yield made


def observed(run: Path) -> set[str]:
    return {path.name for path in (run / "observations").iterdir()}


def rows(run: Path, observer: str) -> pd.DataFrame:
    return pd.read_parquet(run / "observations" / observer)


def test_transient_chaos(place):
    runs = place.chain("inoue2022_chaos/paper")
    assert observed(runs / "pretrained") == {
        "encoder_dynamics", "encoder_dynamics_stsb", "depth_performance", "handwriting",
    }  # fmt: skip
    kinds = rows(runs / "pretrained", "encoder_dynamics")
    assert kinds.loc[kinds["quantity"] == "orbit_share", "value"].sum() == pytest.approx(1)


@pytest.mark.parametrize(
    "profile",
    [
        "saphra2019_sparsity/paper", "saphra2020_di/english", "saphra2020_di/scaffold", "saphra2019_svcca/paper",
        "chiang2020_embryology/organism", "geiping2025_loops/organism", "changbergen2022_acquisition/organism",
        "changbergen2022_acquisition/wikitext2",
    ],
)  # fmt: skip
def test_profiles_whose_chains_do_not_run(place, profile):
    """Their model builds, and their observers bind to it; their chains are like others, in other sizes."""
    place.check(profile)


def test_embryology(place):
    runs = place.chain("chiang2020_embryology/paper", "albert", "bert")
    everything = {
        "learning_curves", "reconstruction", "prediction", "edge_probe", "world_knowledge", "attention_patterns",
        "downstream",
    }  # fmt: skip
    assert {run: observed(runs / run) for run in ("albert", "bert")} == dict.fromkeys(
        ("albert", "bert"), everything
    )
    assert {"pos", "constituents", "roles", "coreference"} <= set(rows(runs / "albert", "edge_probe")["task"])
    said = (runs / "logs" / "observe_albert.log").read_text()
    assert "fewer fine-tuning updates than published: CoLA 2 of 5,336" in said
    # the second phase of BERT has gone on where the first had ended, in longer rows
    assert sorted(rows(runs / "bert", "reconstruction")["step"].unique())[-1] == 5
    assert sorted(path.name for path in (runs / "bert").glob("phase_*")) == ["phase_1"]


def test_two_towers(place):
    instances = ("bert_base", "elmo", "gpt")
    runs = place.chain("he2022_twotower/paper", *instances)
    for run in instances:
        assert observed(runs / run) == {"tower_preference", "word_clusters"}
        found = rows(runs / run, "tower_preference")
        assert {"token", "upos"} <= set(found["by"])
        assert "head_reliability" in set(found["quantity"])
        assert found["step"].min() == 0 < found["step"].max()  # claims compare with the untrained model
