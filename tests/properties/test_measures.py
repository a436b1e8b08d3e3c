"""Properties of all measures: their invariances, their range, and what they do with what cannot be measured.

Never a wrong number in silence: an answer that the docstring names (NaN, a limit), or an error of lmdyn's own that says
what was expected. ``LMDYN_EXAMPLES=100`` for each property is the campaign (docs/reliability.md).
"""

import math
import os
from functools import cache

import hypothesis.core
import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lmdyn import analysis as A
from lmdyn.analysis import pearson
from tests.properties import measures as M
from tests.properties.not_measures import no_measures, public_names
from tests.properties.table import TABLE

# of the source of a test, which has many rows: it takes half as long as what a row measures
hypothesis.core.function_digest = cache(hypothesis.core.function_digest)
EXAMPLES = int(os.environ.get("LMDYN_EXAMPLES", "2"))
samples = st.builds(
    M.Sample, seed=st.integers(0, 10**6), n=st.integers(14, 24), d1=st.integers(2, 4), d2=st.integers(2, 4)
)
STEADY = {"deadline": None, "derandomize": True, "database": None, "suppress_health_check": list(HealthCheck)}
some = settings(max_examples=EXAMPLES, phases=[Phase.generate], **STEADY)


def every(rows=TABLE, names="measure", **drawn):
    """A test of each of some rows, on samples that are drawn."""

    def decorated(test):
        return pytest.mark.parametrize(names, rows, ids=str)(some(given(s=samples, **drawn)(test)))

    return decorated


@pytest.fixture(autouse=True, scope="module")
def _as_for_users():
    """Annotations are checked under pytest only: here the measures are what they are for users."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def floats(args):
    return [i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.is_floating_point()]


def replaced(args, i, value):
    return *args[:i], value, *args[i + 1 :]


def test_each_public_name_is_in_the_table_or_said_to_be_no_measure():
    """A new measure says here what it is invariant to, and what it does with NaN, constants, one row and none."""
    names, listed = public_names(), no_measures()
    covered = {name for m in TABLE for name in m.names.split()}
    missing = sorted(names - covered - listed)
    assert not missing, (
        "add a Measure to tests/properties/table.py, or the reason to tests/properties/not_measures.py"
    )
    assert not (covered | listed) - names, "no longer there"
    assert not covered & listed, "both a measure and none"


def test_the_table_can_fail():
    """The control: measures that make numbers of NaN, raise errors of libraries, or refuse with other words."""
    x = torch.ones(3)
    bad = replaced((x,), 0, torch.tensor([1.0, math.nan, 1.0]))
    wrong = M.Measure("wrong", lambda v: v.nan_to_num(0.0).sum(), lambda s: (x,))
    for expected in (
        M.NAN,
        M.SOME_NAN,
        M.SAME_OR_NAN,
        M.SAME_OR_NOT_FINITE,
        M.LEFT_OUT,
        M.NOTHING,
        M.Refused("NaN"),
    ):
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            M.check(wrong, bad, expected, (x,), (5 * x,))
    raw = M.Measure("raw", lambda v: torch.linalg.cholesky(-torch.eye(2)), lambda s: (x,))
    with pytest.raises(RuntimeError, match="cholesky"):
        M.check(raw, bad, M.Refused("."), (x,))
    wrong_shapes = lambda v: pearson(v.numpy()[:, None] @ np.ones((2, 2)), v.numpy())  # noqa: E731
    accident = M.Measure("accident", wrong_shapes, lambda s: (x,))
    with pytest.raises(AssertionError, match="an error of a library's"):
        M.check(accident, bad, M.Refused("."), (x,))
    with pytest.raises(AssertionError, match="Regex"):
        mine, column = M.Measure("mine", A.cca, lambda s: (x,)), bad[0][:, None]
        M.check(mine, (column, column), M.Refused("empty"), (x,))
    with pytest.raises(AssertionError, match="above"):
        M.in_range(M.Measure("range", A.cca, lambda s: (x,), high=1.0), torch.tensor([1.5]))


@every()
def test_numbers_are_in_their_range_and_inputs_stay(measure, s):
    args = measure.make(s)
    kept = [a.clone() for a in args]
    found = M.numbers(measure.call(*args))
    M.in_range(measure, found)
    assert (found.isfinite() | found.isnan()).any() or not len(found)
    for arg, before in zip(args, kept, strict=True):
        assert torch.equal(arg, before), "an input was changed"
    assert M.same(M.numbers(measure.call(*args)), found, 0.0), "another answer the second time"


@every([m for m in TABLE if any(names.split() for names in m.invariant.values())])
def test_invariances(measure, s):
    given = measure.make(s)
    before = M.numbers(measure.call(*given))
    for where, name in (
        (where, name) for where, names in measure.invariant.items() for name in names.split()
    ):
        args = given
        for i in floats(args) if where == "all" else [where]:
            args = replaced(args, i, M.MAPS[name](args[i], s.generator))
        found = M.numbers(measure.call(*args))
        assert M.same(found, before, measure.tolerance), (where, name, found[:8], before[:8])


SCALED = [m for m in TABLE if "scale" in m.invariant.get(0, "").split()]


@every(SCALED)
def test_size_is_refused_or_changes_nothing(measure, s):
    """Squares, and their squares, overflow or underflow: that is said, or NaN, or it does not matter."""
    args = measure.make(s)
    before = M.numbers(measure.call(*args))
    for size in (1e-170, 1e-100, 1e-80, 1e80, 1e100):
        scaled = replaced(args, 0, args[0] * size)
        try:
            found = M.numbers(measure.call(*scaled))
        except ValueError:
            M.check(measure, scaled, M.Refused("."), args)
        else:
            found = torch.where(found.isnan(), before, found)
            assert M.same(found, before, measure.tolerance), (size, found[:8], before[:8])


@every(SCALED)
def test_size_of_float32_changes_nothing(measure, s):
    args = measure.make(s)
    before = M.numbers(measure.call(*(a.float() if a.is_floating_point() else a for a in args)))
    for size in (1e-36, 1e36):
        single = tuple(a.float() if a.is_floating_point() else a for a in replaced(args, 0, args[0] * size))
        assert M.same(M.numbers(measure.call(*single)), before, 1e-3), size


@every([m for m in TABLE if m.symmetric])
def test_symmetry(measure, s):
    x, y, *rest = measure.make(s)
    assert M.same(
        M.numbers(measure.call(y, x, *rest)), M.numbers(measure.call(x, y, *rest)), measure.tolerance
    )


@every()
def test_strides_change_nothing(measure, s):
    args = measure.make(s)
    strided = []
    for a in args:
        apart = a.new_zeros(*a.shape[:-1], 2 * a.shape[-1]) if a.ndim else a
        if a.ndim:
            apart[..., ::2] = a
            apart = apart[..., ::2]
        strided.append(apart.transpose(0, -1).contiguous().transpose(0, -1) if a.ndim > 1 else apart)
    assert M.same(M.numbers(measure.call(*strided)), M.numbers(measure.call(*args)), measure.tolerance)


HALVES = [pytest.param(m, t, id=f"{m.name}-{str(t)[6:]}") for m in TABLE for t in m.half]


@every(HALVES, ("measure", "dtype"))
def test_half_precision_is_summed_in_a_wide_type(measure, dtype, s):
    """The numbers are those of the same rounded values in float64, to the rounding of the answer's own type."""
    args = tuple(a.to(dtype) if a.is_floating_point() else a for a in measure.make(s))
    answer = measure.call(*args)
    expected = M.numbers(measure.call(*(a.double() if a.is_floating_point() else a for a in args)))
    rounding = torch.finfo(dtype).eps if measure.rounded else M.precision(answer)
    found = M.numbers(answer)
    scale = max(1.0, float(expected[expected.isfinite()].abs().max())) if expected.isfinite().any() else 1.0
    assert M.same(found / scale, expected / scale, max(measure.tolerance, 16 * rounding)), (
        found[:8],
        expected[:8],
    )


@every()
def test_whole_numbers(measure, s):
    args = measure.make(s)
    whole = tuple((4 * a).round().long() if a.is_floating_point() else a for a in args)
    if measure.integers != M.AS_USUAL:
        M.check(measure, whole, measure.integers, args)
        return
    as_floats = tuple(w.double() if a.is_floating_point() else w for a, w in zip(args, whole, strict=True))
    try:
        expected = M.numbers(measure.call(*as_floats))
    except ValueError:  # what these numbers are is refused, whatever their type: constant, no distribution
        M.check(measure, as_floats, M.Refused("."), args)
        M.check(measure, whole, M.Refused("."), args)
    else:
        assert M.same(M.numbers(measure.call(*whole)), expected, max(measure.tolerance, 1e-6))


@every(which=st.integers(0, 9), where=st.integers(0, 10**6))
def test_not_finite(measure, s, which, where):
    args = measure.make(s)
    i = floats(args)[which % len(floats(args))]
    place = where % args[i].numel()
    sample = place // max(1, args[i][0].numel())
    dropped = tuple(torch.cat([a[:sample], a[sample + 1 :]]) if len(a) == len(args[i]) else a for a in args)
    for trouble in (math.nan, math.inf, -math.inf):
        bad = args[i].clone()
        bad.view(-1)[place] = trouble
        M.check(measure, replaced(args, i, bad), measure.expected(trouble, i), args, dropped)


@every(value=st.sampled_from([0.0, 0.1, -3.0, 1e-3]))
def test_constants(measure, s, value):
    args = measure.make(s)
    expected = measure.constant if value or measure.zero is None else measure.zero
    M.check(measure, replaced(args, 0, torch.full_like(args[0], value)), expected, args)


ALIGNED = [m for m in TABLE if isinstance(m.lengths, M.Refused) and m.rows is None]


@every(ALIGNED)
def test_rows_that_do_not_belong_together(measure, s):
    args = measure.make(s)
    if len(args) == 1:
        pytest.skip("one argument")
    M.check(measure, replaced(args, 0, args[0][:-2]), measure.lengths, args)


@every()
def test_rows_without_numbers(measure, s):
    """(n, 0): refused, or a number of the range; no error of a library's."""
    args = measure.make(s)
    if all(a.ndim < 2 for a in args):
        pytest.skip("rows are numbers")
    nothing = tuple(a[..., :0] if a.is_floating_point() and a.ndim > 1 else a for a in args)
    try:
        found = M.numbers(measure.call(*nothing))
    except (ValueError, TypeError):
        M.check(measure, nothing, M.Refused("."), args)
    else:
        M.in_range(measure, found)


@every()
def test_few_rows(measure, s):
    args = measure.make(s)
    M.check(measure, measure.cut(args, 1), measure.one, args)
    M.check(measure, measure.cut(args, 0), measure.empty, args)
