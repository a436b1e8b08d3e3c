"""Edge probes of all sites at once against plain ones, trained one after the other with autograd."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import f1_score
from torch import nn

from lmdyn.analysis.probing import edge_probes as E
from lmdyn.analysis.probing.probes import generator

SIZES = {"first": 3, "pair": 4}
TRAINING = E.EdgeClassifier(
    learning_rate=0.03, batch_size=32, max_updates=80, evaluate_every=10, patience=2, standardize=False
)


def part(seed, n=150, widths=(5, 5, 7), shift=0.0):
    """Spans of one to four pieces; labels depend on the means at the first site."""
    g = torch.Generator().manual_seed(seed)
    pieces = 4 * n
    x = {f"s{i}": torch.randn(pieces, d, generator=g) + shift for i, d in enumerate(widths)}
    start = torch.randint(0, pieces - 4, (n, 2), generator=g)
    edges = torch.stack([start, start + torch.randint(1, 5, (n, 2), generator=g)], 2)
    means = torch.stack([torch.stack([x["s0"][a:b].mean(0) for a, b in row]) for row in edges.tolist()])
    noise = 0.2 * torch.randn(n, 2, generator=g)
    first = means[:, 0, :3].argmax(1)
    pair = 2 * (means[:, 0, 0] + noise[:, 0] > 0).long() + (means[:, 1, 1] + noise[:, 1] > 0).long()
    one = torch.cat([edges[:, 0], torch.full((n, 2), -100)], 1)
    return E.EdgeData(x, {"first": one, "pair": edges.flatten(1)}, {"first": first, "pair": pair})


PARTS = [part(0, 300), part(1), part(2)]


def naive_means(data, site, task):
    x, rows = data.activations[site], []
    for a, b, c, d in data.spans[task].tolist():
        first = x[a:b].mean(0)
        rows.append(first if c < 0 else torch.cat([first, x[c:d].mean(0)]))
    return torch.stack(rows)


def naive(parts, site, task, training):
    """One probe, plainly: (test F1, development F1, updates)."""
    classes = SIZES[task]
    inputs = [naive_means(p, site, task) for p in parts]
    model = nn.Linear(inputs[0].shape[1], classes)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    labels = [p.labels[task] for p in parts]

    def loss(z, y):
        if training.answers == "softmax":
            return F.cross_entropy(z, y)
        return F.binary_cross_entropy_with_logits(z, F.one_hot(y, classes).float())

    @torch.no_grad()
    def score(i):
        z = model(inputs[i])
        if training.answers == "softmax":
            return f1_score(labels[i], z.argmax(1), average="micro")
        return f1_score(F.one_hot(labels[i], classes), (z > 0).int(), average="micro", zero_division=0)

    order, optimizer = (
        generator(training.seed, "order", task),
        torch.optim.Adam(model.parameters(), training.learning_rate),
    )
    best, kept, at, stale, update = -1.0, None, 0, 0, 0
    while update < training.max_updates and stale < training.patience:
        for batch in torch.randperm(len(labels[0]), generator=order).split(training.batch_size):
            optimizer.zero_grad()
            loss(model(inputs[0][batch]), labels[0][batch]).backward()
            optimizer.step()
            update += 1
            if update % training.evaluate_every == 0 or update == training.max_updates:
                found = score(1)
                stale += 1
                if found > best:
                    best, at, stale = found, update, 0
                    kept = {k: v.clone() for k, v in model.state_dict().items()}
                if stale == training.patience or update == training.max_updates:
                    break
    model.load_state_dict(kept)
    return score(2), best, at


@pytest.mark.parametrize(
    "training", [TRAINING, dataclasses.replace(TRAINING, loss="sigmoid")], ids=["softmax", "sigmoid"]
)
def test_each_site_and_task_is_as_if_trained_alone(training):
    result = E.edge_probes(*PARTS, SIZES, classifier=training)
    assert result.sites == ("s0", "s1", "s2")
    assert result.tasks == ("first", "pair")
    stopped = set()
    for i, site in enumerate(result.sites):
        for j, task in enumerate(result.tasks):
            f1, validation_f1, updates = naive(PARTS, site, task, training)
            assert int(result.updates[i, j]) == updates, (site, task)
            assert float(result.validation_f1[i, j]) == pytest.approx(validation_f1, abs=1e-9)
            assert float(result.f1[i, j]) == pytest.approx(f1, abs=1e-9)
            stopped.add(updates)
    assert len(stopped) > 2  # sites left the program at different times


def test_a_probe_that_never_was_finite_has_no_f1():
    result = E.edge_probes(*PARTS, SIZES, classifier=dataclasses.replace(TRAINING, learning_rate=1e308))
    assert result.f1.isnan().all()
    assert result.validation_f1.isnan().all()


def test_what_is_there_is_found_and_what_is_not_is_not():
    training = dataclasses.replace(TRAINING, max_updates=600, patience=10, standardize=True)
    result = E.edge_probes(*PARTS, SIZES, classifier=training)
    assert result.f1[0, 0] > 0.85
    assert result.f1[0, 1] > 0.75  # the second span of a pair is read as well
    assert (result.f1[1:] < result.majority + 0.12).all()  # the other sites hold noise


def test_standardized_probes_do_not_see_scale_and_shift():
    training = dataclasses.replace(TRAINING, standardize=True, patience=30)
    plain = E.edge_probes(*PARTS, SIZES, classifier=training)
    moved = [
        dataclasses.replace(p, activations={s: 7 * x.double() - 3 for s, x in p.activations.items()})
        for p in PARTS
    ]
    double = [
        dataclasses.replace(p, activations={s: x.double() for s, x in p.activations.items()}) for p in PARTS
    ]
    of_double = E.edge_probes(*double, SIZES, classifier=training)
    assert torch.equal(E.edge_probes(*moved, SIZES, classifier=training).f1, of_double.f1)
    torch.testing.assert_close(plain.f1, of_double.f1, atol=0.03, rtol=0)
    other = E.edge_probes(*moved, SIZES, classifier=dataclasses.replace(training, standardize=False))
    assert not torch.equal(other.f1, of_double.f1)


def test_several_labels_a_span():
    """Both of two independent signs: all labels with a logit above 0 are the answer."""

    def both(data):
        x = naive_means(data, "s0", "first")
        return dataclasses.replace(
            data, spans={"signs": data.spans["first"]}, labels={"signs": x[:, :2] > torch.tensor([0.0, 0.4])}
        )

    parts = [both(p) for p in PARTS]
    result = E.edge_probes(
        *parts, {"signs": 2}, classifier=dataclasses.replace(TRAINING, max_updates=400, patience=9)
    )
    assert result.f1[0, 0] > 0.9
    gold = parts[2].labels["signs"]
    answer = torch.zeros_like(gold)
    answer[:, 0] = True  # the more frequent one
    expected = f1_score(gold, answer, average="micro")
    assert float(result.majority[0]) == pytest.approx(expected)


def test_majority_and_micro_f1():
    result = E.edge_probes(*PARTS, SIZES, classifier=TRAINING)
    for j, task in enumerate(result.tasks):
        most = PARTS[0].labels[task].bincount().argmax()
        expected = (PARTS[2].labels[task] == most).double().mean()
        torch.testing.assert_close(result.majority[j], expected)
    assert float(E.micro_f1(torch.tensor(3), torch.tensor(1), torch.tensor(4))) == pytest.approx(6 / 11)


def test_a_hidden_layer_is_refused():
    with pytest.raises(ValueError, match=r"dropout.*expected"):
        E.EdgeClassifier(dropout=0.1)


def changed(**changes):
    return dataclasses.replace(PARTS[2], **changes)


@pytest.mark.parametrize(
    ("tested", "message"),
    [
        (changed(labels={t: y + 1 for t, y in PARTS[2].labels.items()}), "labels must be in 0 … 2"),
        (changed(spans={t: s + 10_000 for t, s in PARTS[2].spans.items()}), "start < end <= 600, got"),
        (
            changed(
                spans={t: s[:0] for t, s in PARTS[2].spans.items()},
                labels={t: y[:0] for t, y in PARTS[2].labels.items()},
            ),
            "there are no spans",
        ),
    ],
)
def test_bad_data_is_refused(tested, message):
    with pytest.raises(ValueError, match=message):
        E.edge_probes(*PARTS[:2], tested, SIZES, classifier=TRAINING)
