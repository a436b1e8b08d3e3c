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
    with pytest.raises(
        ValueError, match=r"keep data|differs from that in the model|differs from later iterations"
    ):
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
    with pytest.raises(ValueError, match=r"the end of iteration 2 of Loop differs from a step"):
        EncoderMap(loop, text(), dtype=torch.float64)


@torch.no_grad()
def assert_every_depth_is_the_loop_s_own(loop, example, others):
    """Also for a text that is iterated after the map of another one was made."""
    f = EncoderMap(loop, example, dtype=torch.float64)
    assert f.injected
    maps, states = [f.of(other) for other in others], [f.start(other) for other in others]
    for depth in range(1, 7):
        for i, other in enumerate(others):
            states[i] = maps[i](states[i])
            expected = loop(other["input_ids"], depth=depth)
            torch.testing.assert_close(f.finish(other, states[i]), expected, rtol=0, atol=1e-10)


class Attribute(nn.Module):
    """A step whose text is an attribute."""

    def __init__(self):
        super().__init__()
        self.own, self.text = nn.Linear(HIDDEN, HIDDEN), None

    def forward(self, x):
        return torch.tanh(self.own(x) + self.text)


def test_a_text_that_the_model_sets_as_an_attribute():
    class Loop(PlainLoop):
        def forward(self, input_ids, depth=None):
            e = self.embed(input_ids)
            x, self.step.text = torch.zeros_like(e), e
            for _ in range(depth or self.depth):
                x = self.step(x)
            return self.out(x)

    loop = model(Loop)
    loop.step = Attribute().double()
    assert_every_depth_is_the_loop_s_own(loop, text(), [text(2, 5), text(4, 8)])


def test_a_text_that_an_earlier_module_leaves_in_a_layer_is_refused():
    """The module is not run again: what it leaves is that of another text."""

    class Leaves(nn.Embedding):
        def forward(self, ids):
            self.step[0].text = super().forward(ids)
            return torch.zeros_like(self.step[0].text)

    loop = model(PlainLoop)
    loop.step, loop.embed = Attribute().double(), Leaves(VOCABULARY, HIDDEN).double()
    loop.embed.step = [loop.step]
    with pytest.raises(ValueError, match="layers may keep data between iterations or texts"):
        EncoderMap(loop, text(), dtype=torch.float64)


def test_tokens_that_halt_in_other_rows():
    """Only tokens of the second row end: the chain of the first one is whole."""

    class Halting(PlainLoop):
        def forward(self, input_ids, depth=None):
            x = self.embed(input_ids)
            ends = (input_ids >= 200)[..., None]
            for _ in range(depth or self.depth):
                x = torch.where(ends, x, self.step(x))
            return self.out(x)

    example = {"input_ids": torch.tensor([[5, 6, 7, 8], [5, 6, 220, 8]])}
    others = [{"input_ids": torch.tensor([[9, 230, 7], [4, 6, 9]])}, {"input_ids": torch.tensor([[201, 8]])}]
    assert_every_depth_is_the_loop_s_own(model(Halting), example, others)


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
    with pytest.raises(ValueError, match=r"of TimeMajor returns \(6, 1, 32\) for one row"):
        EncoderMap(loop, text(), dtype=torch.float64)
