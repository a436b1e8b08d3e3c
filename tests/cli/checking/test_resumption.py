"""What a run that goes on is asked for, against what it was trained with."""

import pytest
import yaml

from lmdyn.cli.checking.resumption import check_resumed

DIVIDED = {"position": 3, "global_batch": {"rows": 8, "ranks": 1, "accumulated": 1}}


def configuration(batch_size, accumulated, order_seed=None):
    data = {
        "class_path": "TextCorpus",
        "init_args": {"batch_size": batch_size, "order_seed": order_seed or 0},
    }
    return {
        "trainer": {"accumulate_grad_batches": accumulated},
        "model": {"class_path": "LSTM"},
        "data": data,
    }


@pytest.mark.parametrize(
    ("loaders", "said"),
    [
        ([DIVIDED], ["data.order_seed"]),  # the loader refuses another update itself
        (
            [DIVIDED, {"position": 3}],
            ["data.order_seed", "data.batch_size", "trainer.accumulate_grad_batches"],
        ),
        ([], ["data.order_seed", "data.batch_size", "trainer.accumulate_grad_batches"]),
    ],
)
def test_how_the_batch_is_divided_is_said_where_no_loader_compares_it(loaders, said, tmp_path, caplog):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(configuration(8, 1)), encoding="utf-8")
    check_resumed(tmp_path, configuration(2, 4, order_seed=5), {}, loaders)
    (message,) = [record.getMessage() for record in caplog.records]
    names = ("data.order_seed", "data.batch_size", "trainer.accumulate_grad_batches")
    assert sorted(said) == sorted(name for name in names if f"{name}: " in message)
