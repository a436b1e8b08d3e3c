"""ScaffoldRule against decompositions and gradients of whole rows, from the first word of the context."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from lmdyn.analysis import contextual_decomposition
from lmdyn.callbacks import Run, ScaffoldRule, select
from lmdyn.callbacks.observing.loggers import scalar_tags
from lmdyn.datamodules import ScaffoldCorpus
from lmdyn.datamodules.corpora.tokenization import word_tokenizer
from lmdyn.models import LSTMLanguageModel
from tests.analysis.interdependence.lstm_oracle import interdependence

SMALL = {
    "n_rules": 20, "n_phrases": 10, "n_outside": 5, "n_types": 20, "n_train_tokens": 1000, "n_validation_tokens": 100,
    "n_test_tokens": 100, "batch_size": 2, "sequence_length": 10,
}  # fmt: skip
K, INSTANCES, CONTEXT = 3, 6, 4


def language_model(layers=1, seed=0):
    torch.manual_seed(seed)
    size = {"embedding_size": 5, "hidden_size": 6, "num_layers": layers, "init_range": 1.5}
    module = LSTMLanguageModel(vocab_size=25, **size).double()
    with torch.no_grad():
        module.decoder.bias.normal_()  # a bias that shows where it does not belong
    return module


def corpus(familiar=True, length=K, **settings):
    made = ScaffoldCorpus(familiar, length, **{**SMALL, **settings})
    made.prepare_data()
    made.setup()
    return made


def attach(folder, data=None, **settings):
    data = corpus() if data is None else data
    observer = ScaffoldRule(**{"instances": INSTANCES, "context": CONTEXT, **settings})
    observer.attach(Run(folder, data.tokenizer, datamodule=data))
    return observer


def found(table, quantity, site, focus="", words=None):
    (value,) = select(table, quantity=quantity, site=site, focus=focus, words=words)["value"]
    return float(value)


def gradients(module, row, first):
    """‖∂E/∂h‖ and ‖dE/dc‖ from step ``first`` on, of one row that is read from a zero state.

    E of all words after ``first``, and of the last alone. Of a cell state autograd goes through the hidden state too.
    """
    vectors = module.embedding(row[:-1]).detach()
    weights = [
        (layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0 + layer.bias_hh_l0)
        for layer in module.lstm.layers
    ]
    states = [(torch.zeros(6, dtype=torch.float64),) * 2 for _ in weights]
    top, cells = [], []
    for x in vectors:
        for k, (w, u, b) in enumerate(weights):
            h, c = states[k]
            i, f, g, o = (w @ x + u @ h + b).view(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            x = o.sigmoid() * c.tanh()
            states[k] = (x, c)
        top.append(x)
        cells.append(c)
    losses = [-module.decoder(h).log_softmax(-1)[word] for h, word in zip(top, row[1:], strict=True)]
    return {
        (quantity, name): [g.norm() for g in torch.autograd.grad(error, of[first:], retain_graph=True)]
        for name, error in (("all", sum(losses[first:])), ("close", losses[-1]))
        for quantity, of in (("gradient", top), ("cell_gradient", cells))
    }


def direct(module, rows, context, length, variant="published"):
    """Each quantity as a mean over rows (context, α, scaffold, ω)."""
    module.eval()
    close = rows[0, -1]
    vectors = module.embedding(rows[:, :-1]).detach()
    time = torch.arange(rows.shape[1] - 1)
    sets = {("prefix", i): (time >= context) & (time <= context + i) for i in range(length + 1)}
    sets |= {("open", None): time == context, ("scaffold", None): time > context}
    focus = torch.stack(list(sets.values()))[:, None].expand(-1, len(rows), -1)
    parts = contextual_decomposition(module.lstm, vectors, focus, variant=variant).relevant[-1][:, :, -1]
    relevant = dict(zip(sets, parts, strict=True))
    values = {
        ("probability", focus, words): (h @ module.decoder.weight.detach().T).softmax(-1)[:, close]
        for (focus, words), h in relevant.items()
    }
    logits = module(rows[:, :-1]).logits[:, -1].detach()
    values["probability", "", None] = logits.softmax(-1)[:, close]
    values["accuracy", "", None] = (logits.max(-1).values == logits[:, close]).double()
    values["rise", "", None] = values["probability", "prefix", length] - values["probability", "prefix", 0]
    whole = relevant["prefix", length]
    apart = relevant["open", None] + relevant["scaffold", None]
    values["di", "", None] = (whole - apart).norm(dim=-1) / whole.norm(dim=-1)
    each = [gradients(module, row, context) for row in rows]
    for name, quantity in itertools.product(("all", "close"), ("gradient", "cell_gradient")):
        of = [torch.stack([row[quantity, name][words] for row in each]) for words in range(length + 1)]
        values |= {(quantity, name, words): of[words] for words in range(length + 1)}
        values[f"{quantity}_inside", name, None] = torch.stack(of[1:]).mean(0)
    scaffolds = [tuple(row[context + 1 : -1].tolist()) for row in rows]
    means = {key: float(value.double().mean()) for key, value in values.items()}
    errors = {
        (f"{quantity}_error", *groups): by_scaffold(value.double().tolist(), scaffolds)
        for (quantity, *groups), value in values.items()
    }
    return means | errors


def by_scaffold(values, scaffolds):
    """Standard error of the mean; values of one scaffold are a cluster (Liang & Zeger 1986)."""
    mean, sums = sum(values) / len(values), {}
    for value, scaffold in zip(values, scaffolds, strict=True):
        sums[scaffold] = sums.get(scaffold, 0.0) + value - mean
    n = len(sums)
    return (n / (n - 1) * sum(s**2 for s in sums.values())) ** 0.5 / len(values)


@pytest.mark.parametrize(
    ("layers", "length", "context", "variant"),
    [(1, 3, 4, "published"), (2, 3, 4, "published"), (2, 2, 0, "published"), (1, 1, 0, "generalized")],
)
def test_quantities_are_those_of_whole_rows(tmp_path, layers, length, context, variant):
    data, module = corpus(length=length), language_model(layers)
    table = attach(tmp_path, data, context=context, variant=variant).observe(module, 9)
    keys = ["quantity", "site", "focus", "words"]
    expected = {}
    for domain in ("in", "out"):
        of = direct(module, data.examples(domain, INSTANCES, context), context, length, variant)
        expected |= {(quantity, domain, *groups): value for (quantity, *groups), value in of.items()}
    assert not table.duplicated(keys).any()
    assert len(table) == len(expected)
    for key, value in expected.items():
        quantity, domain, focus, words = key
        assert found(table, quantity, domain, focus, words) == pytest.approx(value, rel=1e-9, abs=1e-13), key
    assert set(table["step"]) == {9}
    assert set(table["length"]) == {length}
    assert set(table["rules"]) == {20}
    assert set(table["scaffold"]) == {"familiar"}


def test_interdependence_of_open_and_scaffold_is_equation_2(tmp_path):
    """By the decomposition as it is printed."""
    data, module = corpus(), language_model(2)
    table = attach(tmp_path, data, instances=2).observe(module, 0)
    values = []
    for row in data.examples("in", 2, CONTEXT):
        time = np.arange(len(row) - 1)
        words = module.embedding(row[:-1]).detach()
        values.append(interdependence(list(module.lstm.layers), words, time == CONTEXT, time > CONTEXT))
    assert found(table, "di", "in") == pytest.approx(np.mean(values), rel=1e-9)


def test_what_cannot_be_is_refused(tmp_path):
    observer = ScaffoldRule()
    observer.probe = ScaffoldCorpus(True, K, **SMALL)
    with pytest.raises(ValueError, match="the tokenizer lacks 22 of 22 words"):
        observer.attach(Run(tmp_path, word_tokenizer({"a": 1})))
    fine = language_model()
    attach(tmp_path).check_module(fine)
    with pytest.raises(ValueError, match="no module 'rnn': set `lstm`"):
        attach(tmp_path, lstm="rnn").check_module(fine)


def test_a_frozen_model_has_gradients_of_its_states(tmp_path):
    module, observer = language_model(2), attach(tmp_path)
    table = observer.observe(module, 5)
    module.requires_grad_(False)
    with torch.inference_mode():
        pd.testing.assert_frame_equal(observer.observe(module, 5), table, check_exact=True)


# ---------------------------------------------------------------- several runs


def test_what_is_known_of_phrases_where_the_rule_begins_later(tmp_path):
    data = corpus(first_use=0.5, half=1, scrambled=True, n_outside=2)
    observer, module = attach(tmp_path, data), language_model().eval()
    table = observer.measure(module, 1)
    examples = data.examples("in", INSTANCES, CONTEXT)
    p = module(examples).logits.detach().softmax(-1)[:, CONTEXT + 1 : -2]
    expected = p.gather(-1, examples[:, CONTEXT + 2 : -1, None]).mean()
    assert found(table, "probability_inside", "in") == pytest.approx(float(expected), rel=1e-6)
    assert set(table["scaffold"]) == {"scrambled"}
    logged = scalar_tags("", table[ScaffoldRule.is_scalar(table)])
    assert any(tag.endswith(f"probability_inside/in/scrambled/length={K}/rules=20") for tag in logged)
    assert "probability_inside" not in set(attach(tmp_path / "b").measure(module, 1)["quantity"])
