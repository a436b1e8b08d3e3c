"""What went wrong, in words: a typo gets the nearest name, a mistake a line, a user's own error its traceback."""

import shutil
import sys
import traceback
from pathlib import Path

import pytest
import torch
import yaml

from lmdyn.cli.__main__ import main
from lmdyn.cli.parsing.errors import causes, of_users_code
from tests.cli.tiny_run import at_steps, tiny_run

BORING = "lightning.pytorch.demos.boring_classes.BoringModel"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Writes a configuration; ``users_part`` can be imported."""
    shutil.copy(Path(__file__).with_name("users_part.py"), tmp_path)
    (tmp_path / "users_import.py").write_text("import no_such_package\n\n\nclass Model:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("users_part", "users_import"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def write(model="LSTMLanguageModel", data=None, callbacks=(), **trainer):
        own = {"max_steps": 1, "logger": False, "limit_val_batches": 1.0}
        own["default_root_dir"] = str(tmp_path / "run")
        content = tiny_run(tmp_path, *callbacks, **{**own, **trainer})
        content["model"]["class_path"] = model
        if data is not None:
            content |= {"model": {"class_path": BORING}, "data": {"class_path": data}}
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(content))
        return str(path)

    return write


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"model": "users_part.InInit"}, ValueError, "no number in __init__"),
        ({"callbacks": ["users_part.InNestedLibrary"]}, RuntimeError, "invalid for input of size"),
        ({"callbacks": ["Sparsity", "users_part.WithoutAttribute"]}, AttributeError, "nothing"),
        ({"data": "users_part.Data"}, TypeError, "a bug in the dataset"),
        ({"data": "users_part.Setup"}, FileNotFoundError, "/nowhere/at/all"),
        ({"callbacks": [{"class_path": "LearningCurves", "init_args": {"forward": "users_part.forward"}}]},
         ValueError, "a bug in a callable"),
        ({"model": "users_import.Model"}, ModuleNotFoundError, "no_such_package"),
    ],
)  # fmt: skip
def test_an_error_of_a_users_code_keeps_its_traceback(config, given, error, message):
    with pytest.raises(error, match=message) as raised:
        main(["fit", "--config", config(**given)])
    text = "".join(traceback.format_exception(raised.value))
    assert "users_" in text  # the file and the line
    assert text.strip().splitlines()[-1].startswith(error.__name__)
    assert of_users_code(raised.value) is not None


def test_causes_in_a_circle_end():
    error, other = ValueError("one"), ValueError("other")
    error.__cause__, other.__cause__ = other, error
    assert list(causes(error)) == [error, other]


def lines(capsys):
    said = capsys.readouterr().err.splitlines()
    assert not any("Traceback" in line or line.startswith("usage") for line in said)
    (error,) = [line for line in said if line.startswith("error: ")]
    return error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "change", "message"),
    [
        # of lmdyn, though a user's class passed the argument on
        ({"model": "users_part.PassesOn", "callbacks": []}, ["--model.init_args.hidden_size=9"],
         "tie_weights requires"),
        ({}, ["--model=users_part.PasesOn"], "has no attribute 'PasesOn', did you mean 'PassesOn'?"),
        ({}, ["--model=nowhere.Model"], "No module named 'nowhere'"),
        ({}, ["--trainer.devices=[]"], "devices"),  # a MisconfigurationException
        ({}, ["--trainer.callbacks=Sparsity", "--trainer.callbacks.split=nonsense"],
         "split: expected 'train', 'validation', 'test', got nonsense"),
        ({"callbacks": [{"class_path": "Sparsity", "init_args": {"min_cuont": 3}}]}, [], "did you mean 'min_count'?"),
        ({"callbacks": [{"class_path": "Sparsity", "init_args": {"schedule": {"per_decad": 4}}}]}, [],
         "Sparsity: schedule: option 'per_decad' is not accepted, did you mean 'per_decade'?"),
        ({"callbacks": [{"class_path": "Sparsity", "init_args": {"schedule": 5}}]}, [],
         "Sparsity: expected `schedule: {every: …, per_decade: …, at: …, epochs: …, last: …, tokens: …, words: …}` or "
         "some of these settings, got 5"),
        ({"callbacks": [{"class_path": "Sparsity", "init_args": {"max_tokens": "many"}}]}, [],
         "Sparsity: max_tokens: expected a whole number, got many"),
        ({"callbacks": [{"class_path": "Sparsity", "init_args": 5}]}, [], "Sparsity: expected a mapping"),
        ({"callbacks": [{"class_path": "Sparsity", "init_arg": {"min_count": 3}}]}, [],
         "did you mean 'init_args.min_count'?"),
        ({"callbacks": [{"class_path": "EncoderDynamics", "init_args": {"short_sentences": 3}}]}, [],
         "the option is now `short_term: {sentences: …}`"),
        ({"max_step": 3}, [], "option 'trainer.max_step', did you mean 'trainer.max_steps'?"),
        ({}, ["--trainer.maxsteps=3"], "--trainer.maxsteps=3, did you mean '--trainer.max_steps'?"),
        ({}, ["--dta.init_args.batch_size=3"], "did you mean '--data.init_args.batch_size'?"),
        ({}, ["--data=GramarCorpus"], "unknown class 'GramarCorpus', did you mean 'GrammarCorpus'? known classes: "),
        ({}, ["--model.help=LSTMLangageModel"], "did you mean 'LSTMLanguageModel'?"),
        ({"callbacks": ["Sparsity"]}, ["--trainer.callbacks+=Sparsity", "--trainer.callbacks.matched_size=100000"],
         "observers have the name 'sparsity'"),
        ({}, ["--weights_only=false"], "weights_only: expected true or null, got false"),
        ({}, ["--trainer.max_epoch=1"], "max_epoch"),  # not taken for the beginning of max_epochs
        ({}, ["--trainer.max_steps=true"], "expected a whole number, got True"),
        ({"callbacks": ["Sparsity"]}, ["--trainer.callbacks.schedule.every=1e-3"], "whole number, got 0.001"),
        ({}, ["--optimizer", "SGD"], "optimizers are arguments of the model, use --model.optimizer"),
    ],
)  # fmt: skip
def test_a_mistake_of_configuration_is_one_line_with_the_nearest_name(config, capsys, given, change, message):
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--config", config(**given), *change])
    assert stop.value.code in (1, 2)
    error = lines(capsys)
    assert message in error
    assert error.count("did you mean") <= 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["analyze", "x", "--chekpoints", "y"], "--chekpoints y, did you mean '--checkpoints'?"),
        (["analyze", "x", "--keep", "12.5"], "argument --keep: invalid whole number value"),
        (["fork", "x"], "give either --step K or --epoch E"),
        (["analyze", "x", "--device", "cuda:99"], "--device 'cuda:99' is unavailable ("),
        (["report", "/nowhere"], "/nowhere"),
        (["check", "--trainer.max_steps", "2"], "--config is missing: give --config FILE"),
        (["raport"], "did you mean 'report'? commands are inspect, check, fit, validate, test, predict"),
        (
            ["--config", "x.yaml"],
            "--config must follow the command: lmdyn COMMAND --config …; commands are inspect, ",
        ),
    ],
)
def test_own_commands_say_it_in_a_line_too(capsys, args, message):
    with pytest.raises(SystemExit) as stop:
        main(args)
    assert stop.value.code in (1, 2)
    assert message in lines(capsys)


def test_a_data_module_of_prepare_keeps_its_traceback(config):
    with pytest.raises(FileNotFoundError, match="/nowhere/at/all"):
        main(["prepare", "--config", config(data="users_part.Setup")])


@pytest.mark.slow
def test_a_checkpoint_without_what_lightning_writes(config, tmp_path, capsys):
    """One line, whatever of it lacks."""
    saver = at_steps("ScheduledCheckpoint", 1, weights_only=False)
    main(["fit", "--config", config(callbacks=[saver])])
    (path,) = (tmp_path / "run").rglob("step=000000001.ckpt")
    whole = torch.load(path, weights_only=True)
    for missing in ("pytorch-lightning_version", "loops"):
        torch.save({part: whole[part] for part in whole if part != missing}, path)
        capsys.readouterr()
        with pytest.raises(SystemExit, match="1"):
            main(["fit", "--config", config(callbacks=[saver], max_steps=2), "--ckpt_path", str(path)])
        assert f"{path} lacks {missing!r}" in lines(capsys)


# ---------------------------------------------------------------- files of settings


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "c.yaml:1: the file is empty"),
        (
            "# nothing\n",
            "c.yaml: expected a mapping of settings, such as `seed_everything: 1`, got no setting",
        ),
        ("trainer: [\n", "c.yaml:2: cannot be read as yaml: while parsing"),
        ("trainer:\n  max_steps: abc\n", "c.yaml: trainer.max_steps: expected a whole number"),
    ],
)
def test_what_is_wrong_in_a_file_names_it(config, tmp_path, capsys, content, message):
    (tmp_path / "c.yaml").write_text(content)
    with pytest.raises(SystemExit):
        main(["fit", "--config", config(), "--config", str(tmp_path / "c.yaml")])
    assert lines(capsys).startswith(f"error: {tmp_path}/{message}")
