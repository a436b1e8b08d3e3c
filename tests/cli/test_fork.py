"""Forks: without changes the run itself, with changes what a checkpoint edited by hand would give."""

import shutil

import lightning as L
import pandas as pd
import pytest
import torch
import yaml
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR

from lmdyn.cli.__main__ import main
from lmdyn.cli.training.optimizers import change_optimizers
from lmdyn.runs.observed_run import RunFolder, is_fork
from tests.cli.tiny_run import tiny_run
from tests.helpers.small_runs import ENCODER, PIECES, assert_same_weights, stream_files, weights_of

pytestmark = [
    pytest.mark.usefixtures("without_report"),
    pytest.mark.filterwarnings("ignore:Experiment logs directory"),  # a fork's folder holds its checkpoint
]

EPOCH = 9


def configuration(folder, **trainer):
    full = {"schedule": {"every": 5, "epochs": True}, "weights_only": False}
    callbacks = [
        {"class_path": "ScheduledCheckpoint", "init_args": {"schedule": {"every": 1}}},
        {"class_path": "ScheduledCheckpoint", "init_args": full},
        {"class_path": "LearningCurves", "init_args": {"schedule": {"every": 4}, "log_figures": False}},
    ]
    logger = {"class_path": "CSVLogger", "init_args": {"save_dir": str(folder), "name": "", "version": "run"}}
    own = {"max_steps": -1, "max_epochs": 3, "limit_val_batches": 1.0, "logger": logger}
    return tiny_run(folder, *callbacks, data={"n_train_tokens": 1200}, **{**own, **trainer})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of three epochs with checkpoints at each fifth step and each end of an epoch; tests add forks."""
    folder = tmp_path_factory.mktemp("forks")
    (folder / "in.yaml").write_text(yaml.safe_dump(configuration(folder)), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lmdyn.cli.fit.LmdynCLI.after_fit", lambda _: None)
        main(["fit", "--config", str(folder / "in.yaml")])
    return folder


def assert_same(there, here):
    """Every checkpoint that the fork has, and it has the last."""
    assert max(there) == max(here)
    assert_same_weights({name: there[name] for name in here}, here)


def by_hand(folder, step, name, *settings, edit=lambda checkpoint: None):
    """What a researcher would do: edit the checkpoint, resume from it in another folder."""
    checkpoint = torch.load(folder / "run" / "resume" / f"step={step:09d}.ckpt", weights_only=True)
    edit(checkpoint)
    edited = folder / f"step={step:09d}.ckpt"
    torch.save(checkpoint, edited)
    version = f"--trainer.logger.init_args.version={name}"
    main(["fit", "--config", str(folder / "in.yaml"), version, f"--ckpt_path={edited}", *settings])
    return weights_of(folder / name)


@pytest.mark.slow
@pytest.mark.parametrize("step", [EPOCH, 10])
def test_without_changes_it_is_the_run(folder, step):
    main(["fork", str(folder / "run"), "--step", str(step), "--out", str(folder / f"same_{step}")])
    there, here = folder / "run", folder / f"same_{step}"
    assert_same(weights_of(there), weights_of(here))
    last = [torch.load(max(run.glob("resume/*.ckpt")), weights_only=True) for run in (there, here)]
    assert str(last[0]["optimizer_states"]) == str(last[1]["optimizer_states"])
    assert last[0]["lmdyn"]["tokens"] == last[1]["lmdyn"]["tokens"]
    curves = [pd.read_parquet(run / "observations" / "learning_curves") for run in (there, here)]
    assert set(curves[1]["step"]) >= {s for s in curves[0]["step"] if s > step}
    later = curves[0][curves[0]["step"].isin(curves[1]["step"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(later, curves[1].reset_index(drop=True), check_exact=True)
    origin = {"run": str(there), "step": step, "changes": {}, "data_seed": None, "rate": 1.0}
    assert last[1]["forked_from"] == origin
    config = yaml.safe_load((here / "config.yaml").read_text(encoding="utf-8"))
    assert any(
        c["class_path"].endswith("ForkedFrom") and c["init_args"] == origin
        for c in config["trainer"]["callbacks"]
    )


@pytest.mark.slow
def test_a_quarter_of_the_rate_is_what_an_edited_checkpoint_gives(folder):
    def quarter(checkpoint):
        for group in checkpoint["optimizer_states"][0]["param_groups"]:
            group["lr"] /= 4

    rate = "model.init_args.optimizer.init_args.lr=5"
    main(f"fork {folder / 'run'} --step {2 * EPOCH} --set {rate} --out {folder / 'quarter'}".split())
    condition = RunFolder(folder / "quarter").condition
    assert (condition["forked.rate"], condition["forked.step"]) == (0.25, 2 * EPOCH)
    assert condition["forked.run"] == f"{folder.name}/run"
    assert not is_fork(RunFolder(folder / "run"))
    expected = by_hand(folder, 2 * EPOCH, "quarter_by_hand", edit=quarter)
    assert_same(expected, weights_of(folder / "quarter"))
    name = max(expected)  # the control: it is not the run
    assert not torch.equal(
        expected[name]["embedding.weight"], weights_of(folder / "run")[name]["embedding.weight"]
    )
    # a fork of the fork: what was configured there counts
    rate = "model.init_args.optimizer.init_args.lr=20"
    main(f"fork {folder / 'quarter'} --step {2 * EPOCH} --set {rate} --out {folder / 'back'}".split())
    assert_same(weights_of(folder / "run"), weights_of(folder / "back"))


@pytest.mark.slow
def test_larger_updates_are_for_a_fork_and_not_for_a_run_that_goes_on(folder, capsys):
    twice = "trainer.accumulate_grad_batches=2"
    main(f"fork {folder / 'run'} --step {2 * EPOCH} --set {twice} --out {folder / 'twice'}".split())
    assert max(weights_of(folder / "twice")) == f"step={2 * EPOCH + 5:09d}.ckpt"  # 9 batches
    with pytest.raises(SystemExit):
        by_hand(folder, 2 * EPOCH, "refused", f"--{twice}")
    said = capsys.readouterr().err
    assert "and accumulate_grad_batches 1" in said
    assert "`lmdyn fork --set trainer.accumulate_grad_batches=N`" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "words", "settings", "hyperparameters"),
    [
        (EPOCH, ["model.init_args.dropout=0.5"], ["--model.init_args.dropout=0.5"], {"dropout": 0.5}),
        (10, ["model.init_args.gradient_clip_val=0.01", "trainer.max_epochs=4"],
         ["--model.init_args.gradient_clip_val=0.01", "--trainer.max_epochs=4"], {"gradient_clip_val": 0.01}),
        (EPOCH, [], ["--data.init_args.order_seed=7"], {}),  # within an epoch: the next test
    ],
)  # fmt: skip
def test_other_settings_act(folder, words, settings, hyperparameters, step):
    name = f"{len(settings)}_{len(hyperparameters)}"
    out = folder / f"set_{name}"
    sets = ["--set", *words] if words else ["--data-seed", "7"]
    main(["fork", str(folder / "run"), "--step", str(step), *sets, "--out", str(out)])
    edit = lambda checkpoint: checkpoint["hyper_parameters"].update(hyperparameters)  # noqa: E731
    expected = by_hand(folder, step, f"hand_{name}", *settings, edit=edit)
    assert_same(expected, weights_of(out))
    original = weights_of(folder / "run")
    changed = [n for n in expected if n in original and str(expected[n]) != str(original[n])]
    assert changed  # the control
    shutil.rmtree(out)
    shutil.rmtree(folder / f"hand_{name}")


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_rows_are_drawn_in_another_order(tmp_path, monkeypatch, stream):
    """Until the fork the same weights, afterwards others; by the same seed the run itself."""
    monkeypatch.setenv("LMDYN_CACHE", str(tmp_path / "cache"))
    content = configuration(tmp_path, max_steps=8, max_epochs=-1, limit_val_batches=0, num_sanity_val_steps=0)
    rows = {"sequence_length": 24, "batch_size": 4}
    rows["corpus"] = {"class_path": "GrammarCorpus", "init_args": PIECES}
    if stream:
        stream_files(tmp_path)
        rows["stream"] = {"class_path": "StreamedText", "init_args": {
            "dataset": {"path": "parquet", "data_files": str(tmp_path / "*.parquet")},
            "tokenizer": str(tmp_path / "tokenizer"), "epoch_batches": 12, "block_rows": 12}}  # fmt: skip
    content |= {
        "model": {"class_path": "MaskedLanguageModel", "init_args": {"family": "albert", "config": ENCODER}},
        "data": {"class_path": "PretrainingCorpus", "init_args": rows},
    }
    content["trainer"]["callbacks"] = content["trainer"]["callbacks"][:2]
    (tmp_path / "in.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    main(["fit", "--config", str(tmp_path / "in.yaml")])
    whole = weights_of(tmp_path / "run")
    forks = {}
    for seed in (0, 5):
        out = tmp_path / f"order_{seed}"
        main(["fork", str(tmp_path / "run"), "--step", "5", "--data-seed", str(seed), "--out", str(out)])
        forks[seed] = weights_of(out)
    assert_same({name: state for name, state in whole.items() if name in forks[0]}, forks[0])
    last = "step=000000008.ckpt"
    assert str(forks[5][last]) != str(whole[last])


@pytest.mark.slow
def test_a_fork_that_was_killed_goes_on_and_another_is_refused(folder, capsys):
    words = ["fork", str(folder / "run"), "--step", "10", "--set", "model.init_args.dropout=0.4"]
    main(words)
    (out,) = folder.glob("run_fork_10_*")
    whole = weights_of(out)
    for path in out.glob("*/step=*.ckpt"):  # as after a kill at step 15
        if int(path.stem.removeprefix("step=")) > 15:
            path.unlink()
    main(words)
    assert_same(whole, weights_of(out))
    assert len(list(folder.glob("run_fork_10_*"))) == 1
    for other in ("--set", "model.init_args.dropout=0.3"), ("--data-seed", "3"):
        with pytest.raises(SystemExit):
            main([*words[:4], *other, "--out", str(out)])
        assert f"{out} contains another fork: choose another --out" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*words, "--out", str(folder / "run")])
    assert "run contains a run: choose another --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("step", "words", "message"),
    [
        (
            7,
            "",
            "no full checkpoint of step 7: full checkpoints exist of steps 0, 5, 9, 10, 15, 18, 20, 25, 27;",
        ),
        (
            27,
            "",
            "no update is left to train: trainer.max_epochs is 3, and the checkpoint is after step 27 (whole",
        ),
        (10, "--set model.init_args.hidden_size=9", "sizes cannot change in a fork"),
        (
            10,
            "--set model.init_args.optimizer=torch.optim.Adam",
            "the state of SGD, but the fork would have Adam",
        ),
        (10, "--set data.init_args.batch_size=4", "data.init_args.batch_size cannot change in a fork, which"),
        (10, "--set seed_everything=4", "seed_everything cannot change in a fork: the checkpoint restores"),
        (10, "--set trainer.logger=false", "trainer.logger cannot change in a fork: a fork logs to its own"),
        (10, "--set model.init_args.droput=0", "droput"),
        (10, "--set dropout", "--set 'dropout': expected KEY=VALUE"),
    ],
)
def test_what_cannot_be(folder, capsys, step, words, message):
    before = sorted(folder.iterdir())
    with pytest.raises(SystemExit):
        main(["fork", str(folder / "run"), "--step", str(step), *words.split()])
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert sorted(folder.iterdir()) == before


def test_a_run_that_keeps_the_newest_only_says_so(tmp_path, capsys):
    config = configuration(tmp_path)
    config["trainer"]["callbacks"][1]["init_args"]["keep"] = 1
    (tmp_path / "run" / "resume").mkdir(parents=True)
    torch.save({"state_dict": {}}, tmp_path / "run" / "resume" / "step=000000024.ckpt")
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    for step, said in (
        ("8", "of steps 24 (the ScheduledCheckpoint keeps only the newest 1)"),
        ("24", "step=000000024.ckpt contains weights but no resume state"),
    ):
        with pytest.raises(SystemExit):
            main(["fork", str(tmp_path / "run"), "--step", step])
        assert said in capsys.readouterr().err


RULES = {ExponentialLR: 0.5, LambdaLR: lambda step: min(1.0, step / 3)}


class Scheduled(L.LightningModule):
    """An optimizer of two groups with a schedule, in the forms that Lightning takes."""

    def __init__(self, lr, momentum=0.0, kind=ExponentialLR, form=dict):
        super().__init__()
        self.one, self.two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        self.lr, self.momentum, self.kind, self.form = lr, momentum, kind, form

    def configure_optimizers(self):
        groups = [{"params": self.one.parameters()}, {"params": self.two.parameters(), "lr": self.lr / 2}]
        self.optimizer = torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum)
        self.scheduler = self.kind(self.optimizer, RULES[self.kind])
        named = {"optimizer": self.optimizer, "lr_scheduler": {"scheduler": self.scheduler}}
        return named if self.form is dict else ([self.optimizer], [self.scheduler])

    def rates(self, steps):
        found = []
        for _ in range(steps):
            self.optimizer.step()
            self.scheduler.step()
            found.append([group["lr"] for group in self.optimizer.param_groups])
        return found


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("form", [dict, list])
def test_schedules_go_on_from_the_other_rate(kind, form):
    """As if the run had had this rate from the start, by torch's own schedulers."""
    modules = [Scheduled(lr, kind=kind, form=form) for lr in (8.0, 8.0, 2.0, 2.0)]
    run, there, here, expected = modules
    for module in modules:
        module.configure_optimizers()
    run.rates(2)
    checkpoint = {"optimizer_states": [run.optimizer.state_dict()]}
    checkpoint["lr_schedulers"] = [run.scheduler.state_dict()]
    lines = change_optimizers(checkpoint, there, here)
    assert any("learning rate" in line for line in lines)
    here.optimizer.load_state_dict(checkpoint["optimizer_states"][0])
    here.scheduler.load_state_dict(checkpoint["lr_schedulers"][0])
    expected.rates(2)
    torch.testing.assert_close(torch.tensor(here.rates(3)), torch.tensor(expected.rates(3)))
    assert here.scheduler.get_last_lr() == pytest.approx(expected.scheduler.get_last_lr())
    with_momentum = Scheduled(8.0, momentum=0.9, kind=kind)
    change_optimizers(checkpoint, Scheduled(8.0, kind=kind), with_momentum)
    assert [g["momentum"] for g in checkpoint["optimizer_states"][0]["param_groups"]] == [0.9, 0.9]
