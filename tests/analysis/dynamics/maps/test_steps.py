"""What layers keep beside their arguments and the state, and states that are no token vectors, rows first."""

import pytest
import torch
from torch import nn

from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from tests.helpers.loops import HIDDEN, VOCABULARY, PlainLoop


def model(build, **given):
    torch.manual_seed(0)
    return build(**given).double().eval()


def text(rows=3, tokens=6):
    draw = torch.Generator().manual_seed(0)
    return {"input_ids": torch.randint(4, VOCABULARY, (rows, tokens), generator=draw)}


class Keeping(nn.Module):
    """A layer that keeps what it answered last, and adds it; it is reset by its model for each text."""

    def __init__(self):
        super().__init__()
        self.own, self.before = nn.Linear(HIDDEN, HIDDEN), None

    def forward(self, x):
        y = torch.tanh(self.own(x))
        if self.before is not None:
            y = y + 0.5 * self.before
        self.before = y.detach()
        return y


@pytest.mark.parametrize("injected", [True, False])
@pytest.mark.parametrize("depth", [2, 5])
def test_a_memory_within_the_layers_is_refused(injected, depth):
    class Loop(PlainLoop):
        def forward(self, input_ids, depth=None):
            e = x = self.embed(input_ids)
            self.step.before = None
            for _ in range(depth or self.depth):
                x = self.step(x + e if injected else x)
            return self.out(x)

    loop = model(Loop, depth=depth)
    assert EncoderMap(loop, text(), dtype=torch.float64).shared  # the control
    loop.step = Keeping().double()
    with pytest.raises(ValueError, match=r"keep data|differs from that in the model|differs from the others"):
        EncoderMap(loop, text(), dtype=torch.float64)


def test_one_cache_for_all_iterations_is_refused():
    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.mix = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

        def forward(self, x, seen):
            seen.append(x)
            return torch.tanh(self.own(x) + self.mix(torch.cat(seen, 1).mean(1, keepdim=True)))

    class Loop(PlainLoop):
        def forward(self, input_ids, depth=None):
            e = x = self.embed(input_ids)
            seen = []
            for _ in range(depth or self.depth):
                x = self.step(x + e, seen if self.one else [])
            return self.out(x)

    loop = model(Loop)
    loop.step, loop.one = Step().double(), False
    assert EncoderMap(loop, text(), dtype=torch.float64).injected  # the control
    loop.one = True
    with pytest.raises(
        ValueError, match=r"the end of iteration 2 of Loop differs from its step .* in addition to the state"
    ):
        EncoderMap(loop, text(), dtype=torch.float64)


def test_a_text_that_the_model_sets_as_an_attribute_is_refused():
    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.text = nn.Linear(HIDDEN, HIDDEN), None

        def forward(self, x, e=None):
            return torch.tanh(self.own(x) + (self.text if e is None else e))

    class Loop(PlainLoop):
        def forward(self, input_ids, depth=None):
            e = self.embed(input_ids)
            x, self.step.text = torch.zeros_like(e), e
            for _ in range(depth or self.depth):
                x = self.step(x, e) if self.given else self.step(x)
            return self.out(x)

    loop = model(Loop)
    loop.step, loop.given = Step().double(), True
    assert EncoderMap(loop, text(), dtype=torch.float64).injected  # the control: an argument
    loop.given = False
    with pytest.raises(ValueError, match=r"called alone after another text.*stores something of a text"):
        EncoderMap(loop, text(), dtype=torch.float64)


def test_tokens_that_halt_in_other_rows_are_seen():
    """Only tokens of the second row end: the chain of the first one is whole."""

    class Halting(PlainLoop):
        def forward(self, input_ids, depth=None):
            x = self.embed(input_ids)
            ends = (input_ids >= 200)[..., None] if self.halt else torch.zeros(1, dtype=torch.bool)
            for _ in range(depth or self.depth):
                x = torch.where(ends, x, self.step(x))
            return self.out(x)

    loop, batch = model(Halting), {"input_ids": torch.tensor([[5, 6, 7, 8], [5, 6, 220, 8]])}
    loop.halt = False
    assert EncoderMap(loop, batch, dtype=torch.float64).shared  # the control
    loop.halt = True
    with pytest.raises(ValueError, match="changes the token vectors between 'step' and 'step'"):
        EncoderMap(loop, batch, dtype=torch.float64)


@pytest.mark.parametrize("injected", [True, False])
def test_states_with_tokens_first_are_refused(injected):
    class TimeMajor(PlainLoop):
        def forward(self, input_ids, depth=None):
            e = self.embed(input_ids)
            e = x = e.transpose(0, 1) if self.first else e
            for _ in range(depth or self.depth):
                x = self.step(x + e if injected else x)
            return self.out(x.transpose(0, 1) if self.first else x)

    loop = model(TimeMajor)
    loop.step, loop.first = nn.TransformerEncoderLayer(HIDDEN, 2, 32, batch_first=True).double().eval(), False
    assert EncoderMap(loop, text(), dtype=torch.float64).shared  # the control
    loop.step, loop.first = nn.TransformerEncoderLayer(HIDDEN, 2, 32).double().eval(), True
    with pytest.raises(ValueError, match=r"the state of TimeMajor is \(6, 1, 32\) for 1 rows"):
        EncoderMap(loop, text(), dtype=torch.float64)
