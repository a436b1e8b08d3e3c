import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lmdyn.analysis.parameters.loss_gradient import loss_gradient
from tests.analysis.landscape.recurrent_models import Recurrent


@pytest.fixture
def model():
    torch.manual_seed(0)
    module = Recurrent()
    module.unused = nn.Parameter(torch.ones(3))
    return module.double()


def text(rows=6, length=9, seed=1):
    ids = torch.randint(7, (rows, length), generator=torch.Generator().manual_seed(seed))
    labels = ids.roll(-1, 1)
    labels[:, -1] = -100
    labels[0, 2:5] = -100
    return {"input_ids": ids, "labels": labels}


def reading(model):
    return lambda batch: model(batch["input_ids"])


def test_it_is_the_gradient_of_backward(model):
    batch = text()
    found = loss_gradient(model, [batch], reading(model))
    loss = cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
    loss.backward()
    assert found.loss == pytest.approx(loss.item(), abs=1e-14)
    assert found.tokens == int((batch["labels"] != -100).sum())
    for name, parameter in model.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found.gradients[name], expected, rtol=0, atol=1e-14)


def test_it_does_not_depend_on_the_batches(model):
    batch = text()
    whole = loss_gradient(model, [batch], reading(model))
    parts = [{k: v[i : i + 1] for k, v in batch.items()} for i in range(6)]
    single = loss_gradient(model, parts, reading(model))
    assert single.loss == pytest.approx(whole.loss, abs=1e-14)
    for name, gradient in whole.gradients.items():
        torch.testing.assert_close(single.gradients[name], gradient, rtol=0, atol=1e-14)


def test_training_is_untouched_and_frozen_parameters_count(model):
    model.embedding.requires_grad_(False)
    found = loss_gradient(model, [text()], reading(model))
    assert not model.embedding.weight.requires_grad
    assert found.gradients["embedding.weight"].abs().sum() > 0
    assert all(p.grad is None for p in model.parameters())


def test_some_parameters_only(model):
    found = loss_gradient(model, [text()], reading(model), {"output.bias": model.output.bias})
    assert list(found.gradients) == ["output.bias"]


def test_no_label_is_an_error(model):
    batch = text()
    batch["labels"] = torch.full_like(batch["labels"], -100)
    with pytest.raises(ValueError, match="no token of the text has a label"):
        loss_gradient(model, [batch], reading(model))
