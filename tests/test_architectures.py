"""The page of architectures agrees with measurements."""

import pytest

from tests.helpers import architecture_table as T
from tests.helpers.architectures import ARCHITECTURES, MASKED

pytestmark = pytest.mark.slow
AT_LEAST_FOR_T5 = ("LearningCurves", "Similarity", "AttentionPatterns", "DiagnosticProbe")
EVERYWHERE = (
    "DiagnosticProbe", "EdgeProbe", "Interdependence", "LearningCurves", "Similarity", "Sparsity", "WordClusters",
)  # fmt: skip


@pytest.fixture(scope="module")
def written():
    return T.read_page(T.PAGE.read_text(encoding="utf-8"))


def test_page_has_a_cell_for_every_observer_on_every_architecture(written):
    assert list(written) == list(ARCHITECTURES)
    assert all(list(cells) == list(T.exported()) for cells in written.values())
    assert T.exported().keys() == T.OBSERVERS.keys()
    assert T.page(written) == T.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_page_says_what_is_measured(written, name):
    """Else: ``python -m tests.helpers.architecture_table``."""
    assert T.measure(name) == written[name]


def test_what_has_to_run_does(written):
    assert not any(written["t5"][observer].reason for observer in AT_LEAST_FOR_T5)
    for name, cells in written.items():
        refused = {observer for observer in EVERYWHERE if cells[observer].reason}
        assert refused == ({"Sparsity"} if name == "t5" else set()), name
    for name in MASKED:
        for observer in ("TokenLearning", "WorldKnowledge", "DepthPerformance"):
            assert not written[name][observer].reason
