"""The runs that the scripts of the gallery share: small models on the embedded corpus, each trained once.

Each function trains a model with a ScheduledCheckpoint, or returns the run of an earlier call from
``docs/_build/gallery_runs``. The name of a folder depends on the content of lmdyn's sources and of this file. The
figures therefore never show the runs of older code.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import lightning as L
import pandas as pd
import torch

import lmdyn
from lmdyn.callbacks import LearningCurves, Observer, Run, ScheduledCheckpoint, Sparsity, Steps
from lmdyn.datamodules import GrammarCorpus, Masking, PretrainingCorpus, ScaffoldCorpus
from lmdyn.models import (
    LoopedLanguageModel,
    LSTMLanguageModel,
    LSTMTagger,
    MaskedLanguageModel,
    TwoTowerLanguageModel,
)

torch.set_num_threads(
    1
)  # the products are too small for several threads, and with one thread the numbers are the same everywhere

HERE = Path(__file__).resolve()
RUNS = HERE.parents[1] / "_build" / "gallery_runs"
LEXICON = {
    "n_topics": 10, "n_nouns": 100, "n_verbs": 50, "n_adjectives": 30, "n_adverbs": 15, "n_names": 60, "n_facts": 30,
}  # fmt: skip
FEWER = {
    "n_topics": 3,
    "n_nouns": 15,
    "n_verbs": 10,
    "n_adjectives": 6,
    "n_adverbs": 3,
    "n_names": 16,
    "n_facts": 16,
}
QUIET: dict[str, Any] = {
    "accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}  # fmt: skip
SCHEDULE = Steps(per_decade=4, epochs=True)


@dataclass(frozen=True)
class Trained:
    """A run, with its folder, the class of its model, and its data."""

    folder: Path
    kind: type[L.LightningModule]
    data: Any

    @property
    def checkpoints(self) -> dict[int, Path]:
        """Return the checkpoint of each scheduled step; a step is a number of updates, and 0 is the untrained model."""
        paths = sorted((self.folder / "checkpoints").glob("step=*.ckpt"))
        return {int(path.stem.removeprefix("step=")): path for path in paths}

    @property
    def last(self) -> int:
        """Return the last step."""
        return max(self.checkpoints)

    def module(self, step: int | None = None) -> Any:
        """Return the model at a step; the default is the last step."""
        path = self.checkpoints[self.last if step is None else step]
        return self.kind.load_from_checkpoint(path, map_location="cpu", weights_only=True).eval()

    def attach(self, observer: Observer) -> Observer:
        """Attach an observer to the run, as a Trainer and ``lmdyn analyze`` do."""
        tokenizer, counts = self.data.tokenizer, self.data.token_counts
        observer.attach(Run(self.folder, tokenizer, counts, self.data, self.checkpoints))
        return observer

    def observe(self, observer: Observer, steps: Iterable[int] | None = None) -> pd.DataFrame:
        """Return the rows that ``lmdyn analyze`` would write for an observer, at some steps or at all steps."""
        self.attach(observer)
        return pd.concat(
            [observer.observe(self.module(s), s) for s in (steps or self.checkpoints)], ignore_index=True
        )


def grammar(**settings: Any) -> GrammarCorpus:
    """Return the embedded corpus: sentences of a small grammar with all gold layers, without files or downloads."""
    sizes = {"n_train_tokens": 100_000, "n_validation_tokens": 10_000, "n_test_tokens": 5_000}
    return GrammarCorpus(
        **{**LEXICON, **sizes, "batch_size": 20, "cache_dir": str(RUNS / "text"), **settings}
    )


@cache
def lstm(seed: int = 1) -> Trained:
    """Return a two-layer LSTM that predicts the next word; LearningCurves and Sparsity observe its training.

    Seeds other than the first are observed at the start and at the end only.
    """
    schedule = SCHEDULE if seed == 1 else Steps()
    observers = [
        LearningCurves(schedule=schedule, bands=(10, 100)),
        Sparsity(schedule=schedule, class_min_count=20, matched_size=None),
    ]
    optimizer = lambda params: torch.optim.Adam(params, lr=5e-3)
    model = lambda: LSTMLanguageModel(
        embedding_size=64, hidden_size=64, optimizer=optimizer, anneal_factor=None
    )
    return _trained(f"lstm_{seed}", seed, model, grammar(), observers, max_epochs=2)


@cache
def tagger(shuffled: bool = False) -> Trained:
    """Return a one-layer LSTM that predicts the next word's part of speech; with shuffled labels, it is a floor."""
    model = lambda: LSTMTagger("upos", shuffled_labels=shuffled, embedding_size=64, hidden_size=64)
    data = grammar(layers=["upos", "shuffled_upos"])
    return _trained(f"tagger_{shuffled}", 1, model, data, max_epochs=2)


def pieces(**settings: Any) -> PretrainingCorpus:
    """Return rows of word pieces for masked and two-tower models, from a corpus with fewer words and more facts."""
    corpus = grammar(**FEWER, fact_rate=0.4, topic_boost=50, vocabulary="wordpiece", vocab_size=1500)
    return PretrainingCorpus(corpus, **{"sequence_length": 32, "batch_size": 16, **settings})


@cache
def albert(updates: int = 900) -> Trained:
    """Return a small ALBERT that applies one layer three times and predicts masked words and the order of segments."""
    config = {
        "embedding_size": 64, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3,
        "num_attention_heads": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    model = lambda: MaskedLanguageModel(
        "albert", config, optimizer=lambda params: torch.optim.AdamW(params, lr=2e-3), warmup_steps=50
    )
    return _trained("albert", 1, model, pieces(pairs="order", masking=Masking(share=0.3)), max_steps=updates)


@cache
def towers(updates: int = 600) -> Trained:
    """Return two encoders that are trained together to predict each word from the words around it."""
    model = lambda: TwoTowerLanguageModel(
        "elmo",
        hidden_size=48,
        num_layers=1,
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3),
        warmup_steps=50,
    )
    return _trained("towers", 1, model, pieces(objective="cloze"), max_steps=updates)


@cache
def looped(updates: int = 150) -> Trained:
    """Return a Llama that applies its two middle layers a random number of times in each update."""
    config = {
        "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2,
        "max_position_embeddings": 64, "tie_word_embeddings": True,
    }  # fmt: skip
    model = lambda: LoopedLanguageModel(
        config=config, depth=4, optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3), warmup_steps=50
    )
    return _trained("looped", 1, model, grammar(batch_size=8, sequence_length=64), max_steps=updates)


@cache
def scaffold(familiar: bool) -> Trained:
    """Return an LSTM that learns the rule that α announces ω, across familiar or unfamiliar scaffolds."""
    data = ScaffoldCorpus(
        familiar, length=2, n_rules=1000, n_outside=40, n_types=30, n_phrases=20, n_train_tokens=30_000,
        n_validation_tokens=2_000, n_test_tokens=1_000, batch_size=10, cache_dir=str(RUNS / "text"),
    )  # fmt: skip
    model = lambda: LSTMLanguageModel(
        embedding_size=32, hidden_size=32, num_layers=1, dropout=0.0, anneal_factor=None,
        optimizer=lambda params: torch.optim.SGD(params, lr=5.0),
    )  # fmt: skip
    return _trained(f"scaffold_{familiar}", 1, model, data, max_epochs=8)


def folder(name: str) -> Path:
    """Return an empty folder for a run that only one script trains."""
    shutil.rmtree(place := RUNS / name, ignore_errors=True)
    return place


def _trained(
    name: str,
    seed: int,
    model: Callable[[], L.LightningModule],
    data: Any,
    observers: Sequence[Observer] = (),
    **length: int,
) -> Trained:
    RUNS.mkdir(parents=True, exist_ok=True)
    folder = RUNS / f"{name}-{_content()}"
    if not folder.exists():
        part = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=RUNS))  # another build may train the same
        L.seed_everything(seed)
        savers = [ScheduledCheckpoint(SCHEDULE)]
        trainer = L.Trainer(default_root_dir=part, callbacks=[*savers, *observers], **QUIET, **length)
        trainer.fit(model(), datamodule=data)
        data.tokenizer.save_pretrained(part / "tokenizer")
        (part / "config.yaml").write_text(
            f"seed_everything: {seed}\n"
        )  # of what `lmdyn fit` writes: claims read it
        if not folder.exists():
            part.rename(folder)
    data.prepare_data()
    data.setup("fit")
    return Trained(folder, type(model()), data)


@cache
def _content() -> str:
    sources = sorted(Path(lmdyn.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in [HERE, *sources])).hexdigest()[:12]


def keep(table: pd.DataFrame, name: str) -> None:
    """Write the observations that an observer's page shows."""
    table.assign(run="lstm").to_parquet(HERE.parents[1] / "observers" / f"{name}.parquet", index=False)
