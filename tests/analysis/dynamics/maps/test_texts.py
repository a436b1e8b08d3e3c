"""Rows of batches with tensors that all rows share, and masks that a model makes of padding."""

import pytest
import torch
from torch import nn

from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.dynamics.maps.texts import repeated, resized, some_texts
from lmdyn.analysis.inspection.batches import rows_at, rows_of
from tests.helpers.loops import HIDDEN, VOCABULARY, PlainLoop


def text(rows, tokens, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {"input_ids": torch.randint(4, VOCABULARY, (rows, tokens), generator=draw)}


def test_what_all_rows_share_is_neither_cut_nor_repeated():
    for positions in (torch.arange(5)[None], torch.arange(5), torch.ones(5, 2)):
        batch = {**text(3, 5), "positions": positions}
        assert rows_of(batch) == 3
        for changed in (repeated(batch, 2), rows_at(batch, slice(1)), *some_texts(batch)):
            assert torch.equal(changed["positions"], positions)
        assert len(some_texts(batch)) == 3 + 4
        assert len(rows_at(batch, slice(1))["input_ids"]) == 1
    table = {"input_ids": text(1, 5)["input_ids"], "positions": torch.ones(5, 2)}
    assert resized(table, 4, 5)["positions"].shape == (5, 2)


@pytest.mark.parametrize("shape", [(1, -1), (-1,)])
@torch.no_grad()
def test_positions_of_all_rows_are_given_to_each(shape):
    class Positions(PlainLoop):
        def __init__(self):
            super().__init__()
            self.places = nn.Embedding(16, HIDDEN)

        def forward(self, input_ids, position_ids, depth=None):
            p, x = self.places(position_ids), self.embed(input_ids)
            for _ in range(depth or self.depth):
                x = self.step(x + p)
            return self.out(x)

    torch.manual_seed(0)
    loop = Positions().double().eval()
    batch = {**text(3, 7), "position_ids": torch.arange(7).reshape(shape)}
    f = EncoderMap(loop, batch, dtype=torch.float64)
    for tokens in (7, 5):
        other = {**text(4, tokens, seed=1), "position_ids": torch.arange(tokens).reshape(shape)}
        g, x = f.of(other), f.start(other)
        torch.testing.assert_close(f.finish(other, g(g(x))), loop(**other, depth=2))


@pytest.mark.parametrize("padding", [0, 3])
@torch.no_grad()
def test_a_mask_that_the_model_makes_of_padding_belongs_to_the_text(padding):
    class Config:
        vocab_size, pad_token_id = VOCABULARY, padding

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.mix = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

        def forward(self, x, mask):
            mean = (x * mask[..., None]).sum(1, keepdim=True) / mask.sum(1)[:, None, None]
            return torch.tanh(self.own(x) + self.mix(mean))

    class Padded(PlainLoop):
        def __init__(self):
            super().__init__()
            self.step, self.config = Step(), Config()

        def forward(self, input_ids, depth=None):
            x, mask = self.embed(input_ids), input_ids != padding
            for _ in range(depth or self.depth):
                x = self.step(x, mask)
            return self.out(x)

    torch.manual_seed(0)
    loop = Padded().double().eval()
    f = EncoderMap(loop, text(2, 5), dtype=torch.float64)
    assert f.injected
    other = {"input_ids": torch.tensor([[5, 6, 7, padding, padding], [5, 6, 7, 8, padding]])}
    g, x = f.of(other), f.start(other)
    torch.testing.assert_close(f.finish(other, g(g(x))), loop(**other, depth=2))
