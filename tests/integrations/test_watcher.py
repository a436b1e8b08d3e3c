"""Observers in a loop of the user's own: what they record is what they record under Lightning."""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import lmdyn
from lmdyn.callbacks import (
    AttentionPatterns,
    Geometry,
    Induction,
    Landscape,
    LearningCurves,
    LossChangeAllocation,
    Sparsity,
    Steps,
    WeightSpectra,
)
from lmdyn.cli.pages.overview import conditions, known_facts
from lmdyn.cli.replay.subject import Subject
from lmdyn.runs.observed_run import RunFolder
from lmdyn.runs.schema import group_columns
from lmdyn.runs.store import ObservationStore
from tests.helpers.modules import Own, quiet_trainer
from tests.helpers.ranks import run_ranks
from tests.helpers.recorded import in_tensorboard
from tests.helpers.refusals import assert_refused

TYPES, SCHEDULE = 17, Steps(per_decade=3)


class Bigrams(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.hidden, self.out = nn.Embedding(TYPES, 8), nn.Linear(8, 8), nn.Linear(8, TYPES)

    def forward(self, input_ids):
        return self.out(self.hidden(self.embedding(input_ids)).tanh())


class Module(Own):
    def training_step(self, batch, batch_idx):
        return loss_of(self.net, batch)

    def validation_step(self, batch, batch_idx):
        raise AssertionError("not called")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def loss_of(net, batch):
    ids = batch["input_ids"]
    return F.cross_entropy(net(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def batches(number, seed):
    drawn = torch.randint(TYPES, (number, 4, 9), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": ids, "labels": ids} for ids in drawn]


TRAIN, PROBE = batches(12, 1), batches(3, 2)


def observers():
    return [LearningCurves(), Geometry(max_samples=40), WeightSpectra()]


def train(net, watcher=None, start=0, end=None):
    """A loop of the user's own, with dropout's random numbers in between."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    torch.manual_seed(3)
    drawn = []
    for step, batch in enumerate(TRAIN[start:end], start + 1):
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        optimizer.step()
        drawn.append(float(torch.rand(1)))
        if watcher is not None:
            watcher.step(step)
    return drawn


def tables(folder):
    found = {}
    for path in sorted((folder / "observations").iterdir()):
        table = ObservationStore(path).read()
        table = table[table["quantity"] != "learning_rate"].drop(columns="tokens")
        table["site"] = table["site"].astype(str).str.removeprefix("net.")
        keys = [c for c in table if c not in ("value",)]
        found[path.name] = table.sort_values(keys).reset_index(drop=True)
    return found


def watch(net, folder, **options):
    return lmdyn.watch(net, options.pop("observers", observers()), **{
        "probe": PROBE, "folder": folder, "schedule": SCHEDULE, "logger": None, **options,
    })  # fmt: skip


def test_numbers_are_those_of_lightning_and_the_training_is_unchanged(tmp_path):
    net, plain = Bigrams(), Bigrams()
    with watch(net, tmp_path / "loop") as watcher:
        drawn = train(net, watcher)
    assert drawn == train(plain)
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(ours.grad, theirs.grad)
    assert net.training

    module, under = Module(Bigrams()), [type(o)(schedule=SCHEDULE, **_own(o)) for o in observers()]
    trainer = quiet_trainer(tmp_path / "lightning", *under, max_steps=len(TRAIN), limit_val_batches=0)
    trainer.fit(module, DataLoader(TRAIN, batch_size=None), DataLoader(PROBE, batch_size=None))
    expected = tables(tmp_path / "lightning")
    found = tables(tmp_path / "loop")
    assert found.keys() == expected.keys()
    for name, table in found.items():
        assert list(table["step"].unique()) == [0, 1, 2, 5, 10, 12]
        pd.testing.assert_frame_equal(table, expected[name], check_like=True, rtol=1e-6)


def test_counting_a_shuffled_training_set_leaves_its_order(tmp_path):
    def shuffled():
        return DataLoader(torch.arange(len(TRAIN)), shuffle=True, collate_fn=lambda rows: TRAIN[int(rows[0])])

    torch.manual_seed(5)
    plain = [batch["input_ids"] for batch in shuffled()]
    net = Bigrams()
    torch.manual_seed(5)
    loader = shuffled()
    with watch(net, tmp_path, train=loader, observers=[LearningCurves()]):
        assert all(map(torch.equal, plain, (batch["input_ids"] for batch in loader)))
    counts = pd.read_parquet(tmp_path / "tokenizer" / "token_counts.parquet")["count"]
    assert counts.tolist() == torch.stack(plain).flatten().bincount(minlength=TYPES).tolist()


def test_a_datamodule_is_prepared(tmp_path):
    class Data(L.LightningDataModule):
        def setup(self, stage):
            self.batches = PROBE

        def val_dataloader(self):
            return DataLoader(self.batches, batch_size=None)

    for name, probe in (("module", Data()), ("list", PROBE)):
        with watch(Bigrams(), tmp_path / name, probe=probe):
            pass
    for name, table in tables(tmp_path / "list").items():
        pd.testing.assert_frame_equal(tables(tmp_path / "module")[name], table)


def test_a_run_that_begins_again_replaces_what_one_that_was_stopped_at_once_left(tmp_path):
    for seed in (1, 2):
        net = Bigrams()
        with torch.no_grad():
            net.out.weight.mul_(seed)
        watch(net, tmp_path, seed=seed, checkpoints=True, schedule=Steps(last=False)).release()
    saved = torch.load(tmp_path / "checkpoints" / "step=000000000.ckpt")["state_dict"]
    assert torch.equal(saved["out.weight"], net.out.weight)
    assert RunFolder(tmp_path).seeds.init == 2


def test_what_is_no_description_of_a_run_stops_neither_a_training_nor_a_report(tmp_path, caplog):
    net = Bigrams()
    net.hparams = {("a", 1): 2}  # JSON has no such names
    with watch(net, tmp_path, observers=[LearningCurves()]):
        pass
    assert "could not write" in caplog.text
    for content in ({"model": [], "data": {"train": 3}, "optimizer": {"groups": {}}}, {"seed": []}, {}):
        (tmp_path / "run.json").write_text(json.dumps(content))
        assert RunFolder(tmp_path).condition == {}
        assert RunFolder(tmp_path).seeds.init is None


def _own(observer):
    return {"max_samples": 40} if isinstance(observer, Geometry) else {}


@pytest.mark.slow
def test_a_killed_loop_continues_and_nothing_is_lost(tmp_path):
    whole, cut = Bigrams(), Bigrams()
    with watch(whole, tmp_path / "whole", checkpoints=True) as watcher:
        train(whole, watcher)
    folder = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt), watch(cut, folder, checkpoints=True) as watcher:
        train(cut, watcher, end=7)
        raise KeyboardInterrupt  # the checkpoint is that of step 5
    cut.load_state_dict(torch.load(folder / "checkpoints" / "step=000000005.ckpt")["state_dict"])
    watched = cut.state_dict()["hidden.weight"].clone()
    with pytest.raises(ValueError, match=r"contains .*000000005.*, later than step 0: .* step=…"):
        watch(cut, folder)
    with watch(cut, folder, checkpoints=True, step=5) as watcher:
        assert torch.equal(cut.state_dict()["hidden.weight"], watched)
        train(cut, watcher, start=5)
    for name, table in tables(tmp_path / "whole").items():
        pd.testing.assert_frame_equal(tables(folder)[name], table)
    saved = sorted(p.name for p in (folder / "checkpoints").iterdir())
    assert saved == sorted(p.name for p in (tmp_path / "whole" / "checkpoints").iterdir())

    earlier = (folder / "observations" / "geometry" / "000000010.parquet").read_bytes()
    with watch(cut, folder, step=5):
        pass
    (aside,) = (folder / "later_steps").iterdir()
    assert (aside / "observations" / "geometry" / "000000010.parquet").read_bytes() == earlier
    assert RunFolder(folder).read("geometry")["step"].max() == 5


@pytest.mark.parametrize("written", [pytest.param(False, marks=pytest.mark.slow), True])
def test_curves_have_the_step_of_a_kill_once(tmp_path, monkeypatch, written):
    net, options = Bigrams(), {"logger": "tensorboard", "observers": [LearningCurves(log_figures=False)]}
    with watch(net, tmp_path, **options) as watcher:
        train(net, watcher, end=4)
        with monkeypatch.context() as killed:
            if not written:
                killed.setattr("lmdyn.callbacks.observing.recording.publish", lambda *_: None)
            watcher.step(5)
    time.sleep(1.1)  # files of one second have no order
    with watch(net, tmp_path, step=5, **options) as watcher:
        watcher.step(10)
    shown = in_tensorboard(tmp_path)
    assert [step for step, _ in shown["learning_curves/loss"]][-2:] == [5, 10]
    lines = [tag for tag in shown if "loss by" in tag]
    assert lines
    for tag in lines:
        assert [step for step, _ in shown[tag]][-2:] == [5, 10]


def test_what_follows_each_update_continues_by_its_state(tmp_path):
    def path():
        return [LossChangeAllocation(allocation="path", sites={"embedding": "embedding", "out": "out"})]

    whole, cut = Bigrams(), Bigrams()
    with watch(whole, tmp_path / "whole", observers=path(), schedule=Steps(every=4)) as watcher:
        train(whole, watcher, end=8)
    folder = tmp_path / "cut"
    watcher = watch(cut, folder, observers=path(), schedule=Steps(every=4, last=False))
    train(cut, watcher, end=6)
    state = watcher.state_dict()
    watcher.close()
    watcher = watch(cut, folder, observers=path(), schedule=Steps(every=4), step=6)
    with pytest.raises(ValueError, match="the state has no loss_change_allocation"):
        watcher.load_state_dict({})
    watcher.load_state_dict(state)
    train(cut, watcher, start=6, end=8)
    watcher.close()
    for name, table in tables(tmp_path / "whole").items():
        pd.testing.assert_frame_equal(tables(folder)[name], table, rtol=1e-6)


def test_a_schedule_fires_when_a_step_is_reached_or_passed(tmp_path):
    with watch(
        Bigrams(), tmp_path, observers=[LearningCurves()], schedule=Steps(every=4, epochs=True)
    ) as watcher:
        for step, ends in ((1, False), (3, False), (6, False), (6, False), (7, True), (9, False)):
            watcher.step(step, tokens=10 * step, words=7 * step, learning_rate=0.5, epoch_end=ends)
        with pytest.raises(
            ValueError, match="step 8 comes after step 9: expected the number of optimizer updates"
        ):
            watcher.step(8)
    table = RunFolder(tmp_path).read("learning_curves")
    assert list(table["step"].unique()) == [0, 6, 7, 9]
    assert table[table["step"] == 7]["tokens"].eq(70).all()
    assert table[table["step"] == 7]["words_seen"].eq(49).all()
    assert "words_seen" not in group_columns(table)
    with pytest.raises(ValueError, match=r"step 10 comes after close\(\): .* step=9"):
        watcher.step(10)


def test_a_schedule_of_amounts_fires_at_the_first_update_at_or_past_each(tmp_path):
    schedule = Steps(at=(), last=False, words=(10, 20, 21, 100), tokens=(1000,))
    with watch(Bigrams(), tmp_path, observers=[LearningCurves()], schedule=schedule) as watcher:
        for step, words, tokens in (
            (1, 9, 1),
            (2, 10, 2),
            (5, 30, 3),
            (6, 31, 1000),
            (7, 99, 1001),
            (7, 150, 1001),
        ):
            watcher.step(step, words=words, tokens=tokens)
        with pytest.raises(
            ValueError,
            match=r"amounts of words, but your loop does not count words: pass `words` to watcher\.step",
        ):
            watcher.step(8, tokens=2000)
    assert list(RunFolder(tmp_path).read("learning_curves")["step"].unique()) == [2, 5, 6]


def test_refusals_leave_the_folder_free(tmp_path):
    class Rows(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, i):
            ids = list(range(3 + i))
            return {"input_ids": ids, "labels": ids}

    assert_refused(
        lambda **options: watch(Bigrams(), tmp_path, **options),
        ({"observers": [LearningCurves(), LearningCurves()]}, "2 observers have the name 'learning_curves'"),
        (
            {"observers": [LearningCurves]},
            r"LearningCurves is a class: expected an observer, LearningCurves\(\)",
        ),
        ({"observers": "Geometry"}, r"expected observers, such as LearningCurves\(\), got 'Geometry'"),
        ({"schedule": 100}, "schedule is 100: expected steps, such as Steps"),
        ({"step": -3}, "step is -3: expected the number of optimizer updates"),
        ({"probe": None}, "learning_curves has no data"),
        ({"probe": iter(PROBE)}, "is an iterator, which lmdyn can read only once"),
        ({"probe": PROBE[0]}, r"`probe` is a mapping: expected batches, such as \[batch\] or a DataLoader"),
        (
            {"tokenizer": ["a", "b"]},
            "tokenizer has type list, which has no all_special_ids, convert_ids_to_tokens: expected",
        ),
        ({"train": iter(TRAIN)}, "`train` is an iterator, which counting would use up"),
        ({"probe": Rows()}, r"rows of the Dataset cannot be stacked .*collate_fn"),
        ({"logger": 3}, "logger is 3: expected 'tensorboard', an object with"),
        ({"train": ["the cat"]}, "`train` is text, and there is no tokenizer"),
        ({"train": [{"input_ids": torch.zeros(1, 0, dtype=torch.long)}]}, "`train` has no tokens"),
    )
    with (
        watch(Bigrams(), tmp_path),
        pytest.raises(ValueError, match=r"is watched by this process: call close\(\)"),
    ):
        watch(Bigrams(), tmp_path)
    with pytest.raises(ValueError, match="cannot be a folder"):
        watch(Bigrams(), Path(__file__))
    (tmp_path.parent / "linked").symlink_to(tmp_path)
    with watch(Bigrams(), tmp_path), pytest.raises(ValueError, match="is watched by this process"):
        watch(Bigrams(), tmp_path.parent / "linked")
    assert not list(tmp_path.parent.glob(".*.lock"))


def test_observers_serve_one_watcher_at_a_time_each_by_its_schedule(tmp_path):
    kinds = [LearningCurves()]
    with watch(Bigrams(), tmp_path / "a", observers=kinds, schedule=Steps(every=2)) as watcher:
        with pytest.raises(ValueError, match="another watcher uses learning_curves"):
            watch(Bigrams(), tmp_path / "b", observers=kinds)
        for step in range(1, 7):
            watcher.step(step)
    with watch(Bigrams(), tmp_path / "b", observers=kinds, schedule=Steps(every=3)) as watcher:
        for step in range(1, 7):
            watcher.step(step)
    assert RunFolder(tmp_path / "a").read("learning_curves")["step"].unique().tolist() == [0, 2, 4, 6]
    assert RunFolder(tmp_path / "b").read("learning_curves")["step"].unique().tolist() == [0, 3, 6]


def test_an_error_in_the_last_observation_leaves_the_folder_free(tmp_path, monkeypatch):
    watcher = watch(Bigrams(), tmp_path, observers=[LearningCurves()], schedule=Steps())
    watcher.step(1)
    monkeypatch.setattr(ObservationStore, "write", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        watcher.close()
    monkeypatch.undo()
    watch(Bigrams(), tmp_path, observers=[LearningCurves()]).close()


def test_counts_of_tokens_are_by_their_ids(tmp_path):
    expected = [3 * i for i in range(TYPES)]
    table = pd.DataFrame({"count": expected})
    counts = [
        dict(enumerate(expected)),
        expected,
        torch.tensor(expected),
        table["count"].to_numpy(),
        table,
        table["count"].sort_values(ascending=False),
    ]
    for number, given in enumerate(counts):
        watch(Bigrams(), tmp_path / str(number), observers=[LearningCurves()], token_counts=given).close()
        saved = pd.read_parquet(tmp_path / str(number) / "tokenizer" / "token_counts.parquet")
        assert saved["count"].tolist() == expected
    assert_refused(
        lambda given: watch(Bigrams(), tmp_path, token_counts=given),
        ({"given": table.iloc[3:]}, "a row for each token id, in the order of ids"),
        ({"given": table.rename(columns={"count": "n"})}, "must have a column `count`"),
        ({"given": {0: float("nan")}}, "`token_counts` has nan for 0: expected whole numbers"),
    )


def test_continuing_with_another_model_or_text_is_told(tmp_path, caplog):
    with watch(Bigrams(), tmp_path, observers=LearningCurves()):
        pass
    with watch(Bigrams(), tmp_path, observers=LearningCurves(), step=0) as watcher:
        watcher.step(1.0)
    assert "not comparable" not in caplog.text

    class Larger(Bigrams):
        __module__, __qualname__ = Bigrams.__module__, Bigrams.__qualname__

        def __init__(self):
            super().__init__()
            self.further = nn.Linear(2, 2)

    with watch(Larger(), tmp_path, observers=LearningCurves(), probe=batches(3, 99), step=1):
        pass
    assert "model or probe set changed (parameters and probe set)" in caplog.text


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_q, self.c_k, self.c_v, self.c_proj = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.n_head, self.ve_gate = 2, nn.Linear(4, 2, bias=False)

    def forward(self, x):
        q, k, v = (map_(x).unflatten(-1, (2, 8)).transpose(1, 2) for map_ in (self.c_q, self.c_k, self.c_v))
        v = v + self.ve_gate(x[..., :4]).sigmoid().mT[..., None]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.mlp = Attention(), nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x):
        x = x + self.attn(F.rms_norm(x, (16,)))
        return x + self.mlp(F.rms_norm(x, (16,)))


class GPT(nn.Module):
    """Of nanoGPT's form: `idx, targets`, and the logits of the last position only without targets."""

    def __init__(self, dtype=None):
        super().__init__()
        torch.manual_seed(0)
        self.wte, self.wpe = nn.Embedding(TYPES, 16), nn.Embedding(32, 16)
        self.h, self.lm_head = nn.ModuleList(Block() for _ in range(2)), nn.Linear(16, TYPES, bias=False)
        self.dtype = dtype

    def forward(self, idx, targets=None):
        with torch.autocast("cpu", dtype=self.dtype or torch.bfloat16, enabled=self.dtype is not None):
            x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
            for block in self.h:
                x = block(x)
            if targets is None:
                return self.lm_head(x[:, [-1]]), None
            logits = self.lm_head(x).float()
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


@pytest.mark.parametrize("dtype", [None, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_a_loop_of_nanogpt_s_form_and_one_in_half_precision(tmp_path, dtype):
    """Two optimizers, as nanochat's; accumulation; observers that need checkpoints, counts, attention, a vocabulary."""
    model = GPT(dtype)
    text = torch.randint(TYPES, (12, 4, 21), generator=torch.Generator().manual_seed(0))
    x, y = text[:, :, :-1], text[:, :, 1:]
    kinds = [
        LearningCurves(), Sparsity(), AttentionPatterns(), WeightSpectra(),
        Induction(length=8, sequences=4, top=0), LossChangeAllocation(), Landscape(),
    ]  # fmt: skip
    tables_ = [model.wte.weight, model.wpe.weight, model.lm_head.weight]
    optimizers = [torch.optim.SGD(tables_, lr=0.1), torch.optim.AdamW(model.h.parameters(), lr=1e-2)]
    watcher = lmdyn.watch(
        model, kinds, probe=[*zip(x[:2], y[:2], strict=True)], train=[*zip(x, y, strict=True)], folder=tmp_path,
        schedule=Steps(every=2), checkpoints=True, logger=None, seed=7,
    )  # fmt: skip
    for micro in range(8):
        model(x[micro], y[micro])[1].backward()
        if micro % 2:
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        watcher.step((micro + 1) // 2)
    watcher.close()
    run = RunFolder(tmp_path)
    assert set(run.observers()) == {o.name for o in kinds}
    assert run.seeds.init == 7
    curves = run.read("learning_curves", quantities=["loss"])
    last = curves[(curves["step"] == 4) & curves[group_columns(curves)].replace("", None).isna().all(axis=1)]
    with torch.no_grad():
        expected = sum(model(a, b)[1] for a, b in zip(x[:2], y[:2], strict=True)) / 2
    assert float(last["value"].iloc[0]) == pytest.approx(float(expected), rel=1e-5)
    heads = run.read("attention_patterns", quantities=["entropy"])
    assert heads["value"].between(0, 3.1).all()
    assert set(heads["head"]) == {0, 1}
    assert {"qk", "ov"} <= set(run.read("weight_spectra")["matrix"])


def test_curves_go_where_the_user_looks(tmp_path):
    class Run:
        """What Weights & Biases and trackio have."""

        def __init__(self):
            self.logged = []

        def log(self, values):
            self.logged.append(values)

    class Writer:
        def __init__(self):
            self.points = []

        def add_scalar(self, tag, value, step):
            self.points.append((tag, step))

    run, writer = Run(), Writer()
    for logger in (run, writer):
        folder = tmp_path / type(logger).__name__
        for net, options in ((Bigrams(), {}), (Bigrams(), {"step": 2})):  # killed, and continued
            options |= {"observers": [LearningCurves(log_figures=False)], "schedule": Steps(every=1)}
            with watch(net, folder, logger=logger, **options) as watcher:
                train(net, watcher, start=options.get("step", 0), end=3)
    assert ("learning_curves/loss", 3) in writer.points
    logged = [values for values in run.logged if "lmdyn/learning_curves/loss" in values]
    assert [values["lmdyn/step"] for values in logged] == [0, 1, 2, 3, 3]


def test_pictures_go_to_a_run_one_by_one(tmp_path, monkeypatch):
    """trackio drops a list of pictures without a word."""

    class Image:
        def __init__(self, picture):
            self.shape = picture.shape

    monkeypatch.setitem(sys.modules, "tracker", SimpleNamespace(Image=Image))
    logged = []
    run = type("Run", (), {"__module__": "tracker.run", "log": lambda self, values: logged.append(values)})()
    with watch(Bigrams(), tmp_path, observers=[LearningCurves()], logger=run):
        pass
    pictures = [v for values in logged for v in values.values() if isinstance(v, Image)]
    assert pictures
    assert pictures[0].shape[-1] in (3, 4)


def test_nothing_costs_nothing_between_observations(tmp_path):
    with watch(Bigrams(), tmp_path, schedule=Steps(at=(0, 10**9), last=False)) as watcher:
        fastest = []
        for part in range(5):
            began = time.perf_counter()
            for step in range(1000 * part + 1, 1000 * part + 1001):
                watcher.step(step)
            fastest.append(time.perf_counter() - began)
    assert min(fastest) / 1000 < 20e-6


def test_a_run_says_what_it_is_and_runs_of_several_seeds_are_one_condition(tmp_path):
    for seed, rate in ((4, 0.5), (5, 0.5), (6, 0.1)):
        net = Bigrams()
        optimizer = torch.optim.SGD(net.parameters(), lr=rate)
        folder = tmp_path / str(seed)
        with watch(net, folder, seed=seed, optimizer=optimizer, observers=[LearningCurves()], train=TRAIN):
            pass
    about = json.loads((tmp_path / "4" / "run.json").read_text())
    assert about["model"]["parameters"] == sum(p.numel() for p in net.parameters())
    assert about["model"]["class"].endswith("Bigrams")
    assert about["seed"] == {"value": 4, "known_from": "seed"}
    with pytest.raises(FileNotFoundError, match="from which lmdyn could build the model"):
        Subject(tmp_path / "4", None, None, None)
    runs = {path.name: path for path in sorted(tmp_path.iterdir())}
    assert [RunFolder(path).seeds.init for path in runs.values()] == [4, 5, 6]
    alike = conditions(runs)
    assert alike["4"] == alike["5"] != alike["6"]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    with watch(net, tmp_path / "7", seed=7, optimizer=optimizer, probe=batches(3, 9), train=TRAIN):
        pass  # of other text, as much of it
    assert conditions({"4": tmp_path / "4", "7": tmp_path / "7"})["7"] != alike["4"]
    for name, groups in {"8": [[0], [1e-6]], "9": [[0], [0.1]]}.items():  # a second group's rate
        first, *others = net.parameters()
        optimizer = torch.optim.SGD([{"params": [first]}, {"params": others, "lr": groups[1][0]}], lr=0.5)
        with watch(net, tmp_path / name, seed=int(name), optimizer=optimizer, train=TRAIN):
            pass
    of_groups = conditions({name: tmp_path / name for name in ("8", "9")})
    assert of_groups["8"] != of_groups["9"]
    assert "data" not in known_facts(tmp_path / "4", [])  # a list of batches does not say what it is


def test_an_engine_of_deepspeed_is_refused(tmp_path):
    class DeepSpeedEngine(Bigrams):
        """As DeepSpeed names its wrapper."""

    with pytest.raises(ValueError, match="lmdyn does not support DeepSpeed: observe the checkpoints"):
        watch(DeepSpeedEngine(), tmp_path)


def test_a_compiled_model_is_observed_and_saved_as_it_is_uncompiled(tmp_path):
    net = Bigrams()
    with watch(torch.compile(net, backend="eager"), tmp_path, checkpoints=True) as watcher:
        assert watcher.model is net
    saved = torch.load(tmp_path / "checkpoints" / "step=000000000.ckpt")
    assert saved["state_dict"].keys() == net.state_dict().keys()


def in_parallel(net):
    return nn.parallel.DistributedDataParallel(net)


def compiled(net):
    return in_parallel(torch.compile(net, backend="eager"))


def accelerated(net):
    from accelerate import Accelerator

    return Accelerator(cpu=True).prepare(net)


def sharded(net):
    """As in torchtitan: each layer, then the whole model."""
    from torch.distributed.fsdp import fully_shard

    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    for layer in (net.hidden, net):
        fully_shard(layer, mesh=mesh)
    return net


def sharded_as_one(net):
    """Its weights stay whole from a forward to the backward pass."""
    from torch.distributed.fsdp import fully_shard

    return fully_shard(net, mesh=torch.distributed.init_device_mesh("cpu", (2,)))


MODES = (in_parallel, compiled, accelerated, sharded, sharded_as_one)


@pytest.mark.slow
def test_two_ranks_give_the_numbers_of_one(tmp_path):
    net = Bigrams()
    with watch(net, tmp_path / "one") as watcher:
        train(net, watcher, end=5)
    run_ranks(__file__, tmp_path, tmp_path / "cache", timeout=480)
    for mode in MODES:
        found = tables(tmp_path / mode.__name__)
        for name, table in tables(tmp_path / "one").items():
            pd.testing.assert_frame_equal(found[name], table, rtol=1e-5)


def rank_main(folder):
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    for mode in MODES:
        net = mode(Bigrams())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        with watch(net, folder / mode.__name__) as watcher:
            for step, batch in enumerate(TRAIN[:5], 1):
                optimizer.zero_grad()
                loss_of(net, {"input_ids": batch["input_ids"][2 * rank : 2 * rank + 2]}).backward()
                optimizer.step()
                watcher.step(step)
    divided = parallelize_module(
        Bigrams(), torch.distributed.init_device_mesh("cpu", (2,)), {"hidden": ColwiseParallel()}
    )
    for refused, options, why in (  # on both ranks
        (Bigrams(), {"folder": folder / "sharded"}, "later than step 0"),
        (divided, {}, "lmdyn does not support tensor parallelism: ranks share a batch"),
        (sharded(Bigrams()), {"checkpoints": True}, "watch saves no sharded weights"),
        (sharded(Bigrams()), {"observers": [Landscape()]}, "landscape: sharded weights are not supported"),
    ):
        with pytest.raises(ValueError, match=why):
            watch(refused, **{"folder": folder / "refused", **options})
    torch.distributed.destroy_process_group()
