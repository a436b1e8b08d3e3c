"""The same samples in the same order on any ranks and workers: of rows, of contiguous streams, of a stream of text."""

import importlib.util
import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lmdyn.datamodules import PretrainingCorpus, StreamedText, TextCorpus
from lmdyn.datamodules.loading.global_batch import GlobalBatch
from lmdyn.datamodules.pretraining.stream_loader import Deal

# a machine, or a test's share of it, may have one core
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

FIXTURE = Path(__file__).parents[2] / "fixtures" / "order_1"
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
        (
            "rows", {"ranks": 4, "update": 16},
            r"8 rows = batch_size 8 × 1 .* 1, .*16 rows = batch_size 4 × 4 .*set --data.init_args.batch_size 2",
        ),
        ("rows", {"accumulated": 2, "update": 16}, "set --data.init_args.batch_size 4"),
        ("rows", {"ranks": 3, "update": 9}, "8 rows cannot be divided into 3 equal parts.*one of 1, 2, 4, 8"),
        ("stream", {"ranks": 2, "update": 4}, "set --data.init_args.batch_size 4"),
        ("bptt", {"ranks": 2, "update": 16}, "8 streams, .*set --data.init_args.batch_size 4"),
        ("bptt", {"accumulated": 2}, "in 4, .*batch_size 8 and set --trainer.accumulate_grad_batches 1"),
        ("bptt", {"ranks": 3, "update": 9}, "8 streams cannot be divided among 3 ranks"),
        ("rows", {"accumulated": 2, "limit": 4}, "epochs of 80 rows, .*16: set --trainer.limit_train_batches 20"),
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
    with pytest.raises(ValueError, match="epochs of 48 rows, this one would have 16: set epoch_batches 12"):
        other.resume(state)
    data = data_of("stream of 4", cache, batch_size=8)
    with pytest.raises(ValueError, match="among 1 readers, this run requests 4: set readers: 1"):
        data.train_dataloader().load_state_dict(state)
    with pytest.raises(ValueError, match=r"lacks readers \[1\] of 2"):
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
    with pytest.raises(ValueError, match="within an update, after 2 of its 4 batches"):
        Ranks("rows", cache, accumulated=2).resume(state)


def test_epochs_end_with_a_whole_update(cache):
    lengths = [len(Ranks("rows", cache, accumulated=a, update=24).loaders[0]) for a in (1, 2, 4)]
    assert lengths == [3, 6, 12]
    old = data_of("rows", cache, batch_size=6)
    old.order_version = 1
    old.trainer = trainer(0, 1, 4)
    old.prepare_data()
    assert len(old.train_dataloader()) == 13
    new = Ranks("rows", cache, accumulated=4, update=24).loaders[0]
    with pytest.raises(ValueError, match=r"epochs of order 1, this loader of order 2.*order_version 1"):
        new.load_state_dict(old.train_dataloader().state_dict())


# ------------------------------------------------------- runs of before, which keep their order


@pytest.fixture(scope="module")
def made():
    """The script that made the fixture, whose loaders and trainings are those of then, of today's classes."""
    spec = importlib.util.spec_from_file_location("make_order_1", FIXTURE / "make_order_1.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, json.loads((FIXTURE / "expected.json").read_text())


@pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:You passed in a `val_dataloader`")
@pytest.mark.filterwarnings("ignore:GPU available but not used")
def test_a_run_of_order_1_goes_on_as_it_began(made, cache, tmp_path):
    """Its epochs are of 19 batches and end within an update of two; runs of today, of 18."""
    then, expected = made
    assert then.fit(then.rows(cache), tmp_path, checkpoint=FIXTURE / "rows.ckpt") == expected["rows"][4:]
    today = then.fit(then.rows(cache), tmp_path)
    assert today[:18] == expected["rows"][:18]
    assert [seen[0] for seen in today] == [0] * 18 + [1] * 18


@pytest.mark.parametrize("name", ["one_rank_two_workers", "two_ranks"])
def test_a_stream_of_before_goes_on_as_it_began(made, name, cache):
    then, expected = made
    workers, ranks = (2, 1) if name == "one_rank_two_workers" else (0, 2)
    state = torch.load(FIXTURE / f"stream_{name}.pt", weights_only=True)
    for rank in range(ranks):
        loader = then.stream(workers, rank, ranks)
        loader.load_state_dict(state)
        assert [then.digest(batch) for batch in then.take(loader, 12)] == expected[name][rank]
    with pytest.raises(ValueError, match="restore num_workers"):
        then.stream(workers + 3, 0, ranks).load_state_dict(state)
    with pytest.raises(ValueError, match=f"read by {ranks} ranks, this run has {ranks + 1}"):
        then.stream(workers, 0, ranks + 1).load_state_dict(state)
