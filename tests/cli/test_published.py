"""Configurations for published models, each by its one command: models of their layout, on a stand-in of the hub."""

import os
from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import (
    BertConfig,
    BertForPreTraining,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
)

from tests.analysis.words.test_surprisal import byte_level
from tests.cli.test_hub import lmdyn
from tests.helpers.hub import Hub
from tests.helpers.published import (
    publish_albert,
    publish_glue,
    publish_wikitext,
    raw_articles,
    sentencepiece_like,
)
from tests.helpers.tiny import tiny_configs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.realdata,
    pytest.mark.skipif("LMDYN_DATA" not in os.environ, reason="LMDYN_DATA is not set"),
]

ROOT = Path(__file__).parents[2]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture
def hub(tmp_path):
    with Hub(tmp_path / "hub").serve() as served:
        yield served


def shipped(folder, name):
    """A tiny copy of a shipped configuration; what its header says of steps and revisions is not in it."""
    return str(tiny_configs(ROOT / "configs" / "published", folder) / name)


def analyzed(hub, folder, model, config, *options):
    """The steps that each observer saw."""
    lmdyn(hub, folder, "analyze", model, *options, "--config", shipped(folder, config), "--out", "found")
    observations = folder / "found" / "observations"
    return {path.name: pd.read_parquet(path) for path in observations.iterdir() if path.is_dir()}


@pytest.mark.parametrize(
    ("model", "revisions", "asked", "steps", "kind"),
    [
        ("EleutherAI/pythia-160m", ("step0", "step512", "step143000"), "step*", [0, 512, 143000], "neox"),
        ("EleutherAI/pythia-160m-seed3", ("step0", "step1"), "step*", [0, 1], "neox"),
        (
            "allenai/OLMo-2-0425-1B",
            ("stage1-step0-tokens0B", "stage1-step10000-tokens21B", "stage2-ingredient1-step1000-tokens3B"),
            "stage1-step*", [0, 10000], "olmo2",
        ),
    ],
)  # fmt: skip
def test_causal(hub, tmp_path, model, revisions, asked, steps, kind):
    tokenizer = byte_level(bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    for seed, revision in enumerate(["main", *revisions]):
        torch.manual_seed(seed)
        folder = hub.folder("models", model, revision)
        made = {
            "neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=len(tokenizer), **SIZES)),
            "olmo2": lambda: Olmo2ForCausalLM(
                Olmo2Config(vocab_size=len(tokenizer), pad_token_id=None, **SIZES)
            ),
        }[kind]()
        made.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    found = analyzed(hub, tmp_path, model, "causal.yaml", "--revisions", asked)
    assert {"learning_curves", "similarity", "diagnostic_probe", "attention_patterns"} == set(found)
    for name, table in found.items():
        there = sorted(table["step"].unique())
        assert there == (steps[1:] if name == "similarity" else steps), name
    loss = found["learning_curves"].query("quantity == 'loss'")
    assert loss["value"].notna().all()


def test_masked(hub, tmp_path):
    tokenizer = sentencepiece_like(raw_articles())
    for seed, step in enumerate(("0k", "20k")):
        torch.manual_seed(seed)
        folder = hub.folder("models", f"google/multiberts-seed_0-step_{step}")
        BertForPreTraining(BertConfig(vocab_size=len(tokenizer), **SIZES)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    found = analyzed(
        hub, tmp_path, "google/multiberts-seed_0-step_{}", "masked.yaml", "--revisions", "0k,20k"
    )
    assert {"token_learning", "edge_probe", "world_knowledge", "attention_patterns"} == set(found)
    assert all(sorted(table["step"].unique()) == [0, 20000] for table in found.values())


def test_dynamics(hub, tmp_path):
    publish_albert(hub, "albert/albert-large-v2", raw_articles())
    publish_wikitext(hub, raw_articles())
    publish_glue(hub, Path(os.environ["LMDYN_DATA"], "glue"))
    found = analyzed(hub, tmp_path, "albert/albert-large-v2", "albert_dynamics.yaml")
    assert {"encoder_dynamics", "depth_performance", "handwriting"} == set(found)
    shares = found["encoder_dynamics"].query("quantity == 'orbit_share'")
    assert shares["value"].sum() == pytest.approx(1)
