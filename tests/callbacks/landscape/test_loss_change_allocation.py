"""Loss change allocation of whole runs: chord and path, by layer, matrix and class, resumed, accumulated, void."""

import math
from itertools import pairwise

import lightning as L
import pandas as pd
import pytest
import torch
from torch import nn

from lmdyn.callbacks import LossChangeAllocation, Run, RunState, ScheduledCheckpoint, Steps
from lmdyn.datamodules import GrammarCorpus
from lmdyn.models import LSTMLanguageModel
from tests.callbacks.landscape.test_landscape import Batched
from tests.helpers.architectures import ARCHITECTURES
from tests.helpers.modules import quiet_trainer
from tests.helpers.refusals import assert_refused

CORPUS = {
    "n_train_tokens": 700, "n_validation_tokens": 200, "n_test_tokens": 50, "sequence_length": 12, "batch_size": 12,
    "n_topics": 3, "n_nouns": 30, "n_verbs": 20, "n_adjectives": 10, "n_adverbs": 3, "n_names": 10, "n_facts": 5,
    "layers": ["upos"],
}  # fmt: skip
SCHEDULE = Steps(at=(0, 2, 5), last=True)


def fit(folder, observers, *, updates=7, ckpt_path=None, accumulate=1, savers=(), lr=5.0):
    L.seed_everything(3, verbose=False)
    module = LSTMLanguageModel(
        embedding_size=8, hidden_size=8, dropout=0.2, optimizer=lambda p: torch.optim.SGD(p, lr=lr)
    )
    trainer = quiet_trainer(
        folder, RunState(), *observers, ScheduledCheckpoint(SCHEDULE), *savers, max_steps=updates,
        num_sanity_val_steps=0, accumulate_grad_batches=accumulate,
    )  # fmt: skip
    trainer.fit(module, datamodule=GrammarCorpus(**CORPUS), ckpt_path=ckpt_path, weights_only=True)


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
    fit(folder, [observer("chord"), observer("path"), every])
    return folder


@pytest.mark.parametrize("name", ["chord", "path", "every"])
def test_shares_add_up_in_every_division(run, name):
    table = table_of(run, name)
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
    whole, single, chord = (table_of(run, name) for name in ("path", "every", "chord"))
    for before, step in ((0, 2), (2, 5), (5, 7)):
        for quantity in ("allocation", "first_order"):
            parts = sum(shares(single, s, quantity) for s in range(before + 1, step + 1))
            pd.testing.assert_series_equal(shares(whole, step, quantity), parts, rtol=1e-12)
        assert number(whole, step, "points") >= 3 * (step - before)
        expected = pytest.approx(number(chord, step, "loss_change"), abs=1e-7)
        assert number(whole, step, "loss_change") == expected
        difference = (shares(whole, step) - shares(chord, step)).abs().max()
        assert difference > 1e-5  # same sum, other shares


def resumed(folder, **steps):
    """A run that ends after four updates, and goes on from the checkpoint of its end."""
    schedule = Steps(at=(0, 2, 5, 7), **steps)
    savers = [ScheduledCheckpoint(Steps(at=(4,), last=False), weights_only=False)]
    fit(folder, [observer("path", schedule=schedule)], updates=4, savers=savers)
    (saved,) = (folder / "resume").glob("*.ckpt")
    fit(folder, [observer("path", schedule=schedule)], ckpt_path=saved)
    return table_of(folder, "path")


@pytest.mark.slow
def test_a_path_that_is_resumed_between_observations_goes_on_as_if_it_had_not_stopped(run, tmp_path):
    found = resumed(tmp_path, last=False)
    pd.testing.assert_frame_equal(table_of(run, "path"), found, check_exact=True)
    assert number(found, 5, "updates") == 3


@pytest.mark.slow
def test_a_path_that_is_resumed_at_an_observation_begins_there(run, tmp_path):
    """The checkpoint of the last step is saved before the last observation: its sums are in both."""
    found = resumed(tmp_path, last=True)
    assert [number(found, step, "updates") for step in (2, 4, 5, 7)] == [2, 2, 1, 2]
    single = table_of(run, "every")
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
    assert "; save checkpoints at more steps" in caplog.text


def text(vocabulary=9, rows=3, length=6, batches=2):
    draw = torch.Generator().manual_seed(
        0
    )  # not 0, the padding of some models: its embedding has no gradient
    ids = torch.randint(1, vocabulary, (batches, rows, length + 1), generator=draw)
    return [{"input_ids": b[:, :-1], "labels": b[:, 1:]} for b in ids]


def attached(tmp_path, batches, allocation="path", folder=None, **settings):
    found = observer(
        allocation, **{"probe": batches, "labels": "aligned", "layers": [], "frequency": "probe", **settings}
    )
    found.attach(Run(tmp_path, checkpoint_folder=folder or tmp_path))
    return found


def moved(module, size=0.01):
    torch.manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            p += size * torch.randn_like(p)


def test_applications_of_a_shared_layer_add_up_to_it(tmp_path):
    module, looking = ARCHITECTURES["albert"](), attached(tmp_path, text())
    looking.observe(module, 0)
    moved(module)
    table = looking.observe(module, 1)
    found = shares(table, 1)
    applications = found[found.index.str.contains("@")]
    assert list(applications.index) == ["block@0", "block@1"]
    assert applications.abs().min() > 0
    assert applications.sum() == pytest.approx(found["block"], abs=1e-10)
    total = number(table, 1, "loss_change") + number(table, 1, "residual")
    assert found.drop(applications.index).sum() == pytest.approx(total, abs=1e-8)
    for site in applications.index:
        assert shares(table, 1, by="rank", site=site).sum() == pytest.approx(found[site], abs=1e-8)
    # the output matrix is that of the embedding: one parameter
    matrices = set(table["parameter"])
    assert "albert.embeddings.word_embeddings.weight" in matrices
    assert "predictions.decoder.weight" not in matrices


class Frozen(nn.Module):
    """An embedding, an output layer without gradient, and no blocks."""

    def __init__(self):
        super().__init__()
        self.embedding, self.decoder = nn.Embedding(9, 4), nn.Linear(4, 9)
        self.decoder.requires_grad_(False)

    def forward(self, input_ids):
        return self.decoder(self.embedding(input_ids))


def test_what_is_frozen_has_no_share_and_other_parameters_have_a_name(tmp_path):
    module, looking = Frozen(), attached(tmp_path, text(), sites={"embedding": "embedding"})
    looking.observe(module, 0)
    with torch.no_grad():
        module.embedding.weight += 0.1
    table = looking.observe(module, 1)
    assert shares(table, 1).to_dict() == {
        "embedding": pytest.approx(number(table, 1, "loss_change"), abs=1e-4),
        "other": 0,
    }
    assert not module.decoder.weight.requires_grad
    still = looking.observe(module, 2)  # an update that changes nothing
    assert (shares(still, 2) == 0).all()
    assert number(still, 2, "loss_change") == 0
    assert not still["quantity"].eq("helping_share").any()


def test_what_a_run_cannot_give_is_refused(tmp_path):
    def attach(checkpoints=None, **settings):
        given = {"probe": text(), "labels": "aligned", "frequency": "probe", **settings}
        LossChangeAllocation(**given).attach(Run(tmp_path, checkpoints=checkpoints))

    assert_refused(
        attach,
        ({"allocation": "path", "checkpoints": {}}, "a replay has no updates.* `allocation: chord`"),
        ({}, "saves no checkpoints. Either attach a ScheduledCheckpoint .*, or set `allocation: path`"),
    )
    unlabelled = [{**batch, "labels": torch.full_like(batch["labels"], -100)} for batch in text()]
    with pytest.raises(ValueError, match="no token of the text has a label"):
        attached(tmp_path, unlabelled, sites="auto").observe(Frozen(), 0)


def test_an_update_that_three_points_do_not_follow_is_refined_as_its_chord(tmp_path):
    folder = tmp_path / "saved"
    (folder / "checkpoints").mkdir(parents=True)
    torch.manual_seed(0)
    module, path = Frozen(), attached(tmp_path / "path", text(), sites="auto")
    with torch.no_grad():
        module.embedding.weight *= 20
    path.observe(module, 0)
    torch.save({"state_dict": module.state_dict()}, folder / "checkpoints/step=000000000.ckpt")
    with torch.no_grad():  # logits change their signs on the way: the loss has a bend there
        module.embedding.weight *= -0.5
    chord = attached(tmp_path / "chord", text(), "chord", sites="auto", folder=folder / "checkpoints")
    one, other = path.observe(module, 1), chord.observe(module, 1)
    assert number(one, 1, "points") > 3
    assert not shares(one, 1).isna().any()
    pd.testing.assert_frame_equal(one, other, rtol=1e-5)


@pytest.mark.parametrize("bands", [(), (3,)])
def test_weights_of_a_narrow_type_have_shares(tmp_path, bands):
    module, looking = Frozen().bfloat16(), attached(tmp_path, text(), sites="auto", bands=bands)
    before = looking.observe(module, 0)
    moved(module, 0.1)
    table = looking.observe(module, 1)
    change = number(table, 1, "loss") - number(before, 0, "loss")
    assert number(table, 1, "loss_change") == pytest.approx(change, abs=1e-6)
    assert shares(table, 1).sum() == pytest.approx(change, rel=0.05, abs=1e-4)
    if bands:
        assert shares(table, 1, by="rank", site="").sum() == pytest.approx(shares(table, 1).sum(), rel=0.05)


def test_running_statistics_which_change_the_loss_too_are_refused(tmp_path):
    with pytest.raises(ValueError, match="'norm' has running statistics of activations"):
        attached(tmp_path, text(), sites="auto").observe(Batched(), 0)
