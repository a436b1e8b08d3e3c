"""Models and datasets by hub name, as a process finds them: on a stand-in hub, with the layouts of published ones."""

import os
import subprocess
import threading

import pandas as pd
import pytest
import torch
import yaml
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from tests.analysis.words.test_surprisal import TEXTS
from tests.helpers.foreign_tokenizers import byte_level
from tests.helpers.hub import Hub
from tests.helpers.interpreter import Interpreter

pytestmark = pytest.mark.slow

SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
TEXT = {
    **dict.fromkeys(("train", "validation", "test"), "text.txt"),
    "lowercase": False,
    "drop_rare_sentences": False,
}
CURVES = {"schedule": {"at": [0]}, "probe": {"class_path": "TextCorpus", "init_args": TEXT}}
OBSERVERS = {"trainer": {"callbacks": [{"class_path": "LearningCurves", "init_args": CURVES}]}}


def lmdyn(hub, folder, *args, fails=False):
    """A command in a process of its own, on this hub."""
    done = subprocess.run(
        [hub.python, "-m", "lmdyn.cli", *args],
        env={**os.environ, **hub.environment(hub.root.parent / "cache")},
        cwd=folder, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    with Hub(folder / "hub").serve() as hub, Interpreter(hub.environment(folder / "cache")) as python:
        hub.python = python.executable
        yield hub


@pytest.fixture
def hub(served):
    yield served
    served.asked.clear()
    served.latency = 0.0


@pytest.fixture
def here(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(TEXTS * 3) + "\n")
    (tmp_path / "observers.yaml").write_text(yaml.safe_dump(OBSERVERS))
    return tmp_path


def pythia(folder, seed):
    torch.manual_seed(seed)
    tokenizer = byte_level(TEXTS, bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    config = GPTNeoXConfig(vocab_size=len(tokenizer), **SIZES, max_position_embeddings=64)
    GPTNeoXForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def test_revisions_of_a_model(hub, here):
    for seed, revision in enumerate(["main", "step0", "step1000", "step143000"]):
        pythia(hub.folder("models", "EleutherAI/pythia-14m", revision), seed)
    hub.fail(r"resolve/.*safetensors")  # once; the libraries try again
    hub.latency = 0.01
    lmdyn(hub, here, "analyze", "EleutherAI/pythia-14m", "--revisions", "step*", "--config", "observers.yaml",
          "--out", "found")  # fmt: skip
    assert any("/refs" in path for path in hub.asked)
    seen = pd.read_parquet(here / "found" / "observations" / "learning_curves")
    assert sorted(seen["step"].unique()) == [0, 1000, 143000]
    said = lmdyn(hub, here, "analyze", "EleutherAI/pythia-14m", "--revisions", "step7", "--config", "observers.yaml",
                 "--out", "found", fails=True)  # fmt: skip
    assert "at revision 'step7' is no folder here" in said


def test_the_cache_of_the_hub_stays_below_its_bound(hub, here):
    for seed in range(7):
        pythia(hub.folder("models", "org/gpt", f"step{seed}"), seed)
    command = ["analyze", "org/gpt", "--config", "observers.yaml", "--revisions"]
    lmdyn(hub, here, *command, "step5", "--out", "before")
    repository = next((hub.root.parent / "cache").rglob("models--org--gpt"))
    there = sorted(p.name for p in (repository / "snapshots").iterdir())
    most, ended = [0], threading.Event()

    def look():
        while not ended.wait(0.02):
            most[0] = max(most[0], len(list((repository / "snapshots").glob("*/model.safetensors"))))

    looking = threading.Thread(target=look)
    looking.start()
    lmdyn(hub, here, *command, "step*", "--out", "found", "--keep", "2")
    ended.set()
    looking.join()
    seen = pd.read_parquet(here / "found" / "observations" / "learning_curves")
    assert sorted(seen["step"].unique()) == list(range(7))
    assert 2 <= most[0] <= 2 + 1 + 1  # the bound, that of step 5, and the first
    left = sorted(p.name for p in (repository / "snapshots").iterdir())
    assert set(there) < set(left)
    assert len(left) == 2  # and the first
