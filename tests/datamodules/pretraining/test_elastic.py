"""The same samples in the same order on any ranks and workers: of rows, of contiguous streams, of a stream of text."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lmdyn.datamodules import PretrainingCorpus, StreamedText, TextCorpus
from lmdyn.datamodules.loading.global_batch import GlobalBatch
from lmdyn.datamodules.pretraining.stream_loader import Deal

# a machine, or a test's share of it, may have one core
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

FIXTURE = Path(__file__).parents[2] / "fixtures" / "short_documents"
EPOCH = 6  # updates of an epoch of the stream


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


def trainer(rank, ranks, accumulated, **settings):
    return SimpleNamespace(
        global_rank=rank, world_size=ranks, accumulate_grad_batches=accumulated,
        **{"limit_train_batches": 1.0, **settings},
    )  # fmt: skip


def data_of(kind, cache, *, batch_size, accumulated=1, workers=0, seed=0, short_share=0.3):
    """What reads the fixture's 60 documents; rows of it have unequally many labels."""
    tokenizer = str(FIXTURE / "tokenizer")
    corpus = TextCorpus(
        train=str(FIXTURE / "text.txt"), layout="paragraphs", tokenizer=tokenizer, cache_dir=cache,
        batch_size=batch_size, sequence_length=12,
    )  # fmt: skip
    if kind == "bptt":
        return corpus
    settings = {"sequence_length": 24, "batch_size": batch_size, "num_workers": workers, "seed": seed}
    settings |= {"pairs": "order", "short_share": short_share}
    if kind == "rows":
        return PretrainingCorpus(corpus, **settings)
    stream = StreamedText(
        {"path": "json", "data_files": str(FIXTURE / "text.jsonl")}, tokenizer=tokenizer,
        epoch_batches=EPOCH * accumulated, block_rows=12, readers=4 if kind == "stream of 4" else None,
    )  # fmt: skip
    return PretrainingCorpus(stream=stream, **settings)


class Ranks:
    """The loaders of all ranks, and what they say together."""

    def __init__(self, kind, cache, ranks=1, accumulated=1, update=8, limit=1.0, **settings):
        own = update // ranks // accumulated
        self.accumulated, self.loaders = accumulated, []
        for rank in range(ranks):
            data = data_of(kind, cache, batch_size=own, accumulated=accumulated, **settings)
            data.trainer = trainer(rank, ranks, accumulated, limit_train_batches=limit)
            data.prepare_data()
            self.loaders.append(data.train_dataloader())

    def updates(self, number):
        """The samples of the next updates: sorted rows, since where a row stands in a batch is no matter."""
        endless = [iter(forever(loader)) for loader in self.loaders]
        seen = []
        for _ in range(number):
            of_update = [next(rank) for _ in range(self.accumulated) for rank in endless]
            rows = [
                tuple(row) for b in of_update for row in torch.cat([b["input_ids"], b["labels"]], 1).tolist()
            ]
            seen.append(sorted(rows))
        return seen

    def state(self):
        states = [loader.state_dict() for loader in self.loaders]
        if "readers" in states[0]:  # a process group would gather them
            readers = {r: at for state in states for r, at in state["readers"].items()}
            states[0] = {**states[0], "readers": readers}
        buffer = io.BytesIO()
        torch.save(states[0], buffer)
        buffer.seek(0)
        return torch.load(buffer, weights_only=True)

    def resume(self, state):
        for loader in self.loaders:
            loader.load_state_dict(state)
        return self


def forever(loader):
    while True:
        yield from loader


KINDS = ["rows", "bptt", "stream", "stream of 4"]
CHAINS = {
    "ranks": [{"ranks": 1}, {"ranks": 2}, {"ranks": 4}, {"ranks": 1}],
    "workers": [{"workers": 0}, {"workers": 2}, {"workers": 1}],
    "both and accumulation": [
        {"ranks": 2, "accumulated": 2}, {"ranks": 1, "accumulated": 8, "workers": 2}, {"ranks": 4}, {"accumulated": 4},
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "chain"), [(k, c) for k in KINDS for c in CHAINS if k != "bptt" or c == "ranks"]
)
def test_the_order_stays(kind, chain, cache):
    """Along one run, with ends of epochs, and of the stream's blocks and passes, between and within its parts.

    Contiguous streams (bptt) have no workers, and keep their accumulation.
    """
    first, *others = CHAINS[chain]
    whole = Ranks(kind, cache, **first).updates(23)
    assert len({str(update) for update in whole}) > 8
    run = Ranks(kind, cache, **first)
    seen = run.updates(5)
    for settings, number in zip(others, (4, 8, 6), strict=False):
        run = Ranks(kind, cache, **settings).resume(run.state())
        seen += run.updates(number)
    assert seen == whole[: len(seen)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rows", "bptt", "stream of 4"])
def test_runs_that_begin_on_other_ranks_see_the_same(kind, cache):
    """A function of (seed, epoch, number) alone; of a stream, where `readers` is given."""
    whole = Ranks(kind, cache).updates(14)
    for settings in ({"ranks": 2}, {"ranks": 4}, {"accumulated": 2, "workers": 1}):
        if kind == "bptt" and "accumulated" in settings:
            continue
        assert Ranks(kind, cache, **settings).updates(14) == whole
    if kind != "bptt":
        assert Ranks(kind, cache, seed=1).updates(14) != whole


def test_a_deal_gives_every_row_to_one_reader():
    for deal in (Deal(1, 1, 8), Deal(4, 2, 3), Deal(6, 3, 2), Deal.begun(6, GlobalBatch(8), 3)):
        of_period = deal.reader(torch.arange(2 * deal.period).numpy())
        assert (of_period[: deal.period] == of_period[deal.period :]).all()
        assert [(of_period == r).sum() for r in range(deal.readers)] == [2 * deal.rows] * deal.readers


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("rows", {"ranks": 4, "update": 16}, "8 rows = batch_size 8 × ranks 1 .* batch_size 4 × ranks 4 .*must be 8"),
        ("rows", {"accumulated": 2, "update": 16}, "must be 8"),
        ("stream", {"ranks": 2, "update": 4}, "must be 8"),
        ("bptt", {"ranks": 2, "update": 16}, "ranks must be 8, and accumulate_grad_batches 1"),
        ("bptt", {"accumulated": 2}, "ranks must be 8, and accumulate_grad_batches 1"),
        ("rows", {"accumulated": 2, "limit": 4}, "epochs of 80 rows, .*16: set --trainer.limit_train_batches to 20"),
    ],
)  # fmt: skip
def test_other_updates_are_refused_with_the_number_to_set(kind, settings, message, cache):
    run = Ranks(kind, cache)
    run.updates(2)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        Ranks(kind, cache, **settings).resume(run.state())


def test_other_epochs_of_a_stream_are_refused(cache):
    run = Ranks("stream", cache)
    run.updates(2)
    state = run.state()
    other = Ranks("stream", cache, accumulated=2, limit=4)
    with pytest.raises(ValueError, match="48 rows, this run would have 16: set epoch_batches to 12"):
        other.resume(state)
    data = data_of("stream of 4", cache, batch_size=8)
    with pytest.raises(
        ValueError, match=r"`readers` is 4, but the saved run .* among 1 readers: set `readers: 1`"
    ):
        data.train_dataloader().load_state_dict(state)
    with pytest.raises(ValueError, match="state of 1 of 2 readers"):
        two = Ranks("stream", cache, ranks=2)
        two.updates(1)
        two.loaders[1].load_state_dict(two.loaders[0].state_dict())


def test_within_an_update_only_the_same_division_goes_on(cache):
    run = Ranks("rows", cache, accumulated=4)
    loader = run.loaders[0]
    endless = forever(loader)
    for _ in range(6):
        next(endless)
    state = run.state()
    Ranks("rows", cache, accumulated=4).resume(state)
    with pytest.raises(ValueError, match="within an update, after 2 of 4 batches"):
        Ranks("rows", cache, accumulated=2).resume(state)


def test_epochs_end_with_a_whole_update(cache):
    lengths = [len(Ranks("rows", cache, accumulated=a, update=24).loaders[0]) for a in (1, 2, 4)]
    assert lengths == [3, 6, 12]
