"""Which argument is the order of data: one rule for lmdyn's datamodules and for a user's."""

import pytest

from lmdyn.analysis.inspection.attributes import order_argument
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
