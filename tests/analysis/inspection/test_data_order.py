"""Which argument is the order of data: one rule for lmdyn's datamodules and for a user's."""

import pytest

from lmdyn.analysis.inspection.data_order import order_argument, order_of
from lmdyn.datamodules import ConlluCorpus, GrammarCorpus, PretrainingCorpus, ScaffoldCorpus, TextCorpus


class Own:
    def __init__(self, path, seed=0):
        pass


class Wrapping(GrammarCorpus):
    def __init__(self, own=1, **kwargs):
        super().__init__(**kwargs)


class Fixed(GrammarCorpus):
    def __init__(self, own=1):
        super().__init__()


@pytest.mark.parametrize("cls", [GrammarCorpus, TextCorpus, ConlluCorpus, ScaffoldCorpus, Wrapping])
def test_streams_have_an_order_of_their_own(cls):
    assert order_argument(cls) == "order_seed"


def test_others():
    assert order_argument(PretrainingCorpus) == "seed"
    assert order_argument(Own) == "seed"
    assert order_argument(Fixed) is None  # it hands nothing on
    assert order_argument(dict) is None


def test_of_a_configuration():
    assert order_of({"init_args": {"corpus": {"init_args": {"order_seed": 9}}, "seed": 2}}) == 2
    assert order_of({"init_args": {"seed": 2, "order_seed": None}}) is None
    assert order_of({"class_path": "X"}) is None
