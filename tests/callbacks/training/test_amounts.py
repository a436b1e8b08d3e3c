"""Schedules in words and tokens: the first update at or past an amount, whatever the batch, also after resuming."""

from pathlib import Path

import pytest
import torch
from torch import nn

from lmdyn.callbacks import LearningCurves, RunState, ScheduledCheckpoint, Steps
from lmdyn.datamodules import PretrainingCorpus, TextCorpus
from lmdyn.runs.checkpoint_files import checkpoint_step
from lmdyn.runs.observed_run import RunFolder
from lmdyn.runs.schedule import BABYLM, Progress
from tests.helpers.modules import Own, quiet_trainer
from tests.helpers.ranks import TORCHRUN, run_ranks
from tests.helpers.refusals import assert_refused

pytestmark = pytest.mark.filterwarnings(
    "ignore:GPU available but not used", "ignore:.*does not have many workers"
)

WORDS = ("the cat sat on a mat", "dogs unhappily chased redness", "a cat and the dogs sat")
AMOUNTS = (1, 40, 41, 100, 250)


def data(folder, kind="word", rows=2):
    (folder / "t.txt").write_text("\n".join(WORDS * 6) + "\n")
    path = str(folder / "t.txt")
    corpus = TextCorpus(path, path, vocabulary=kind, vocab_size=60, batch_size=rows, sequence_length=7,
                        cache_dir=str(folder / "cache"))  # fmt: skip
    corpus.prepare_data()
    corpus.setup("fit")
    return corpus


def fit(folder, corpus, schedule, ckpt_path=None, every=2, **settings):
    """Train for three epochs; the words that each update has read, counted by hand."""
    size = len(corpus.tokenizer)
    module, read = Own(nn.Sequential(nn.Embedding(size, 4), nn.Linear(4, size))), [0]
    begins = [
        not piece.startswith(("##", "<", "["))
        for piece in corpus.tokenizer.convert_ids_to_tokens(range(size))
    ]
    own = module.training_step

    def counted(batch, batch_idx):
        read.append(read[-1] + sum(begins[t] for t in batch["labels"].flatten() if t != -100))
        return own(batch, batch_idx)

    module.training_step = counted
    curves = LearningCurves(layers=[], bands=[], schedule=schedule, log_figures=False)
    savers = ScheduledCheckpoint(schedule), ScheduledCheckpoint(Steps(every=every), weights_only=False)
    trainer = quiet_trainer(folder, RunState(), curves, *savers, max_epochs=3, **settings)
    trainer.fit(module, datamodule=corpus, ckpt_path=ckpt_path, weights_only=ckpt_path and True)
    return RunFolder(folder).read("learning_curves", quantities=["loss"]), read


def reached(amounts, counted):
    """Index of the first number at or past each amount."""
    return sorted({next(i for i, n in enumerate(counted) if n >= amount) for amount in amounts})


@pytest.mark.parametrize(("kind", "rows"), [("word", 2), ("word", 3), ("wordpiece", 2)])
def test_the_first_update_at_or_past_an_amount_of_words(tmp_path, kind, rows):
    corpus = data(tmp_path, kind, rows)
    found, read = fit(tmp_path, corpus, Steps(at=(), last=False, words=AMOUNTS))
    assert read[-1] >= 3 * 0.8 * len(" ".join(WORDS * 6).split())  # the rest fills no batch
    steps = reached(AMOUNTS, read)
    assert list(found["step"].unique()) == steps
    assert found.groupby("step")["words_seen"].first().to_dict() == pytest.approx(
        {s: read[s] for s in steps}, abs=1
    )
    saved = {
        checkpoint_step(p): torch.load(p)["lmdyn"]["words"] for p in (tmp_path / "checkpoints").iterdir()
    }
    assert saved == found.groupby("step")["words_seen"].first().to_dict()


def test_tokens_and_steps_together_and_batches_that_accumulate(tmp_path):
    corpus = data(tmp_path)
    schedule = Steps(at=(0, 2), last=False, tokens=(1, 50, 200))
    found, _ = fit(tmp_path, corpus, schedule, accumulate_grad_batches=2)
    assert found.groupby("step")["tokens"].first().to_dict() == {0: 0, 1: 28, 2: 56, 9: 225}
    assert "words_seen" not in found


def test_a_run_resumed_at_any_update_observes_what_the_whole_one_did(tmp_path):
    schedule, corpus = Steps(at=(), last=False, words=AMOUNTS), data(tmp_path)
    whole, read = fit(tmp_path / "run", corpus, schedule, every=1)
    for step in [*reached(AMOUNTS, read), *range(3, len(read) - 1, 7)]:
        killed = tmp_path / "run" / "resume" / f"step={step:09d}.ckpt"
        observed = tmp_path / f"run/observations/learning_curves/{step:09d}.parquet"
        observed.unlink(missing_ok=True)  # killed after the checkpoint, before the observation
        again, _ = fit(tmp_path / "run", data(tmp_path), schedule, ckpt_path=killed, every=1)
        assert again[["step", "words_seen"]].equals(whole[["step", "words_seen"]])


def test_masked_batches_count_the_words_below_the_masks(tmp_path):
    masked = PretrainingCorpus(corpus=data(tmp_path, "wordpiece"), batch_size=2, sequence_length=16)
    masked.prepare_data()
    masked.setup("fit")
    state, words, tokens = RunState(), 0, 0
    state._starts = torch.as_tensor(masked.word_starts * 1e6).round().long()
    plain = masked.tokenizer
    for batch in masked.train_dataloader():
        whole = batch["labels"].where(batch["labels"] != -100, batch["input_ids"])
        words += sum(len(plain.decode(row, skip_special_tokens=True).split()) for row in whole)
        tokens += int((batch["input_ids"] == plain.mask_token_id).sum())
        state._words = state._words + state._starts[whole].sum()
    assert tokens > 0
    assert state.words == pytest.approx(words, abs=3)


def test_refusals(tmp_path):
    assert Steps(words="babylm").words == BABYLM
    assert len(BABYLM) == 28
    assert (Steps(words=(1e6,)).words, Steps(tokens=[5]).amounts) == ((10**6,), {"tokens": (5,)})
    uncounted = lambda **given: Steps(**given).passed(Progress(1), Progress(2))  # noqa: E731
    assert_refused(
        Steps,
        ({"words": "strict"}, r"Steps.words is 'strict': expected a list of whole numbers"),
        ({"tokens": (0,)}, "Steps.tokens has 0: expected amounts from 1"),
        ({"words": (1.5,)}, r"expected a list of whole numbers"),
    )
    with pytest.raises(
        ValueError,
        match=r"amounts of words, but your loop does not count words: pass `words` to watcher.step",
    ):
        uncounted(words=(1,))
    corpus = data(tmp_path)
    observers = [LearningCurves(layers=[], bands=[], schedule=Steps(words=(5,)))]
    trainer = quiet_trainer(tmp_path, RunState(), *observers, max_steps=1)
    with pytest.raises(ValueError, match="but this data does not count words: use `tokens`"):
        trainer.fit(Own(), corpus.train_dataloader(), corpus.val_dataloader())
    fit(tmp_path / "steps", corpus, Steps())
    old = tmp_path / "steps/resume/step=000000004.ckpt"  # of a version that noted no amounts
    checkpoint = torch.load(old, weights_only=True)
    del checkpoint["lmdyn"]["reached"]
    torch.save(checkpoint, old)
    found, _ = fit(tmp_path / "steps", corpus, Steps(at=(), last=False, tokens=(14, 70)), old)
    assert (4 in set(found["step"]), 5 in set(found["step"])) == (False, True)
    with pytest.raises(ValueError, match="this checkpoint has no number of words"):
        fit(tmp_path / "again", corpus, Steps(words=(5,)), tmp_path / "steps/resume/step=000000002.ckpt")


@pytest.mark.slow
def test_two_ranks_reach_amounts_where_one_of_their_batch_does(tmp_path):
    run_ranks(__file__, tmp_path, tmp_path / "cache", **TORCHRUN)
    two = RunFolder(tmp_path / "two").read("learning_curves", quantities=["loss"])
    one, _ = fit(tmp_path / "one", data(tmp_path, rows=4), Steps(words=AMOUNTS))
    assert two[["step", "words_seen"]].equals(one[["step", "words_seen"]])


def rank_main(folder: Path) -> None:
    fit(folder / "two", data(folder, rows=2), Steps(words=AMOUNTS), devices=2, strategy="ddp")
