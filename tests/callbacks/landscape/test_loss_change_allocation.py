"""Loss change allocation of whole runs: chord and path, by layer, matrix and class, resumed, accumulated, void."""

import copy
import math
from itertools import pairwise

import lightning as L
import pandas as pd
import pytest
import torch

from lmdyn.callbacks import LossChangeAllocation, Run, RunState, ScheduledCheckpoint, Steps
from lmdyn.datamodules import GrammarCorpus
from lmdyn.models import LSTMLanguageModel

CORPUS = {
    "n_train_tokens": 700, "n_validation_tokens": 200, "n_test_tokens": 50, "sequence_length": 12, "batch_size": 4,
    "n_topics": 3, "n_nouns": 30, "n_verbs": 20, "n_adjectives": 10, "n_adverbs": 3, "n_names": 10, "n_facts": 5,
    "layers": ["upos"],
}  # fmt: skip
SCHEDULE = Steps(at=(0, 2, 5), last=True)


def fit(folder, observers, *, updates=7, ckpt_path=None, accumulate=1, savers=(), lr=2.0, double=False):
    L.seed_everything(3, verbose=False)
    module = LSTMLanguageModel(
        embedding_size=8, hidden_size=8, dropout=0.2, optimizer=lambda p: torch.optim.SGD(p, lr=lr)
    )
    trainer = L.Trainer(
        accelerator="cpu", devices=1, logger=False, max_steps=updates, default_root_dir=folder,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        accumulate_grad_batches=accumulate, precision="64-true" if double else "32-true",
        callbacks=[RunState(), *observers, ScheduledCheckpoint(SCHEDULE), *savers],
    )  # fmt: skip
    trainer.fit(module, datamodule=GrammarCorpus(**CORPUS), ckpt_path=ckpt_path, weights_only=True)
    return module


def observer(allocation, **settings):
    settings = {"bands": (10,), "schedule": SCHEDULE, "log_figures": False, "name": allocation, **settings}
    return LossChangeAllocation(allocation=allocation, **settings)


def table_of(folder, name):
    table = pd.read_parquet(folder / "observations" / name)
    return table[table["quantity"] != "learning_rate"]


def shares(table, step, quantity="allocation", **where):
    rows = table[table["step"].eq(step) & table["quantity"].eq(quantity)]
    for column, value in {"parameter": "", "by": "", **where}.items():
        rows = rows[rows[column].eq(value)]
    if "site" in where:
        return rows.set_index("group")["value"]
    return rows[rows["site"].ne("")].set_index("site")["value"]


def number(table, step, quantity):
    rows = table[table["step"].eq(step) & table["quantity"].eq(quantity) & table["site"].eq("")]
    return rows[rows["by"].eq("")]["value"].item()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    every = observer("path", name="every", schedule=Steps(every=1))
    module = fit(folder, [observer("chord"), observer("path"), every])
    plain = fit(tmp_path_factory.mktemp("plain"), [])
    return folder, module, plain


def test_following_a_training_leaves_it_as_it_was(run):
    _, module, plain = run
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize("name", ["chord", "path", "every"])
def test_shares_add_up_in_every_division(run, name):
    table = table_of(run[0], name)
    assert set(table[table["step"].eq(0)]["quantity"]) == {"loss"}
    steps = sorted(table["step"].unique())
    assert steps == ([0, 2, 5, 7] if name != "every" else list(range(8)))
    for before, step in pairwise(steps):
        change = number(table, step, "loss_change")
        assert change == pytest.approx(number(table, step, "loss") - number(table, before, "loss"), abs=1e-6)
        total = change + number(table, step, "residual")
        assert abs(total - change) <= max(0.01 * abs(change), 1e-4)
        layers = shares(table, step)
        assert sorted(layers.index) == ["embedding", "h1", "h2", "logits"]
        assert layers.sum() == pytest.approx(total, abs=1e-8)
        first = shares(table, step, "first_order")
        assert first.sum() == pytest.approx(number(table, step, "first_order"), abs=1e-8)
        for by in ("upos", "rank"):
            for site, share in layers.items():
                assert shares(table, step, by=by, site=site).sum() == pytest.approx(share, abs=1e-7)
            of_classes = shares(table, step, by=by, site="")
            assert of_classes.sum() == pytest.approx(total, abs=1e-7)
            counts = shares(table, step, "class_tokens", by=by, site="")
            assert counts.sum() == 235
            assert counts.index.equals(of_classes.index)
        matrices = table[table["step"].eq(step) & table["parameter"].ne("") & table["by"].eq("")]
        matrices = matrices[matrices["quantity"].eq("allocation")].set_index("parameter")["value"]
        assert matrices.sum() == pytest.approx(total, abs=1e-8)
        for by in ("row_rank", "row_upos"):
            rows = table[table["step"].eq(step) & table["by"].eq(by)]
            assert rows["value"].sum() == pytest.approx(matrices["embedding.weight"], abs=1e-8)
            assert len(rows) > 1
        assert number(table, step, "updates") == step - before
        assert 0 < number(table, step, "helping_share") < 1


def test_the_path_is_the_sum_over_its_updates_and_not_the_chord(run):
    whole, single, chord = (table_of(run[0], name) for name in ("path", "every", "chord"))
    for before, step in ((0, 2), (2, 5), (5, 7)):
        for quantity in ("allocation", "first_order"):
            parts = sum(shares(single, s, quantity) for s in range(before + 1, step + 1))
            pd.testing.assert_series_equal(shares(whole, step, quantity), parts, rtol=1e-12)
        assert number(whole, step, "points") == 3 * (step - before)
        assert number(whole, step, "loss_change") == pytest.approx(
            number(chord, step, "loss_change"), abs=1e-7
        )
        difference = (shares(whole, step) - shares(chord, step)).abs().max()
        assert difference > 1e-5  # same sum, other shares


def test_one_update_is_its_own_chord(run, tmp_path):
    folder, module, _ = run
    data = GrammarCorpus(**CORPUS)
    data.prepare_data()
    data.setup("fit")
    shared = {"probe": data, "max_tokens": None}
    path, chord = observer("path", **shared), observer("chord", most_points=3, **shared)
    path.attach(Run(tmp_path, data.tokenizer, data.token_counts, data))
    chord.attach(Run(tmp_path, data.tokenizer, data.token_counts, data, {}, folder / "checkpoints"))
    model = copy.deepcopy(module)
    start = torch.load(folder / "checkpoints/step=000000005.ckpt", weights_only=True)
    model.load_state_dict(start["state_dict"])
    path.observe(model, 5)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.02 * torch.randn_like(p)
    one, other = path.observe(model, 6), chord.observe(model, 6)
    pd.testing.assert_frame_equal(one, other, rtol=1e-9)
    assert number(one, 6, "updates") == 1


def resumed(folder, **steps):
    """A run that ends after four updates, and goes on from the checkpoint of its end."""
    schedule = Steps(at=(0, 2, 5, 7), **steps)
    savers = [ScheduledCheckpoint(Steps(at=(4,), last=False), weights_only=False)]
    fit(folder, [observer("path", schedule=schedule)], updates=4, savers=savers)
    (saved,) = (folder / "resume").glob("*.ckpt")
    fit(folder, [observer("path", schedule=schedule)], ckpt_path=saved)
    return table_of(folder, "path")


def test_a_path_that_is_resumed_between_observations_goes_on_as_if_it_had_not_stopped(run, tmp_path):
    found = resumed(tmp_path, last=False)
    pd.testing.assert_frame_equal(table_of(run[0], "path"), found, check_exact=True)
    assert number(found, 5, "updates") == 3


def test_a_path_that_is_resumed_at_an_observation_begins_there(run, tmp_path):
    """The checkpoint of the last step is saved before the last observation: its sums are in both."""
    found = resumed(tmp_path, last=True)
    assert [number(found, step, "updates") for step in (2, 4, 5, 7)] == [2, 2, 1, 2]
    single = table_of(run[0], "every")
    pd.testing.assert_series_equal(shares(found, 5), shares(single, 5), rtol=1e-12)


def test_batches_without_an_update_are_no_part_of_the_path(tmp_path):
    fit(tmp_path, [observer("path")], updates=3, accumulate=3)
    table = table_of(tmp_path, "path")
    assert number(table, 2, "updates") == 2
    assert number(table, 3, "updates") == 1


def test_void_shares_are_no_numbers(tmp_path, caplog):
    chord = observer("chord", most_points=3, schedule=Steps(every=1))
    # the step of a rate that is far too high is no line that three points follow
    fit(tmp_path, [chord], updates=3, lr=3000.0)
    table = table_of(tmp_path, "chord")
    void = [s for s in (2, 3) if shares(table, s).isna().all()]
    assert void
    step = void[0]
    assert abs(number(table, step, "residual")) > 0.05 * abs(number(table, step, "loss_change"))
    assert math.isnan(number(table, step, "helping_share"))
    assert not shares(table, step, "first_order").isna().any()
    assert "they are void; observe at more steps" in caplog.text
