"""Which option has the highest score: ties, broken scores, refusals."""

import numpy as np
import pytest

from lmdyn.analysis import choice_accuracy

SCORES = [-1.0, -2.0, -3.0, -5.0, -5.0, -5.0, -9.0, -4.0, -4.0]
ITEMS = [0, 0, 0, 1, 1, 1, 1, 2, 2]
RIGHT = [1, 0, 0, 0, 1, 0, 0, 1, 0]


def test_ties_count_their_share_or_the_first_is_chosen():
    assert choice_accuracy(SCORES, ITEMS, RIGHT).tolist() == [1, 1 / 3, 1 / 2]
    assert choice_accuracy(SCORES, ITEMS, RIGHT, "first").tolist() == [1, 0, 1]
    order = [2, 0, 1, 6, 5, 4, 3, 8, 7]
    scores, items, right = (np.array(of)[order] for of in (SCORES, ITEMS, RIGHT))
    assert choice_accuracy(scores, items, right).tolist() == [1, 1 / 3, 1 / 2]
    assert choice_accuracy(scores, items, right, "first").tolist() == [1, 0, 0]


def test_draws_are_fair_and_the_same_at_each_call():
    n = 3000
    scores, items = np.zeros(3 * n), np.repeat(np.arange(n), 3)
    right = np.tile([False, False, True], n)
    found = choice_accuracy(scores, items, right, "draw")
    assert set(found.tolist()) == {0.0, 1.0}
    assert abs(found.mean() - 1 / 3) < 4 * np.sqrt(2 / 9 / n)
    assert (found == choice_accuracy(scores, items, right, "draw")).all()
    assert (found != choice_accuracy(scores, items, right, "draw", seed=1)).any()


def test_scores_that_are_not_finite_give_no_answer():
    for broken in (np.nan, -np.inf, np.inf):
        found = choice_accuracy([-1.0, broken, -1.0, -2.0], [0, 0, 1, 1], [1, 0, 1, 0])
        assert np.isnan(found[0])
        assert found[1] == 1


@pytest.mark.parametrize("right", [[0, 0], [1, 1], [1]])
def test_an_item_has_one_right_option(right):
    with pytest.raises(ValueError, match="one right option per item"):
        choice_accuracy([1.0, 2.0], [0, 0], right)
