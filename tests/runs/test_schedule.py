"""Schedules as data."""

import pytest

from lmdyn.callbacks import Steps
from tests.helpers.refusals import assert_refused


def test_each_way_of_naming_steps():
    assert [s for s in range(31) if s in Steps(every=10)] == [0, 10, 20, 30]
    assert [s for s in range(31) if s in Steps(every=10, at=(7,))] == [7, 10, 20, 30]
    assert [s for s in range(10) if s in Steps(at=())] == []


def test_per_decade_is_log_spaced_and_complete():
    schedule = Steps(per_decade=3, at=())
    expected = sorted({round(10 ** (k / 3)) for k in range(13)})
    assert [s for s in range(10_001) if s in schedule] == expected
    assert 10**9 in schedule
    assert 10**9 + 1 not in schedule


def test_bad_schedules_are_refused():
    assert_refused(
        Steps,
        ({"every": 0}, "every is 0"),
        ({"per_decade": -1}, "per_decade is -1"),
        ({"at": (s for s in (0, -1))}, "steps from 0"),
        *(({"at": wrong}, "expected a list of whole numbers") for wrong in (5, (1.5,), ("2",))),
        ({"every": 2.5}, r"every is 2\.5: expected a whole number"),
        ({"per_decad": 4}, "Steps has no argument 'per_decad', did you mean 'per_decade'"),
    )


@pytest.mark.parametrize(
    "schedule",
    [Steps(), Steps(every=7), Steps(per_decade=4), Steps(every=9, per_decade=3, at=(0, 4, 50)), Steps(at=())],
)
def test_the_following_step_is_the_next_of_the_schedule(schedule):
    for step in range(200):
        later = (t for t in range(step + 1, 2000) if t in schedule)
        assert schedule.following(step) == next(later, float("inf"))
