"""Measured dependence of logits on tokens, against a convolution whose reach is known and against gradients."""

import pytest
import torch
from torch import nn

from lmdyn.analysis.inspection.token_effects import OFFSETS, token_effects
from tests.helpers.architectures import ARCHITECTURES, MASKED, VOCABULARY, example_batch


class Window(nn.Module):
    """The logits at t are a linear function of the tokens from t - left to t + right."""

    def __init__(self, left, right, classes=7):
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.left, self.right = left, right
        self.embedding = nn.Embedding(9, 5, _weight=torch.randn(9, 5, generator=g))
        self.weight = nn.Parameter(torch.randn(classes, 5, left + right + 1, generator=g))

    def forward(self, input_ids):
        x = self.embedding(input_ids).transpose(1, 2)
        return nn.functional.conv1d(nn.functional.pad(x, (self.left, self.right)), self.weight).transpose(
            1, 2
        )


def batch_of(rows=4, length=9):
    g = torch.Generator().manual_seed(1)
    return {"input_ids": torch.randint(0, 9, (rows, length), generator=g)}


def everything(batch):
    return [torch.ones_like(batch["input_ids"], dtype=torch.bool)] * 2


def effects_of(module, batch=None, **arguments):
    batch = batch_of() if batch is None else batch
    places, real = everything(batch)
    return token_effects(module, [batch], [places], [real], **arguments)


@pytest.mark.parametrize(("left", "right"), [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (3, 2)])
def test_reach_of_a_convolution_is_found(left, right):
    found = effects_of(Window(left, right))
    for offset in OFFSETS:
        assert found.depends(offset) == (-right <= offset <= left), offset
    assert found.reads_ahead == (right > 0)
    assert found.mixes == (left + right > 0)


@pytest.mark.parametrize(
    "name", ["llama", "gemma3", "mamba2", "mixtral", "own_lstm", "modernbert", "deberta"]
)
def test_what_reads_ahead_has_a_gradient_from_later_tokens(name):
    """The oracle: the derivative of the logits at a place with respect to the embeddings after it."""
    module, batch = ARCHITECTURES[name](), example_batch(name)
    layers = [m for m in module.modules() if isinstance(m, nn.Embedding) and m.num_embeddings == VOCABULARY]
    kept = []
    handle = layers[0].register_forward_hook(lambda m, a, out: kept.append(out.requires_grad_()))
    output = module(**batch) if name != "own_lstm" else module(batch["input_ids"])
    handle.remove()
    logits = getattr(output, "logits", output)
    gradient = torch.autograd.grad(logits[:, 5].square().sum(), kept[0])[0]
    assert effects_of(module, batch).reads_ahead == bool(gradient[:, 6:].any()) == (name in MASKED)


def test_only_text_is_changed_and_looked_at():
    batch = batch_of(rows=2, length=4)
    real = torch.tensor([[False, True, True, True], [True, True, True, False]])
    found = token_effects(Window(1, 0), [batch], [real], [real])
    assert (found.depends(0), found.depends(1), found.depends(-1)) == (True, True, False)
    edge = torch.tensor([[False, True, False, False]] * 2)
    found = token_effects(Window(1, 0), [batch], [edge & real], [edge])
    assert (found.depends(0), found.depends(1), found.depends(-1)) == (True, None, None)  # no text around it
    nothing = token_effects(Window(1, 0), [batch], [~real & real], [real])
    assert nothing.depends(0) is None
    assert not nothing.any


def test_noise_raises_the_threshold():
    """A module that answers differently each time is no evidence of dependence."""
    module = Window(0, 0)
    exact = effects_of(module).threshold
    state = torch.Generator().manual_seed(0)
    module.forward = lambda input_ids: (
        Window.forward(module, input_ids) + 1e-3 * torch.randn(*input_ids.shape, 7, generator=state)
    )
    found = effects_of(module)
    assert found.threshold > 100 * exact
    assert found.depends(0)
    assert found.depends(1) is False


def test_what_is_drawn_in_each_pass_is_no_noise():
    """A first state that is drawn anew, as of loops of recurrent depth: all passes draw the same."""
    module = Window(1, 0)
    exact = effects_of(module)
    before = torch.random.get_rng_state()
    module.forward = lambda input_ids: (
        Window.forward(module, input_ids) + 10 * torch.randn(*input_ids.shape, 7)
    )
    found = effects_of(module)
    assert found.threshold == exact.threshold
    assert (found.depends(0), found.depends(-1), found.reads_ahead) == (True, False, exact.reads_ahead)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("rows", [1, 4])
def test_draws_that_depend_on_the_tokens_are_noise(rows):
    """As many numbers are drawn as the tokens say: what comes then is another draw, and no dependence."""
    module = Window(0, 0)

    def drawn(input_ids):
        torch.rand(int(input_ids.sum()) + 1)
        return 10 * torch.randn(*input_ids.shape, 7)

    module.forward = drawn
    found = effects_of(module, batch_of(rows))
    assert not found.mixes
    assert found.reads_ahead is None


def test_rows_that_answer_to_each_other_raise_the_threshold():
    module = Window(0, 0)
    module.forward = lambda input_ids: Window.forward(module, input_ids) + 1e-4 * input_ids.float().mean()
    assert effects_of(module).threshold > 1e-5


@pytest.mark.parametrize("rows", [1, 2, 5, 40])
def test_batches_keep_their_shape_and_are_few(rows):
    seen = []
    module, batch = Window(1, 0), batch_of(rows)
    before = batch["input_ids"].clone()
    module.forward = lambda input_ids: (seen.append(input_ids), Window.forward(module, input_ids))[1]
    effects_of(module, batch)
    assert torch.equal(batch["input_ids"], before)
    assert {tuple(ids.shape) for ids in seen} == {(rows, 9)}
    assert len(seen) == 8
    changed = [(ids != before).sum(1) for ids in seen]
    assert max(int(n.max()) for n in changed) == 1  # one token a row
    assert max(int(n.count_nonzero()) for n in changed) == {1: 1, 2: 1, 5: 3, 40: 6}[rows]


def test_no_numbers_are_said_to_be_none():
    module = Window(1, 0)
    assert effects_of(module).finite
    nn.init.constant_(module.weight, torch.nan)
    found = effects_of(module)
    assert not found.finite
    assert not found.any
