"""Every range and choice that an argument of an observer declares is checked when the observer is made."""

from dataclasses import fields
from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from lmdyn.callbacks import DynamicsNumerics, LearningCurves, LongTerm, ShortTerm
from lmdyn.callbacks.observing.checked_fields import Above, From
from lmdyn.callbacks.observing.recording import check_names
from tests.helpers.recorded import exported
from tests.helpers.refusals import assert_refused


def outside(hint):
    """A value outside of each range and choice of an annotation."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return [type(rule.low)(rule.low - 7) for rule in args[1:] if isinstance(rule, From | Above)]
    if origin is Literal:
        return ["no such choice"]
    if origin in (Union, UnionType):  # a text is no wrong choice where any is taken
        return [v for arg in args if not (str in args and get_origin(arg) is Literal) for v in outside(arg)]
    return []


def declared(cls):
    """Name and wrong value of each argument with a range or a choice."""
    hints = get_type_hints(cls, include_extras=True)
    return [(f.name, value) for f in fields(cls) if f.init for value in outside(hints[f.name])]


CLASSES = [*exported().values(), DynamicsNumerics, LongTerm, ShortTerm]


@pytest.mark.parametrize("cls", CLASSES)
def test_values_outside_of_what_is_declared_are_refused(cls):
    assert_refused(
        cls, *(({name: value}, rf"^{name} is {value!r}: expected") for name, value in declared(cls))
    )


def test_many_arguments_declare_a_range():
    """The control; and items of lists are checked as single values are."""
    assert sum(len(declared(cls)) for cls in CLASSES) > 150
    observers = exported()
    for name, arguments in (
        ("Curvature", {"directions": ["down"]}),
        ("DiagnosticProbe", {"targets": ["past"]}),
        ("EncoderDynamics", {"lengths": [1, 8]}),
        ("Geometry", {"alpha_range": [0, 9]}),
        ("Interdependence", {"spaces": ["state"]}),
        ("Similarity", {"pairs": [["h1"]]}),
        ("Sparsity", {"sites": {"x": 3}}),
        ("TokenLearning", {"by": ["xpos"]}),
    ):
        assert_refused(observers[name], (arguments, rf"^{next(iter(arguments))}\S* is .*: expected"))


class WithOwnArguments(LearningCurves):
    """An observer of one's own, which reads its arguments itself."""

    def __init__(self, **kwargs):
        self.loud = kwargs.pop("loud", False)
        super().__init__(**kwargs)


def test_unknown_arguments_name_the_nearest():
    observers = exported()
    for name, arguments, words in (
        ("Geometry", {"site": {}}, "Geometry has no argument 'site', did you mean 'sites'"),
        ("LearningCurves", {"max_token": 3}, "did you mean 'max_tokens'"),
        ("Sparsity", {"zzz": 3}, "Sparsity has no argument 'zzz'; the arguments are "),
        ("LearningCurves", {"layers": 3}, "layers is 3: expected a list or null"),
    ):
        assert_refused(observers[name], (arguments, words))
    assert WithOwnArguments(loud=True, max_tokens=3).loud
    assert_refused(check_names, ([LearningCurves], r"LearningCurves is a class: expected an observer"))
