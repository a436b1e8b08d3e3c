"""What only a CUDA device can show: the same numbers there, invisibility there, a cuDNN RNN in eval mode."""

import lightning as L
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import lmdyn.analysis.inspection.linear_cross_entropy as chunked
from lmdyn.analysis.inspection.linear_cross_entropy import linear_cross_entropy
from lmdyn.analysis.probing.tower_heads import HeadTraining
from lmdyn.callbacks import Interdependence, LearningCurves, Run, RunState, Sparsity, Steps, TowerPreference
from lmdyn.callbacks.observing.recording import observe_together
from lmdyn.datamodules import GrammarCorpus, PretrainingCorpus
from lmdyn.models import LSTMLanguageModel, TwoTowerLanguageModel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZES = {"n_train_tokens": 4000, "n_validation_tokens": 1500, "n_test_tokens": 100, "n_nouns": 40, "n_verbs": 30,
         "n_adjectives": 20, "n_adverbs": 10, "n_names": 20, "n_facts": 10, "batch_size": 8}  # fmt: skip


def observers(**kwargs):
    return [
        Sparsity(matched_size=None, class_min_count=5, **kwargs),
        LearningCurves(**kwargs),
        Interdependence(min_pairs=5, max_distance=3, **kwargs),
    ]


def fit(tmp_path, callbacks, precision="32-true"):
    L.seed_everything(1)
    model = LSTMLanguageModel(embedding_size=16, hidden_size=16)
    trainer = L.Trainer(
        max_epochs=1, accelerator="gpu", devices=1, precision=precision, default_root_dir=tmp_path, logger=False,
        callbacks=[RunState(), *callbacks], enable_progress_bar=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(model, datamodule=GrammarCorpus(**SIZES))
    return {k: v.cpu() for k, v in model.state_dict().items()}


def test_cpu_and_gpu_observe_the_same(tmp_path):
    data = GrammarCorpus(**SIZES)
    data.prepare_data()
    data.setup()
    torch.manual_seed(0)
    model = LSTMLanguageModel(vocab_size=len(data.tokenizer), embedding_size=16, hidden_size=16)
    watching = observers()
    for observer in watching:
        observer.attach(Run(tmp_path, data.tokenizer, data.token_counts, data))
    on_cpu = observe_together(watching, model, 0)
    on_gpu = observe_together(watching, model.cuda(), 0)
    for a, b in zip(on_cpu, on_gpu, strict=True):
        a, b = (t[~t["quantity"].str.contains("rho|correlation")] for t in (a, b))
        pd.testing.assert_frame_equal(a, b, check_exact=False, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_observation_is_invisible_on_the_gpu(tmp_path, precision):
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        plain = fit(tmp_path / "plain", [], precision)
        again = fit(tmp_path / "again", [], precision)
        if not all(torch.equal(plain[k], again[k]) for k in plain):
            pytest.skip("training itself is not repeatable on this device")
        observed = fit(tmp_path / "observed", observers(schedule=Steps(every=5)), precision)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(plain[k], observed[k]) for k in plain)


def test_the_loss_waits_for_nothing_and_is_that_of_all_logits(monkeypatch):
    monkeypatch.setitem(chunked._CHUNK, "other", 90 * 20)
    torch.manual_seed(0)
    hidden, weight, bias = (
        torch.randn(*s, device="cuda", requires_grad=True) for s in ((50, 8), (90, 8), (90,))
    )
    labels = torch.randint(90, (50,), device="cuda")
    plain = F.cross_entropy(F.linear(hidden, weight, bias), labels, reduction="sum")
    expected = torch.autograd.grad(plain, (hidden, weight, bias))
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss = linear_cross_entropy(hidden, weight, bias, labels)
        found = torch.autograd.grad(loss, (hidden, weight, bias))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(loss, plain)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("tower", "objective"), [("elmo", "cloze"), ("gpt", "causal"), ("bert", "masked")])
def test_two_towers_on_cpu_and_gpu(tmp_path, tower, objective):
    corpus = GrammarCorpus(
        **{k: v for k, v in SIZES.items() if k != "batch_size"}, vocabulary="wordpiece", vocab_size=300
    )
    data = PretrainingCorpus(corpus, sequence_length=16, batch_size=8, objective=objective)
    data.prepare_data()
    torch.manual_seed(0)
    model = TwoTowerLanguageModel(
        tower, hidden_size=16, vocab_size=len(data.tokenizer), init_range=0.2, dropout=0.0
    )
    batch = next(iter(data.train_dataloader()))
    observer = TowerPreference(training=HeadTraining(updates=20), min_count=2, batch_rows=8)
    observer.attach(Run(tmp_path, data.tokenizer, data.token_counts, data))
    on_cpu, table = model.loss(batch), observer.observe(model, 0)
    model.cuda()
    on_gpu = model.loss({k: v.cuda() for k, v in batch.items()})
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=1e-4, atol=1e-4)
    pd.testing.assert_frame_equal(
        table.query("by == 'tower'"), observer.observe(model, 0).query("by == 'tower'"), rtol=1e-2
    )
