"""What a run that goes on is asked for, against what it was trained with."""

import pytest
import yaml

from lmdyn.cli.training.resumption import changed_settings, check_resumed

DIVIDED = {"position": 3, "global_batch": {"rows": 8, "ranks": 1, "accumulated": 1}}


def configuration(batch_size, accumulated, order_seed=None):
    given = {"batch_size": batch_size, "order_seed": order_seed or 0}
    data = {"class_path": "TextCorpus", "init_args": given}
    trainer = {"accumulate_grad_batches": accumulated}
    return {"trainer": trainer, "model": {"class_path": "LSTM"}, "data": data}


NAMES = ["data.order_seed", "data.batch_size", "trainer.accumulate_grad_batches"]


@pytest.mark.parametrize(
    ("loaders", "said"),
    [
        ([DIVIDED], ["data.order_seed"]),  # the loader refuses another update itself
        ([DIVIDED, {"position": 3}], NAMES),
        ([], NAMES),
    ],
)
def test_how_the_batch_is_divided_is_said_where_no_loader_compares_it(loaders, said, tmp_path, caplog):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(configuration(8, 1)), encoding="utf-8")
    check_resumed(tmp_path, configuration(2, 4, order_seed=5), {}, loaders)
    (message,) = [record.getMessage() for record in caplog.records]
    assert said == [name for name in NAMES if f"{name}: " in message]


def saved(tmp_path, **changes):
    """The folder of a run, and its configuration with changes: by part, of its arguments."""
    before = {
        "seed_everything": 3,
        "trainer": {"precision": None, "gradient_clip_val": None, "limit_train_batches": None},
        "model": {"class_path": "LSTM", "init_args": {"vocab_size": None, "clip": 0.25, "clip_norm": 2}},
        "data": {"class_path": "TextCorpus", "init_args": {"order_seed": None}},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(before), encoding="utf-8")
    for part in ("model", "data"):
        before[part]["init_args"] |= changes.get(part, {})
    before["trainer"] |= changes.get("trainer", {})
    return tmp_path, before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"order_seed": 5}}, "data.order_seed: None before, 5 now"),
        ({"model": {"clip": None}}, "model.clip: 0.25 before, None now"),
        ({"model": {"clip_norm": 3}}, "model.clip_norm: 2 before, 3 now"),
        ({"model": {"vocab_size": 40}}, ""),
        ({"trainer": {"limit_train_batches": 1}}, "trainer.limit_train_batches: None before, 1 now"),
        ({"trainer": {"overfit_batches": 2}}, "trainer.overfit_batches: None before, 2 now"),
    ],
)
def test_what_is_left_open(changes, said, tmp_path, caplog):
    check_resumed(*saved(tmp_path, **changes), {"clip": 0.25, "vocab_size": 40})
    assert [said in record.getMessage() for record in caplog.records] == ([True] if said else [])


def test_the_seed_acts_where_a_run_begins_again(tmp_path):
    run, config = saved(tmp_path)
    config["seed_everything"] = 4
    assert changed_settings(run, config) == {}
    said = {"seed_everything": "seed_everything: 3 before, 4 now"}
    assert changed_settings(run, config, from_begin=True) == said
