"""Derivatives by class of token and by use of a parameter, against one backward pass for each class."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lmdyn.analysis.landscape.applications import repeated_modules, separate_applications
from lmdyn.analysis.landscape.class_slopes import TextOnLines, TokenClasses
from tests.analysis.landscape.recurrent_models import Recurrent

VOCABULARY = 11
BY_LABEL = TokenClasses(3, lambda batch: (batch["labels"] % 4).where(batch["labels"] % 4 < 3, -1))


class Shared(nn.Module):
    """A layer that runs three times, and a head."""

    def __init__(self):
        super().__init__()
        self.embedding, self.output = nn.Embedding(VOCABULARY, 6), nn.Linear(6, VOCABULARY)
        self.layer = nn.Sequential(nn.Linear(6, 6), nn.Tanh())

    def forward(self, input_ids):
        h = self.embedding(input_ids)
        for _ in range(3):
            h = self.layer(h)
        return self.output(h)


class Bypassed(Recurrent):
    def forward(self, input_ids):
        return super().forward(input_ids) + self.embedding(input_ids) @ self.embedding.weight.T


class Mixed(Recurrent):
    def forward(self, input_ids):
        return super().forward(input_ids).cumsum(1)


def batches():
    generator = torch.Generator().manual_seed(0)
    found = []
    for rows in (3, 2):
        ids = torch.randint(VOCABULARY, (rows, 5), generator=generator)
        labels = torch.randint(VOCABULARY, (rows, 5), generator=generator)
        labels[0, :2] = -100
        found.append({"input_ids": ids, "labels": labels})
    return found


def direction_of(module):
    generator = torch.Generator().manual_seed(1)
    return {
        n: torch.randn(p.shape, generator=generator, dtype=torch.float64)
        for n, p in module.named_parameters()
    }


def naive(module, direction, use):
    """One backward pass for each class, of its tokens alone."""
    found, labelled = torch.zeros(BY_LABEL.number + 1, dtype=torch.float64), 0
    for batch in batches():
        labelled += int((batch["labels"] != -100).sum())
    for c in range(BY_LABEL.number + 1):
        for batch in batches():
            losses = cross_entropy(
                module(batch["input_ids"]).transpose(1, 2), batch["labels"], reduction="none"
            )
            classes = BY_LABEL.of(batch)
            mask = classes == c if c < BY_LABEL.number else classes < 0
            (gradient,) = torch.autograd.grad((losses * mask).sum(), [dict(module.named_parameters())[use]])
            found[c] += (gradient * direction[use]).sum() / labelled
    return found


def call_of(module):
    return lambda batch: module(batch["input_ids"])


def slopes(module, directions, divisions, **how):
    return TextOnLines(module, batches, call_of(module), divisions, **how).points({}, directions)


@pytest.mark.parametrize("model", [Recurrent, Bypassed, Mixed])  # only the first begins at its output layer
@pytest.mark.parametrize("tied", [False, True])
def test_by_class_as_one_pass_a_class(model, tied):
    torch.manual_seed(0)
    module = model(width=6, tied=tied).double()
    module.embedding.weight.requires_grad_(False)  # what is frozen now may have moved before
    direction = direction_of(module)
    found = slopes(module, [direction], {"label": BY_LABEL, "": TokenClasses(1, all_of)})
    assert not module.embedding.weight.requires_grad
    module.requires_grad_(True)
    whole = 0.0
    for name in direction:
        expected = naive(module, direction, name)
        torch.testing.assert_close(found[0].groups["label", name, ""], expected, rtol=1e-10, atol=1e-14)
        alone = found[0].groups["", name, ""]
        assert alone.tolist() == pytest.approx([float(expected.sum()), 0.0], rel=1e-10)
        assert float(found[0].slopes[name].sum()) == pytest.approx(float(expected.sum()))
        whole += float(expected.sum())
    step = 1e-5  # a derivative is one
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            moved = copy.deepcopy(module)
            for name, parameter in moved.named_parameters():
                parameter += sign * step * direction[name]
            losses.append(slopes(moved, [{}], {"": TokenClasses(1, all_of)})[0].loss)
    assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(whole, rel=1e-6)
    assert BY_LABEL.counts(batches()).sum() == TokenClasses(1, all_of).counts(batches())[0] == 21
    assert all(p.grad is None for p in module.parameters())


def all_of(batch):
    return torch.zeros_like(batch["labels"])


def test_several_directions_are_as_each_alone():
    torch.manual_seed(0)
    module = Recurrent()
    first = {n: v.float() for n, v in direction_of(module).items()}
    second = {"output.bias": torch.ones(VOCABULARY)}
    divisions = {"label": BY_LABEL}
    both = slopes(module, [first, second], divisions)
    for i, direction in enumerate((first, second)):
        alone = slopes(module, [direction], divisions)
        assert alone[0].groups.keys() == both[i].groups.keys()
        assert all(torch.equal(alone[0].groups[key], value) for key, value in both[i].groups.items())
        assert alone[0].loss == both[i].loss


def test_applications_of_a_shared_layer_are_those_of_untied_copies():
    torch.manual_seed(0)
    module = Shared().double()
    assert repeated_modules(module, lambda: module(batches()[0]["input_ids"])) == {"layer": 3}
    untied = copy.deepcopy(module)
    untied.copies = nn.ModuleList(copy.deepcopy(module.layer) for _ in range(3))

    def unrolled(batch):
        h = untied.embedding(batch["input_ids"])
        for layer in untied.copies:
            h = layer(h)
        return untied.output(h)

    direction = direction_of(module)
    own = {n: v for n, v in direction.items() if not n.startswith("layer")}
    own |= {f"copies.{i}.{n[6:]}": v for n, v in direction.items() if n.startswith("layer") for i in range(3)}
    expected = TextOnLines(untied, batches, unrolled, {"label": BY_LABEL}).points({}, [own])[0].groups
    found = slopes(module, [direction], {"label": BY_LABEL}, repeated={"block": "layer"})
    for name in ("0.weight", "0.bias"):
        for i in range(3):
            part = found[0].groups["label", f"layer.{name}", f"block@{i}"]
            torch.testing.assert_close(
                part, expected["label", f"copies.{i}.{name}", ""], rtol=1e-10, atol=1e-14
            )
    whole = slopes(module, [direction], {"label": BY_LABEL})
    torch.testing.assert_close(found[0].slopes["layer.0.weight"], whole[0].slopes["layer.0.weight"])


def test_a_repeated_lstm_gets_its_weights_back_also_after_an_error():
    lstm = nn.LSTM(3, 3)
    before = list(lstm.parameters())
    x = torch.ones(2, 1, 3)
    expected = lstm(lstm(x)[0])[0]
    with separate_applications(lstm, {"lstm": ""}) as separate:
        out = lstm(lstm(x)[0])[0]
        with pytest.raises(RuntimeError):
            lstm(torch.ones(2, 1, 4))
    assert torch.equal(out, expected)
    assert all(a is b for a, b in zip(lstm.parameters(), before, strict=True))
    assert all(a is b for a, b in zip(lstm._flat_weights, before, strict=True))
    leaf = separate[id(lstm.weight_hh_l0), "lstm@1"]
    assert torch.autograd.grad(out.sum(), leaf)[0].any()


def test_what_cannot_be_computed_is_refused():
    module = Recurrent()
    divisions = {"": TokenClasses(1, all_of)}
    without = [{**batch, "labels": torch.full_like(batch["labels"], -100)} for batch in batches()]
    with pytest.raises(ValueError, match="no token of the text has a label"):
        TextOnLines(module, lambda: without, call_of(module), divisions).points({}, [direction_of(module)])
