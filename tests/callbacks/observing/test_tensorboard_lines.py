"""TensorBoard: a quantity by group is one chart with a named line for each group, each point once."""

import re
import time

import numpy as np
import pandas as pd
import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.tensorboard import SummaryWriter

from lmdyn.callbacks import Observer, Quantity
from lmdyn.callbacks.observing.loggers import publish
from lmdyn.callbacks.observing.run import Run
from lmdyn.callbacks.training.lightning_internals import continue_events, hide_events
from lmdyn.runs.schedule import Progress
from lmdyn.runs.schema import tidy
from tests.helpers.recorded import in_tensorboard


class Tagged(Observer):
    """Stores what it is given."""

    recorded = (
        Quantity("loss", "A loss.", "nats"),
        Quantity("accuracy", "A share.", headline=True),
        *(Quantity(f"further_{i}", "A number.") for i in range(12)),
    )

    def measure(self, module, step):
        raise NotImplementedError


def observe(folder, logger, step, values, columns=("upos",)):
    """Record values by quantity and groups."""
    observer = Tagged(name="tags", log_figures=False)
    observer._run = Run(folder)
    rows = [(name, "", *groups, value) for (name, *groups), value in values.items()]
    table = tidy(pd.DataFrame(rows, columns=["quantity", "site", *columns, "value"]), Progress(step))
    publish(observer, table, [logger], step)


def test_lines_whose_words_or_folders_are_equal_stay_apart(tmp_path):
    logger = TensorBoardLogger(tmp_path, "", "tb")
    groups = ["a_b", "a b", "a/b", "a:b", "x" * 100 + "1", "x" * 100 + "2", "😀" * 80]
    observe(tmp_path, logger, 0, {("loss", group): float(i) for i, group in enumerate(groups)})
    logger.finalize("success")
    shown = in_tensorboard(tmp_path / "tb")
    assert sorted(value for ((_, value),) in shown.values()) == [*range(len(groups))]


def test_rows_of_the_same_names_and_others_are_shown_at_their_place(tmp_path):
    logger = TensorBoardLogger(tmp_path, "", "tb")
    first = {("loss", ""): 2.0, ("loss", "NOUN"): 3.0, ("loss", "DET"): 1.0}
    observe(tmp_path, logger, 0, first)
    observe(
        tmp_path, logger, 1, {name: value / 2 for name, value in first.items()} | {("loss", "DET"): np.nan}
    )
    observe(tmp_path, logger, 2, {("loss", "VERB"): 7.0, **first})
    logger.finalize("success")
    shown = in_tensorboard(tmp_path / "tb")
    assert sorted(map(sorted, shown.values())) == [[(0, 1.0), (2, 1.0)], [(0, 2.0), (1, 1.0), (2, 2.0)],
        [(0, 3.0), (1, 1.5), (2, 3.0)], [(2, 7.0)]]  # fmt: skip


def test_numbers_that_are_not_averaged_are_shown_at_their_place_and_others_by_their_mean(tmp_path):
    logger, columns = TensorBoardLogger(tmp_path, "", "tb"), ("upos", "head")
    for step in (0, 1):
        observe(tmp_path, logger, step, {("loss", "", 0): step, ("loss", "NOUN", 1): step + 3.0}, columns)
    both = {("loss", "NOUN", 1): 5.0, ("loss", "NOUN", 2): 7.0}
    observe(tmp_path, logger, 2, both, columns)
    logger.finalize("success")
    points = [sorted(value) for value in in_tensorboard(tmp_path / "tb").values()]
    assert [(0, 0.0), (1, 1.0)] in points
    assert [(0, 3.0), (1, 4.0), (2, 6.0)] in points


def test_a_logger_that_trains_again_is_continued_again(tmp_path):
    logger = TensorBoardLogger(tmp_path, "", "tb")
    for step in (0, 5, 9):
        observe(tmp_path, logger, step, of_step(step))
    logger.finalize("success")  # closes its writer
    time.sleep(1.1)
    continue_events(logger, 5)
    observe(tmp_path, logger, 9, of_step(9))
    logger.finalize("success")
    for of in in_tensorboard(tmp_path / "tb").values():
        assert [step for step, _ in of] == [0, 5, 9]


def of_step(step):
    groups = {"": 1.0, "NOUN": 2.0, "DET": 3.0}
    return {("loss", tag): value + step for tag, value in groups.items()}


def test_groups_are_lines_and_the_whole_is_the_runs_own(tmp_path):
    logger = TensorBoardLogger(tmp_path, "", "tb")
    for step in (0, 5):
        observe(tmp_path, logger, step, of_step(step))
    logger.finalize("success")
    assert in_tensorboard(tmp_path / "tb") == {
        "tags/loss": [(0, 1.0), (5, 6.0)],
        "determiners: tags/loss by part of speech": [(0, 3.0), (5, 8.0)],
        "nouns: tags/loss by part of speech": [(0, 2.0), (5, 7.0)],
    }
    assert len(list((tmp_path / "tb" / "by").rglob("events*"))) == 2  # a file a line and process


def test_heads_are_summarized_and_each_of_them_a_detail(tmp_path):
    logger = TensorBoardLogger(tmp_path, "", "tb")
    values = {
        ("loss", site, head): value for site, head, value in (("h1", 0, 1.0), ("h1", 1, 3.0), ("h2", 0, 5.0))
    }
    observer = Tagged(name="tags", log_figures=False)
    observer._run = Run(tmp_path)
    table = pd.DataFrame(
        [(*key, value) for key, value in values.items()], columns=["quantity", "site", "head", "value"]
    )
    publish(observer, tidy(table.astype({"head": "Int64"}), Progress(0)), [logger], 0)
    logger.finalize("success")
    assert in_tensorboard(tmp_path / "tb") == {
        "layer 1: tags/loss by layer": [(0, 2.0)],
        "layer 2: tags/loss by layer": [(0, 5.0)],
        "tags_details/loss/h1/head=0": [(0, 1.0)],
        "tags_details/loss/h1/head=1": [(0, 3.0)],
        "tags_details/loss/h2/head=0": [(0, 5.0)],
    }


def continued(logger):
    continue_events(logger, 5)


@pytest.mark.parametrize(("how", "left"), [(continued, [0, 5, 6]), (hide_events, [6])])
def test_what_a_later_process_replaces_is_hidden_in_lines_too(tmp_path, how, left):
    first = TensorBoardLogger(tmp_path, "", "tb")
    for step in (0, 5, 9):
        observe(tmp_path, first, step, of_step(step))
    first.finalize("success")
    time.sleep(1.1)  # TensorBoard's own files of one second have no order
    again = TensorBoardLogger(tmp_path, "", "tb")
    how(again)
    observe(tmp_path, again, 6, {("loss", ""): 0.0})  # nouns have no point any more, and lose the later ones
    for later in (7, 8):
        observe(tmp_path, again, later, {("loss", "ADV"): 0.0})
    again.finalize("success")
    shown = in_tensorboard(tmp_path / "tb")
    assert [step for step, _ in shown["tags/loss"]] == left
    assert [s for s, _ in shown["adverbs: tags/loss by part of speech"]] == [7, 8]
    assert [s for s, _ in shown.get("nouns: tags/loss by part of speech", [])] == [s for s in left if s != 6]


def test_a_writer_of_the_user_has_lines_and_names_with_slashes_are_files(tmp_path):
    class Wrapped:
        experiment = SummaryWriter(tmp_path / "own")

        def log_metrics(self, metrics, step):
            for tag, value in metrics.items():
                self.experiment.add_scalar(tag, value, step)

    observe(tmp_path, Wrapped(), 3, {("loss", "a/b"): 1.0, ("loss", "../x"): 2.0})
    found = in_tensorboard(tmp_path / "own")
    shown = {re.sub(r" [0-9a-f]{6}:", " HASH:", tag): of for tag, of in found.items()}
    assert shown == {
        "a_b HASH: tags/loss by part of speech": [(3, 1.0)],
        ".._x HASH: tags/loss by part of speech": [(3, 2.0)],
    }
