"""Diagnostic classifiers: theory, scikit-learn and autograd as oracles, and that joint training is training alone."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from lmdyn.analysis.probing import probes as P

KINDS = [pytest.param(P.DiagnosticClassifier(), id="linear"),
         pytest.param(P.DiagnosticClassifier(kind="mlp", hidden_size=8, dropout=0.25), id="mlp")]  # fmt: skip


def normal(seed, *shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def integers(seed, high, *shape):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def probe(train_x, train_y, test_x, test_y, classes, classifier, **kwargs):
    """One site and one task."""
    return P.diagnostic_probe({"h": train_x}, {"y": train_y}, {"h": test_x}, {"y": test_y}, {"y": classes},
                            classifier=classifier, **kwargs)  # fmt: skip


def gaussians(seed, n, means, dtype=torch.float32):
    y = integers(seed, len(means), n)
    return means[y] + normal(seed + 1, n, means.shape[1], dtype=dtype), y


@pytest.fixture
def many():
    """Three sites, two of one width, and three tasks with masks of their own: train and test, in float64."""
    features, labels = [], []
    for seed, n in ((0, 150), (50, 70)):
        x = normal(seed, n, 12, dtype=torch.float64)
        y = {"a": (x[:, 0] > 0).long(), "b": x[:, 1:5].argmax(1), "c": integers(seed + 1, 3, n)}
        y["b"][: n // 3] = -100
        y["c"][n // 2 :] = -100
        features.append({"low": x[:, :7], "high": 3 * x[:, 5:] + 1, "wide": x})
        labels.append(y)
    return features[0], labels[0], features[1], labels[1], {"a": 2, "b": 4, "c": 3}


class TestWhatProbesLearn:
    def test_only_a_hidden_layer_learns_xor(self):
        (x, u), training = (
            (normal(s, 2000, 2) for s in (0, 1)),
            P.DiagnosticClassifier(epochs=30, batch_size=32),
        )
        y, v = ((z.prod(1) > 0).long() for z in (x, u))
        assert 0.4 < float(probe(x, y, u, v, 2, training).accuracy) < 0.6
        mlp = replace(training, kind="mlp", hidden_size=32)
        assert float(probe(x, y, u, v, 2, mlp).accuracy) > 0.95

    @pytest.mark.parametrize("classifier", KINDS)
    def test_random_labels_stay_at_chance(self, classifier):
        x, u, y, v = normal(0, 1500, 10), normal(1, 3000, 10), integers(2, 5, 1500), integers(3, 5, 3000)
        result = probe(x, y, u, v, 5, classifier)
        assert float(result.accuracy) == pytest.approx(0.2, abs=4 * math.sqrt(0.2 * 0.8 / 3000))
        assert math.log(5) - 0.01 < float(result.loss) < math.log(5) + 0.1

    def test_equals_logistic_regression_of_scikit_learn(self):
        means = normal(9, 3, 6, dtype=torch.float64)
        (x, y), (u, v) = (gaussians(s, 800, means, torch.float64) for s in (0, 5))
        oracle = LogisticRegression(C=1e6, max_iter=2000).fit(x.numpy(), y.numpy())
        expected = -oracle.predict_log_proba(u.numpy())[np.arange(len(v)), v.numpy()].mean()
        classifier = P.DiagnosticClassifier(epochs=300, batch_size=800, learning_rate=0.05)
        for standardized in (True, False):
            result = probe(x, y, u, v, 3, replace(classifier, standardize=standardized))
            assert float(result.accuracy) == pytest.approx(oracle.score(u.numpy(), v.numpy()), abs=0.005)
            assert float(result.loss) == pytest.approx(expected, abs=0.002)

    def test_majority_is_that_of_training(self):
        y, v = torch.tensor([2, 2, 0, -100, -100, -100]), torch.tensor([0, 0, 0, 2, -100])
        result = probe(normal(0, 6, 3), y, normal(1, 5, 3), v, 3, P.DiagnosticClassifier())
        assert float(result.majority) == 0.25


class TestOneProgram:
    @pytest.mark.parametrize("classifier", KINDS)
    def test_joint_training_is_training_alone(self, many, classifier):
        joint = P.diagnostic_probe(*many, classifier=classifier)
        assert joint.accuracy.shape == joint.loss.shape == (3, 3)
        assert joint.sites == ("low", "high", "wide")
        assert joint.tasks == ("a", "b", "c")
        train_x, train_y, test_x, test_y, classes = many
        for i, site in enumerate(joint.sites):
            for j, task in enumerate(joint.tasks):
                alone = P.diagnostic_probe({site: train_x[site]}, {task: train_y[task]}, {site: test_x[site]},
                                         {task: test_y[task]}, classes, classifier=classifier)  # fmt: skip
                assert float(joint.loss[i, j]) == pytest.approx(float(alone.loss), abs=1e-10)
                assert float(joint.accuracy[i, j]) == float(alone.accuracy)
                assert float(joint.majority[j]) == float(alone.majority)

    @pytest.mark.parametrize("classifier", KINDS)
    def test_what_has_no_label_has_no_influence(self, many, classifier):
        train_x, train_y, test_x, test_y, classes = many
        classifier = replace(classifier, standardize=False)
        one = P.diagnostic_probe(*many, classifier=classifier)
        off, off_test = train_y["b"] == -100, test_y["b"] == -100
        disturbed = {site: torch.where(off[:, None], 1e3, x) for site, x in train_x.items()}
        disturbed_test = {site: torch.where(off_test[:, None], 1e3, x) for site, x in test_x.items()}
        two = P.diagnostic_probe(disturbed, train_y, disturbed_test, test_y, classes, classifier=classifier)
        assert torch.equal(one.loss[:, 1], two.loss[:, 1])
        assert not torch.equal(one.loss[:, 0], two.loss[:, 0])


class TestControlTask:
    def test_one_label_a_type_whatever_the_order(self):
        types, counts = integers(0, 500, 5000), torch.tensor([5, 0, 3, 2])
        labels = P.control_labels(types, counts, seed=3)
        pairs = torch.stack([types, labels]).unique(dim=1)
        assert pairs.shape[1] == len(types.unique())
        order = torch.randperm(5000, generator=torch.Generator().manual_seed(1))[:50]
        assert torch.equal(P.control_labels(types[order], counts, seed=3), labels[order])
        assert torch.equal(
            P.control_labels(types.reshape(50, 100), counts / 10, seed=3), labels.reshape(50, 100)
        )
        assert not torch.equal(P.control_labels(types, counts, seed=4), labels)

    def test_types_follow_the_distribution(self):
        counts = torch.tensor([50, 0, 30, 19, 1])
        for seed in range(3):
            drawn = torch.bincount(P.control_labels(torch.arange(20_000), counts, seed=seed), minlength=5)
            assert int(drawn[1]) == 0
            expected = 200.0 * counts[counts > 0]
            statistic = float(((drawn[counts > 0] - expected).square() / expected).sum())
            assert statistic < 16.3  # 0.1 % of χ² with three degrees of freedom

    def test_selectivity_tells_structure_from_memory(self):
        """One site holds the class, which half of the types' tokens share, and one the word type alone."""
        types = [integers(s, 40, 3000) for s in (0, 1)]
        y = [integers(s + 2, 4, 3000) for s in (0, 1)]
        identity = [torch.nn.functional.one_hot(t, 40).float() for t in types]
        structure = [torch.nn.functional.one_hot(v, 4).float() + 0.1 * normal(7, 3000, 4) for v in y]
        of_type = [P.control_labels(t, torch.ones(4), seed=99) for t in types]
        result = P.diagnostic_probe(
            *({"structure": structure[i], "type": identity[i]} if part == "x" else {"class": y[i], "word": of_type[i]}
              for i in (0, 1) for part in "xy"),
            {"class": 4, "word": 4}, train_types=types[0], test_types=types[1],
            classifier=P.DiagnosticClassifier(epochs=30),
        )  # fmt: skip
        assert result.selectivity.shape == (2, 2)
        assert float(result.selectivity[0, 0]) > 0.6
        assert float(result.accuracy[1, 1]) > 0.98
        assert float(result.control_accuracy[1, 1]) > 0.98
        assert abs(float(result.selectivity[1, 1])) < 0.02
        assert float(result.selectivity[1, 0]) < -0.6

    def test_control_tasks_change_no_task_and_are_what_they_would_be_as_tasks(self, many):
        types = [integers(s, 20, len(many[i]["a"])) for s, i in ((0, 1), (1, 3))]
        plain = P.diagnostic_probe(*many)
        with_control = P.diagnostic_probe(*many, train_types=types[0], test_types=types[1])
        torch.testing.assert_close(plain.loss, with_control.loss, atol=1e-10, rtol=0)
        assert with_control.tasks == plain.tasks
        assert with_control.control_accuracy.shape == (3, 3)
        with pytest.raises(ValueError, match="require types"):
            P.diagnostic_probe(*many, train_types=types[0])
        with pytest.raises(
            ValueError, match="train_types: expected types >= 0 of labelled tokens of task 'a'"
        ):
            P.diagnostic_probe(*many, train_types=-torch.ones(150).long(), test_types=types[1])


class TestDescriptionLength:
    @pytest.mark.parametrize("classifier", KINDS)
    def test_untrained_probes_send_the_uniform_code(self, many, classifier):
        code = P.description_length(many[0], many[1], many[4], classifier=replace(classifier, epochs=0))
        expected = torch.tensor([150 * 1.0, 100 * 2.0, 75 * math.log2(3)], dtype=torch.float64)
        torch.testing.assert_close(code.uniform_codelength, expected, atol=1e-9, rtol=0)
        torch.testing.assert_close(code.codelength, expected.expand(3, 3), atol=1e-9, rtol=0)
        torch.testing.assert_close(code.compression, torch.ones(3, 3, dtype=torch.float64))

    def test_is_the_sum_over_probes_of_the_blocks_before(self):
        """A second implementation: a probe trained on each prefix tells the block after it."""
        x, y = normal(0, 200, 5, dtype=torch.float64), integers(1, 3, 200)
        x[:, 0] += 2 * y
        y[::7] = -100
        classifier = P.DiagnosticClassifier(standardize=False, batch_size=16)
        code = P.description_length({"h": x}, {"y": y}, {"y": 3}, fractions=(0.1, 0.35, 1.0), shuffle=False,
                                  classifier=classifier)  # fmt: skip
        assert code.boundaries == (20, 70, 200)
        bits = [float((y[:20] >= 0).sum()) * math.log2(3)]
        for start, stop in ((20, 70), (70, 200)):
            result = probe(x[:start], y[:start], x[start:stop], y[start:stop], 3, classifier)
            bits.append(float(result.loss) * float((y[start:stop] >= 0).sum()) / math.log(2))
        torch.testing.assert_close(code.blocks[:, 0, 0], torch.tensor(bits, dtype=torch.float64))
        assert float(code.codelength) == pytest.approx(sum(bits))
        shuffled = P.description_length({"h": x}, {"y": y}, {"y": 3}, fractions=(0.1, 0.35, 1.0),
                                      classifier=classifier)  # fmt: skip
        assert float(shuffled.codelength) != pytest.approx(float(code.codelength), rel=1e-3)

    @pytest.mark.parametrize(("n", "expected"), [(10, (1, 2, 5, 10)), (3, (1, 3)), (1, (1,))])
    def test_empty_blocks_are_merged(self, n, expected):
        code = P.description_length({"h": normal(0, n, 2)}, {"y": torch.ones(n).long()}, {"y": 2})
        assert code.boundaries == expected
        assert len(code.blocks) == len(expected)
        assert float(code.blocks[0]) == 1

    @pytest.mark.parametrize(
        "fractions", [(), (0.5,), (0.0, 1.0), (0.5, 0.2, 1.0), (0.5, 0.5, 1.0), (0.5, 2.0)]
    )
    def test_fractions_rise_to_one(self, many, fractions):
        with pytest.raises(ValueError, match="fractions must increase"):
            P.description_length(many[0], many[1], many[4], fractions=fractions)


class TestErrors:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda a: a[0].clear(), "train_features: expected at least one site"),
            (lambda a: a[0]["wide"].__setitem__((3, 4), math.nan), "train_features: site .* has NaN or inf"),
            (lambda a: a[1]["b"].fill_(-100), "train_labels: expected labels of task 'b' .*got only -100"),
            (
                lambda a: a[1]["a"].__setitem__(5, 2),
                "train_labels: expected labels of task 'a' in 0 … 1 or -100",
            ),
            (
                lambda a: a[3]["a"].__setitem__(5, -1),
                "test_labels: expected labels of task 'a' in 0 … 1 or -100",
            ),
        ],
    )
    def test_messages_name_what_is_wrong(self, many, change, message):
        change(many)
        with pytest.raises(ValueError, match=message):
            P.diagnostic_probe(*many)

    @pytest.mark.parametrize(("settings", "message"), [({"hidden_size": 3}, "no hidden layer")])
    def test_settings(self, settings, message):
        with pytest.raises(ValueError, match=message):
            P.DiagnosticClassifier(**settings)


def test_hits_by_block_add_up():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(300, 4, generator=g), torch.randint(0, 3, (300,), generator=g)
    y[::7] = -100
    blocks = torch.randint(0, 5, (300,), generator=g)
    blocks[blocks == 3] = 4  # a block may be empty
    whole = P.diagnostic_probe({"x": x}, {"t": y}, {"x": x}, {"t": y}, {"t": 3})
    cut = P.diagnostic_probe({"x": x}, {"t": y}, {"x": x}, {"t": y}, {"t": 3}, test_blocks=blocks)
    assert whole.block_hits is None
    assert cut.block_counts.squeeze(1).tolist() == [int(((blocks == i) & (y >= 0)).sum()) for i in range(5)]
    assert torch.allclose(cut.block_hits.sum(0) / cut.block_counts.sum(0), whole.accuracy)
    assert torch.equal(cut.accuracy, whole.accuracy)
