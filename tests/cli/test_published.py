"""configs/published, each by the command of its header: on a stand-in hub, with the layouts of published models."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
import torch
import transformers as T

from tests.analysis.words.test_surprisal import TEXTS
from tests.helpers.excerpts import excerpt_data, plain_documents, stand_in_spacy
from tests.helpers.foreign_tokenizers import byte_level
from tests.helpers.hub import Hub
from tests.helpers.interpreter import Interpreter
from tests.helpers.published import publish_albert, publish_glue, publish_wikipedia
from tests.helpers.tiny import tiny_configs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.realdata,
    pytest.mark.skipif("LMDYN_DATA" not in os.environ, reason="LMDYN_DATA is not set"),
]

ROOT = Path(__file__).parents[2]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A hub with the datasets, tiny configurations beside it."""
    folder = tmp_path_factory.mktemp("published")
    whole = Path(os.environ["LMDYN_DATA"])
    data = excerpt_data(whole, folder / "data")
    tiny_configs(ROOT / "configs", folder)
    stand_in_spacy(folder / "packages", data / "ud_ewt" / "en_ewt-ud-train.conllu")
    with Hub(folder / "hub").serve() as served:
        documents = plain_documents(whole / "wikitext-2" / "valid.txt")
        publish_wikipedia(served, documents)
        publish_albert(served, "albert/albert-large-v2", documents)
        publish_glue(served, whole / "glue", tasks=["stsb"])
        with Interpreter(environment(served)) as python:
            served.python = python.executable
            yield served


def commands(name: str) -> list[list[str]]:
    """Those of a configuration's header."""
    header = (ROOT / "configs" / "published" / f"{name}.yaml").read_text().split("\ntrainer:")[0]
    text = header.replace("#", "").replace("\\\n", " ")
    return [
        match.replace("'", "").split()
        for match in re.findall(r"lmdyn\.cli (analyze .*? --out \S+?)(?=[;\n])", text)
    ]


def environment(hub: Hub) -> dict[str, str]:
    folder = hub.root.parent
    return {
        **os.environ, **hub.environment(folder / "home"), "PYTHONPATH": f"{folder / 'packages'}:{ROOT}",
        "LMDYN_DATA": str(folder / "data"), "LMDYN_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def lmdyn(hub: Hub, *words: str) -> str:
    done = subprocess.run(
        [hub.python, "-m", "lmdyn.cli", *words],
        env=environment(hub), cwd=hub.root.parent, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def observed(hub: Hub, out: str) -> dict[str, set[int]]:
    folders = (hub.root.parent / out / "observations").iterdir()
    return {f.name: set(pd.read_parquet(f)["step"]) for f in folders}


def seen_at(steps: set[int], *observers: str) -> dict[str, set[int]]:
    return dict.fromkeys(observers, steps)


def gpt_neox(folder: Path) -> None:
    tokenizer = byte_level(TEXTS, bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    config = T.GPTNeoXConfig(vocab_size=len(tokenizer), **SIZES, max_position_embeddings=2048)
    T.GPTNeoXForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# with none before the first
SEEN = seen_at({0, 1000}, "learning_curves", "diagnostic_probe", "attention_patterns")


def test_seeds_of_pythia(hub):
    """PolyPythias: a model for each seed, a revision for each step; claims know the seeds by the names."""
    _, words, _ = commands("causal")
    out = [words[words.index("--out") + 1].replace("$s", str(seed)) for seed in (1, 2)]
    for seed, folder in zip((1, 2), out, strict=True):
        name = f"EleutherAI/pythia-70m-seed{seed}"
        for step in ("main", "step0", "step1000"):
            torch.manual_seed(10 * seed + len(step))
            gpt_neox(hub.folder("models", name, step))
        lmdyn(hub, *(word.replace("$s", str(seed)) for word in words))
        assert observed(hub, folder) == SEEN | {"similarity": {1000}}
    table = lmdyn(hub, "claims", "saphra2019_sparsity", *out)
    assert "2 runs, seeds 1, 2" in " ".join(table.split())


def test_revisions_of_olmo(hub):
    *_, words = commands("causal")
    name = words[1]
    for step in (
        "stage1-step1000-tokens3B",
        "stage1-step20000-tokens42B",
        "stage2-ingredient1-step1000-tokens3B",
        "main",
    ):
        tokenizer = byte_level(TEXTS, eos_token="<|endoftext|>", pad_token="<|pad|>")
        torch.manual_seed(len(step))
        config = T.Olmo2Config(
            vocab_size=len(tokenizer), **SIZES, max_position_embeddings=4096, pad_token_id=None
        )
        T.Olmo2ForCausalLM(config).save_pretrained(hub.folder("models", name, step))
        tokenizer.save_pretrained(hub.folder("models", name, step))
    lmdyn(hub, *words)
    assert observed(hub, words[-1])["learning_curves"] == {1000, 20000}


def test_checkpoints_of_multiberts(hub):
    """Models of their own, whose files are pytorch_model.bin and vocab.txt."""
    (words,) = commands("masked")
    steps = words[words.index("--revisions") + 1].split(",")
    assert (len(steps), steps[-1]) == (29, "2000k")
    for i, step in enumerate(("0k", "20k")):
        torch.manual_seed(i)
        folder = hub.folder("models", words[1].replace("{}", step))
        model = T.BertForPreTraining(T.BertConfig(vocab_size=30522, **SIZES))
        model.config.architectures = ["BertForPreTraining"]
        model.config.save_pretrained(folder)
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        shutil.copy(
            Path(os.environ["LMDYN_DATA"], "vocab", "bert-base-uncased-vocab.txt"), folder / "vocab.txt"
        )
    lmdyn(hub, *("0k,20k" if word.startswith("0k,") else word for word in words))
    assert observed(hub, words[-1]) == seen_at(
        {0, 20000}, "learning_curves", "token_learning", "attention_patterns"
    )
