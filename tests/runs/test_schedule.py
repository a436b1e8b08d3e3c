"""Schedules as data."""

import pytest

from lmdyn.callbacks import Steps


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
    with pytest.raises(ValueError, match="every is 0"):
        Steps(every=0)
    with pytest.raises(ValueError, match="per_decade is -1"):
        Steps(per_decade=-1)
    with pytest.raises(ValueError, match="steps from 0"):
        Steps(at=(-1,))
    for wrong in (5, (1.5,), ("2",)):
        with pytest.raises(TypeError, match="expected a list of integers"):
            Steps(at=wrong)
    with pytest.raises(TypeError, match=r"every is 2\.5: expected an integer"):
        Steps(every=2.5)
    with pytest.raises(ValueError, match="steps from 0"):
        Steps(at=(s for s in (0, -1)))


def test_any_iterable_of_steps():
    assert Steps(at=(10 * k for k in range(3))) == Steps(at=[0, 10, 20]) == Steps(at=(0, 10, 20))
