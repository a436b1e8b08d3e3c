"""The public functions of lmdyn.analysis take arrays, lists and tensors that require grad, and refuse other shapes."""

import functools
import inspect
import pickle
from typing import get_args

import numpy as np
import pytest
import torch
from jaxtyping import AbstractArray
from torch import Tensor

from lmdyn import analysis
from tests.properties.measures import Sample, numbers, same
from tests.properties.table import TABLE

PUBLIC = {name: getattr(analysis, name) for name in analysis.__all__}
TAKING = {
    name: f
    for name, f in PUBLIC.items()
    if inspect.isfunction(f) and "jaxtyping" in str(inspect.signature(f))
}
MEASURES = [m for m in TABLE if getattr(m.call, "func", m.call) in TAKING.values()]


def plain(call):
    """The function below the boundary."""
    if isinstance(call, functools.partial):
        return functools.partial(inspect.unwrap(call.func), *call.args, **call.keywords)
    return inspect.unwrap(call)


@pytest.mark.parametrize("measure", MEASURES, ids=lambda m: m.name)
def test_arrays_lists_and_tensors_that_require_grad_give_the_numbers_of_tensors(measure):
    args = measure.make(Sample(seed=0, n=16, d1=3, d2=2))
    singles = [t.float() if t.is_floating_point() else t for t in args]
    for expected_of, given in (
        (args, [t.numpy() for t in args]),
        (args, [t.clone().requires_grad_() if t.is_floating_point() else t for t in args]),
        (singles, [t.tolist() for t in singles]),
    ):
        expected, found = plain(measure.call)(*expected_of), measure.call(*given)
        assert same(numbers(found), numbers(expected), 0.0)
        assert not isinstance(found, Tensor) or not found.requires_grad


def shaped(annotation):
    sizes = [
        2 if dim.startswith(("*", "...")) else int(dim) if dim.isdigit() else 3
        for dim in annotation.dim_str.split()
    ]
    return np.zeros(
        sizes, dtype={"Int": np.int64, "Bool": np.bool_}.get(annotation.dtype.__name__, np.float64)
    )


def is_array(annotation):
    return inspect.isclass(annotation) and issubclass(annotation, AbstractArray)


@pytest.mark.parametrize("name", TAKING)
def test_a_wrong_number_of_dimensions_is_one_error_in_words(name):
    parameters = inspect.signature(TAKING[name]).parameters
    one_of = {
        n: [a for a in (get_args(p.annotation) or (p.annotation,)) if is_array(a)]
        for n, p in parameters.items()
    }
    arrays = {n: p.annotation for n, p in parameters.items() if is_array(p.annotation)}
    given = {
        n: shaped(one_of[n][0]) if one_of[n] else {} for n, p in parameters.items() if p.default is p.empty
    }
    for wrong, annotation in arrays.items():
        dims = annotation.dim_str.split()
        if len(dims) == 1 and dims[0].startswith(("*", "...")):  # any shape
            continue
        bad = np.zeros(()) if any(d.startswith("*") for d in dims) else given[wrong][None]
        with pytest.raises(
            ValueError, match=rf"{name}: expected {wrong} of .*, got \w+ \(.*\).*: convert, reshape"
        ) as error:
            TAKING[name](**{**given, wrong: bad})
        assert error.value.__cause__ is None


def test_what_is_no_array_or_another_dtype_or_another_number_of_rows_is_refused():
    x = np.zeros((4, 2))
    for call, args in (
        (analysis.svcca, (x, "words")),
        (analysis.svcca, (x, [[1.0, 2.0], [3.0]])),
        (analysis.svcca, (x, x.astype(complex))),
        (analysis.first_token_attention, (np.zeros((1, 1, 2, 2)), np.zeros((1, 2)))),
        (analysis.first_token_attention, (np.zeros((1, 1, 2, 2)), np.zeros((1, 3), dtype=bool))),
    ):
        with pytest.raises(ValueError, match="expected"):
            call(*args)


def test_whole_numbers_mappings_and_generators_are_converted():
    whole = [[1, 2], [3, 5], [0, 1], [7, 2], [4, 4], [2, 9]]
    expected = analysis.linear_cka(torch.tensor(whole).float(), torch.tensor(whole).float()[:, :1])
    assert torch.equal(analysis.linear_cka(whole, np.array(whole, dtype=np.uint8)[:, :1]), expected)
    found = analysis.sweep((np.array(whole) for _ in range(2)), whole, ["linear_cka"])["linear_cka"]
    torch.testing.assert_close(found, torch.ones(2, dtype=torch.float64))
    features, labels = {"h": np.eye(3)[[0, 1, 2] * 4]}, {"tag": [0, 1, 2] * 4}
    result = analysis.diagnostic_probe(features, labels, features, labels, {"tag": 3})
    assert result.accuracy.shape == (1, 1)


def test_a_public_function_of_numpy_arrays_takes_them():
    losses = np.array([1.0, 4.0, 2.0])
    assert analysis.loss_barrier([0.0, 0.5, 1.0], losses) == 2.5


def test_functions_are_pickled_and_keep_their_signature():
    for name, function in TAKING.items():
        assert pickle.loads(pickle.dumps(function)) is function
        assert inspect.signature(function) == inspect.signature(inspect.unwrap(function))
        assert function.__doc__ == inspect.unwrap(function).__doc__, name
