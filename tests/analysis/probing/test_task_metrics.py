"""Metrics of downstream tasks against scikit-learn, scipy, torchmetrics and the definitions written out."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sklearn_metrics
from torchmetrics.functional.text import squad

from lmdyn.analysis.probing import task_metrics as M


@pytest.mark.parametrize("seed", range(5))
def test_classification_as_scikit_learn(seed):
    random = np.random.default_rng(seed)
    true, predicted = (random.random((2, 50)) < 0.3).astype(int)
    values = M.classification_metrics(torch.tensor(predicted), torch.tensor(true), 2)
    assert values["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(true, predicted))

    for name, theirs in (("f1", sklearn_metrics.f1_score), ("matthews", sklearn_metrics.matthews_corrcoef)):
        assert values[name] == pytest.approx(theirs(true, predicted))
    # control: the positive class is the second, not the first
    assert values["f1"] != pytest.approx(sklearn_metrics.f1_score(1 - true, 1 - predicted))


def test_classification_at_the_edges():
    ones, zeros = torch.ones(4, dtype=torch.long), torch.zeros(4, dtype=torch.long)
    assert M.classification_metrics(ones, zeros, 2) == {"accuracy": 0, "f1": 0, "matthews": 0}
    assert M.classification_metrics(zeros, zeros, 2)["f1"] == 0
    assert M.classification_metrics(ones, ones, 3) == {"accuracy": 1}


def test_correlations_as_scipy():
    random = np.random.default_rng(0)
    a = random.integers(0, 6, 40).astype(float)  # with ties
    b = a + random.normal(size=40)
    values = M.regression_metrics(torch.tensor(a), torch.tensor(b))
    assert values["pearson"] == pytest.approx(stats.pearsonr(a, b).statistic)
    assert values["spearman"] == pytest.approx(stats.spearmanr(a, b).statistic)
    assert values["pearson"] != pytest.approx(values["spearman"], abs=1e-3)
    monotone = M.regression_metrics(torch.tensor(b).exp(), torch.tensor(b))
    assert monotone["spearman"] == pytest.approx(1)
    assert monotone["pearson"] < 0.95


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The cat", "cat"),
        ("an  Answer.", "answer"),
        ("a", ""),
        ("theatre a-b", "theatre ab"),
        ("1,000 $", "1000"),
    ],
)
def test_answers_are_compared_without_case_punctuation_and_articles(text, normal):
    assert M.normalized_answer(text) == normal


PREDICTIONS = ["the black cat", "in 1999", "cat cat dog", "nothing alike", "A Dog!"]
ANSWERS = [["black cat", "cat"], ["1999", "the year 1999"], ["cat dog dog"], ["a house"], ["dog", "cat"]]


def test_spans_as_torchmetrics():
    predictions = [{"prediction_text": p, "id": str(i)} for i, p in enumerate(PREDICTIONS)]
    targets = [
        {"answers": {"text": a, "answer_start": [0] * len(a)}, "id": str(i)} for i, a in enumerate(ANSWERS)
    ]
    expected = squad(predictions, targets)
    values = M.span_metrics(PREDICTIONS, ANSWERS)
    assert 100 * values["exact_match"] == pytest.approx(float(expected["exact_match"]))
    assert 100 * values["f1"] == pytest.approx(float(expected["f1"]))
    assert 0 < values["exact_match"] < values["f1"] < 1


def test_questions_without_an_answer():
    """SQuAD 2.0: all or nothing where there is no answer."""
    assert M.exact_match("", []) == M.token_f1("", []) == 1
    assert M.exact_match("cat", []) == M.token_f1("cat", []) == 0
    assert M.exact_match("", ["cat"]) == M.token_f1("", ["cat"]) == 0
    assert M.token_f1("", ["the", "cat"]) == 0  # an answer of articles only is none, but another is there
    assert M.token_f1("", ["the"]) == 1
    assert M.span_metrics(["", "cat", "cat"], [[], [], ["cat"]]) == {
        "exact_match": pytest.approx(2 / 3), "f1": pytest.approx(2 / 3),
    }  # fmt: skip


@pytest.mark.parametrize("max_length", [1, 3, 30])
def test_best_spans_against_all_spans(max_length):
    g = torch.Generator().manual_seed(0)
    start, end = torch.randn(20, 12, generator=g), torch.randn(20, 12, generator=g)
    inside = torch.rand(20, 12, generator=g) < 0.7
    spans = M.best_spans(start, end, inside, max_length)
    for row in range(20):
        allowed = [
            (float(start[row, i] + end[row, j]), i, j)
            for i, j in itertools.product(range(12), repeat=2)
            if inside[row, i] and inside[row, j] and i <= j < i + max_length
        ]
        score, i, j = max(allowed)
        assert spans.score[row].item() == pytest.approx(score)
        assert (spans.start[row].item(), spans.end[row].item()) == (i, j)
        assert spans.null[row] == start[row, 0] + end[row, 0]
    nothing = M.best_spans(start, end, torch.zeros_like(inside), max_length)
    assert (nothing.score == -torch.inf).all()


CLASSIFIED = {"accuracy": 0.8, "f1": 0.6, "matthews": 0.3}
RATED = {"pearson": 0.7, "spearman": 0.5}


@pytest.mark.parametrize(
    ("task", "kind", "values", "published", "glue"),
    [
        ("CoLA", "classification", CLASSIFIED, 0.8, 0.3),
        ("MRPC", "classification", CLASSIFIED, 0.6, 0.7),
        ("SST-2", "classification", CLASSIFIED, 0.8, 0.8),
        ("STS-B", "regression", RATED, 0.5, 0.6),
        ("acceptability", "classification", CLASSIFIED, 0.8, 0.3),
        ("similarity", "regression", RATED, 0.5, 0.6),
        ("SQuAD2.0", "span", {"f1": 0.9, "exact_match": 0.5}, 0.7, 0.7),
    ],
)
def test_scores_are_the_publications_or_glues(task, kind, values, published, glue):
    assert M.task_score(task, kind, {"": values}) == pytest.approx(published)
    assert M.task_score(task, kind, {"": values}, "glue") == pytest.approx(glue)


def test_mnli_is_the_mean_of_both_sets():
    sets = {"matched": {"accuracy": 0.5}, "mismatched": {"accuracy": 0.7}}
    assert M.task_score("MNLI", "classification", sets) == pytest.approx(0.6)
