"""The page of architectures agrees with measurements, and losses agree with those of transformers."""

import pytest
import torch

from lmdyn.callbacks import LearningCurves
from lmdyn.callbacks.observing.run import Run
from tests.helpers import architecture_table as T
from tests.helpers.architectures import ARCHITECTURES, CAUSAL, MASKED, VOCABULARY

pytestmark = pytest.mark.slow
AT_LEAST_FOR_T5 = ("LearningCurves", "Similarity", "AttentionPatterns", "DiagnosticProbe")
EVERYWHERE = (
    "DiagnosticProbe", "EdgeProbe", "Interdependence", "LearningCurves", "Similarity", "Sparsity", "WordClusters",
)  # fmt: skip


@pytest.fixture(scope="module")
def written():
    return T.read_page(T.PAGE.read_text(encoding="utf-8"))


def test_page_has_a_cell_for_every_observer_on_every_architecture(written):
    assert list(written) == list(ARCHITECTURES)
    assert all(list(cells) == list(T.exported()) for cells in written.values())
    assert T.exported().keys() == T.OBSERVERS.keys()
    assert T.page(written) == T.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_page_says_what_is_measured(written, name):
    """Else: ``python -m tests.helpers.architecture_table``."""
    assert T.measure(name) == written[name]


def test_what_has_to_run_does(written):
    assert not any(written["t5"][observer] for observer in AT_LEAST_FOR_T5)
    for name, cells in written.items():
        refused = {observer for observer in EVERYWHERE if cells[observer]}
        assert refused == ({"Sparsity"} if name == "t5" else set()), name
    for name in MASKED:
        for observer in ("TokenLearning", "WorldKnowledge", "DepthPerformance"):
            assert not written[name][observer]


# ---------------------------------------------------------------- losses


def hugging_face_batches(name):
    """Rows of unequal length, padded, in transformers' own convention; of masked models, some tokens masked."""
    g = torch.Generator().manual_seed(0)
    for lengths in ((12, 9, 4), (7, 12)):
        ids = torch.randint(4, VOCABULARY, (len(lengths), 12), generator=g)
        mask = torch.arange(12) < torch.tensor(lengths)[:, None]
        labelled = mask & (torch.rand(ids.shape, generator=g) < 0.3) if name in MASKED else mask
        inputs = torch.where(mask, torch.where(labelled, 3, ids) if name in MASKED else ids, 0)
        labels = torch.where(labelled, ids, -100)
        yield {"input_ids": inputs, "attention_mask": mask.long(), "labels": labels}


def their_loss(module, batches, name):
    """transformers' own, over all labelled tokens."""
    total = count = 0.0
    for batch in batches:
        with torch.no_grad():
            loss = module(**batch).loss.double().item()
        labels = batch["labels"] if name in MASKED else batch["labels"][:, 1:]
        n = int((labels != -100).sum())
        total, count = total + n * loss, count + n
    return total / count


@pytest.mark.parametrize("name", [*CAUSAL, *MASKED])
def test_losses_are_those_of_transformers(name, tmp_path):
    module, batches = ARCHITECTURES[name](), list(hugging_face_batches(name))
    expected = their_loss(module, batches, name)

    observer = LearningCurves(layers=[], bands=[], probe=batches)
    observer.attach(Run(tmp_path))
    table = observer.observe(module, 0)
    overall = table[table["quantity"].eq("loss") & table["by"].eq("")]["value"].item()
    assert overall == pytest.approx(expected, rel=1e-6)
