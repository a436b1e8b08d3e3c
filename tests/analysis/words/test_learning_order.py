"""The order of learning on curves whose answer is known."""

import torch

from lmdyn.analysis.words.learning_order import learning_order


def test_half_is_where_the_curve_is_half():
    steps = torch.tensor([0, 1, 10, 100, 1000])
    place = steps.double().log1p()
    curves = torch.stack([place, 0.3 * place, torch.tensor([0.5] * 5).double(), torch.zeros(5).double()], 1)
    found = learning_order(steps, curves)
    # straight in log(1 + step): half of it at half of the log
    half = torch.tensor(1001.0).double().sqrt() - 1
    torch.testing.assert_close(found[:2], half.expand(2))
    assert found[2] == 0  # there from the start
    assert found[3].isnan()  # never
    assert learning_order(steps, curves, least=0.5).isnan().tolist() == [False, False, True, True]
    quarter = learning_order(steps, curves, level=0.25)
    torch.testing.assert_close(quarter[0], torch.tensor(1001.0).double() ** 0.25 - 1)


def test_half_is_reached_first_and_does_not_depend_on_scale():
    steps = torch.tensor([1, 2, 4, 8])
    curve = torch.tensor([[0.0], [0.9], [0.1], [1.0]]).double()  # forgotten in between
    assert 1 < learning_order(steps, curve)[0] < 2
    torch.testing.assert_close(learning_order(steps, 0.1 * curve), learning_order(steps, curve))


def test_what_was_not_observed_plays_no_part():
    steps = torch.tensor([0, 3, 7, 20])
    curve = torch.tensor([0.0, torch.nan, 0.6, 0.8]).double()
    with_gap = learning_order(steps, curve[:, None])
    without = learning_order(steps[[0, 2, 3]], curve[[0, 2, 3], None])
    assert torch.equal(with_gap, without)
