import math

import pytest
import torch
from torch import nn

from lmdyn.callbacks import Curvature, Run
from tests.helpers.modules import Bigrams
from tests.helpers.refusals import assert_refused


def text(vocabulary=5, rows=4, length=7):
    ids = torch.randint(vocabulary, (rows, length + 1), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row[None, :-1], "labels": row[None, 1:]} for row in ids]


def attached(tmp_path, batches, **arguments):
    observer = Curvature(probe=batches, labels="aligned", log_figures=False, **arguments)
    observer.attach(Run(log_dir=tmp_path))
    return observer


def values(table):
    plain = table[table["index"].isna()].set_index("quantity")["value"]
    return plain, table[table["quantity"] == "eigenvalue"]["value"].tolist()


def test_a_loss_whose_hessian_is_known(tmp_path):
    torch.manual_seed(0)
    module, batches = Bigrams(5).double(), text()
    ids = torch.cat([b["input_ids"].flatten() for b in batches])
    labels = torch.cat([b["labels"].flatten() for b in batches])
    p = module.table.weight.detach().softmax(-1)
    share = torch.bincount(ids, minlength=5).double() / len(ids)
    blocks = [(p[w].diag() - p[w].outer(p[w])) * share[w] for w in range(5)]
    hessian = torch.block_diag(*blocks)
    counts = [(ids == w).sum() * p[w] - torch.bincount(labels[ids == w], minlength=5) for w in range(5)]
    gradient = torch.cat(counts) / len(ids)
    plain, largest = values(attached(tmp_path, batches, eigenvalues=3, probes=25).observe(module, 0))
    assert largest == pytest.approx(torch.linalg.eigvalsh(hessian).flip(0)[:3].tolist(), abs=1e-12)
    assert plain["trace"] == pytest.approx(float(hessian.trace()), abs=1e-12)
    assert plain["trace_error"] == 0
    assert plain["gradient_norm"] == pytest.approx(float(gradient.norm()), abs=1e-12)
    along = float(gradient @ hessian @ gradient / (gradient @ gradient))
    assert plain["gradient_curvature"] == pytest.approx(along, abs=1e-12)
    assert along <= largest[0]
    start = module.table.weight.detach()

    def loss(step):
        logits = (start.flatten() - step * gradient).view(5, 5)[ids]
        return float(nn.functional.cross_entropy(logits, labels))

    step = 2 / plain["critical_sharpness_gradient"]
    assert loss(0.99 * step) < loss(0) < loss(1.01 * step)


def test_no_step_lowers_the_loss_of_a_minimum(tmp_path, caplog):
    module = Bigrams(5).double()
    nn.init.zeros_(module.table.weight)
    ids = torch.arange(5).repeat_interleave(5)[None]
    batches = [{"input_ids": ids, "labels": torch.arange(5).repeat(5)[None]}]
    plain, _ = values(attached(tmp_path, batches).observe(module, 0))
    assert plain["gradient_norm"] < 1e-12
    assert math.isnan(plain["critical_sharpness_gradient"])
    assert "or no step lowers the loss" in caplog.text


def test_modules_without_a_curvature_are_refused(tmp_path):
    assert_refused(
        lambda module: attached(tmp_path, text()).observe(module, 0),
        (Bigrams(5).requires_grad_(False), "expected more than 1 trainable parameters in Bigrams, got 0"),
        (Bigrams(5).bfloat16(), "expected weights in float32 or float64.*got torch.bfloat16"),
    )
