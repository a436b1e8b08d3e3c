"""Observations on disk belong to an observer and its settings, wherever source files are."""

from enum import Enum, StrEnum

import numpy as np

import lmdyn.callbacks
from lmdyn.callbacks import LearningCurves, Observer
from lmdyn.runs.store import current_name, plain_setting, public_name


def test_names_in_files_are_public_ones():
    observers = [c for c in vars(lmdyn.callbacks).values() if isinstance(c, type) and issubclass(c, Observer)]
    assert len(observers) > 20
    for cls in observers:
        assert public_name(cls) == f"lmdyn.callbacks.{cls.__name__}"
    assert current_name("lmdyn.callbacks.words.sparsity.Sparsity") == "lmdyn.callbacks.Sparsity"
    assert current_name("my_lab.lmdyn.callbacks.Own") == "my_lab.lmdyn.callbacks.Own"


class Kind(Enum):
    X = 1


class Text(StrEnum):
    Z = "a text"


def test_settings_are_told_apart_whatever_their_types():
    def settings(value):
        return LearningCurves(bands=value).settings["bands"]

    assert settings([np.int64(3)]) == settings([3]) == [3]
    assert plain_setting(Kind.X) == "X"
    assert plain_setting(settings).endswith(".settings")
    assert plain_setting(Text.Z) == "a text"
    assert plain_setting({"c", "a", "b"}) == ["a", "b", "c"]
