"""What a report says of an observer: the numbers of the table, in the order in which groups were learned."""

import numpy as np
import pandas as pd
import pytest

from lmdyn.callbacks.observing.drawing.sentences import finding
from lmdyn.runs.schema import Quantity

ACCURACY = Quantity("accuracy", "A share.", "share", low=0.0, high=1.0, better="higher", headline=True)
NORM = Quantity("norm", "A norm.")
STEPS = [0, 10, 100, 1000]


def curves(quantity, of):
    """Rows by group: values at the steps."""
    rows = [
        (s, quantity, "", group, v)
        for group, values in of.items()
        for s, v in zip(STEPS, values, strict=True)
    ]
    return pd.DataFrame(rows, columns=["step", "quantity", "site", "upos", "value"])


LEARNED = {
    "": [0.0, 0.1, 0.3, 0.4],
    "DET": [0.0, 0.5, 0.6, 0.6],  # half of .6 by step 10
    "ADV": [0.0, 0.5, 0.1, 0.5],  # half of .5 by step 10, and for good by step 1,000
    "NOUN": [0.0, 0.0, 0.1, 0.3],  # half of .3 by step 1,000
    "X": [0.0, 0.0, 0.0, 0.01],  # changed by less than a quarter of the largest change
}


def test_who_is_learned_first_and_last_and_the_ends():
    found = finding(
        pd.concat([curves("norm", {"": [5.0, 4.0, 3.0, 2.0]}), curves("accuracy", LEARNED)]), [NORM, ACCURACY]
    )
    assert found.sentence == (
        "Accuracy rose from 0 at step 0 to 0.4 at step 1,000, and kept at least half of this change from step 100 on. "
        "Among lines with a quarter of the largest gain or more, half of the change is reached and kept first for "
        "determiners (from step 10 on), and last for adverbs and nouns (from step 1,000 on). The value is highest for "
        "determiners (0.6) and lowest for other words (0.01) at step 1,000."
    )
    assert found.begin == {"quantity": "accuracy", "filters": {"site": "=", "upos": "*"}}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([3.0, 3.0, 3.0, 3.0], "Norm is 3 at step 1,000."),
        ([np.nan, 2.0, 3.0, np.nan], "… to 3 at step 100. After step 100, the value is not finite."),
        (
            [1.7e308, 0.0, 0.0, -1.7e308],
            "… to -1.7e+308 at step 1,000, and kept at least half of this change from step 10 on.",
        ),
        ([0.0, 8.0, 7.0, 6.0], "Norm rose from 0 at step 0 to 8 at step 10, and fell to 6 at step 1,000."),
        ([3.0, 3.0, 5.0, 3.0], "Norm rose from 3 at step 0 to 5 at step 100, and fell to 3 at step 1,000."),
    ],
)
def test_constant_and_missing_values(values, sentence):
    assert finding(curves("norm", {"": values}), [NORM]).sentence.endswith(sentence.lstrip("…"))


def test_nothing_finite_gives_no_finding():
    assert finding(curves("norm", {"": [np.nan] * 4, "DET": [np.nan] * 4}), [NORM]) is None


def test_heads_are_averaged_and_runs_too():
    rows = pd.DataFrame(
        {
            "step": 1,
            "quantity": "norm",
            "site": ["h1", "h1", "h2"],
            "head": [0, 1, 0],
            "value": [1.0, 3.0, 9.0],
        }
    )
    found = finding(rows.astype({"head": "Int64"}), [NORM])
    assert (
        found.sentence
        == "Norm, mean over heads, is highest for layer 2 (9) and lowest for layer 1 (2) at step 1."
    )
    twice = pd.concat([curves("norm", {"": [1.0] * 4}), curves("norm", {"": [3.0] * 4})])
    assert finding(twice, [NORM]).sentence == "Norm is 2 at step 1,000."


def test_groups_that_come_and_go_are_not_averaged_as_a_course():
    rows = curves("norm", {"a": [1.0, np.nan, np.nan, np.nan], "b": [9.0, 8.0, 6.0, 4.0]})
    assert (
        finding(rows, [NORM]).sentence
        == "Norm fell from 9 at step 0 to 4 at step 1,000, and kept at least half of this change from step 100 on."
    )
