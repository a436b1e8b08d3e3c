"""A checkpoint runs no code: neither by its record of a class nor by files beside its weights."""

import json
import sys

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM

from lmdyn.models import LSTMLanguageModel
from lmdyn.runs.checkpoint_files import build_module, read_checkpoint


class Own(nn.Module):
    """A class of the user's that is imported."""

    def __init__(self, size=3):
        super().__init__()
        self.layer = nn.Linear(size, 2)


def checkpoint(path, class_path, module=None, **hyperparameters):
    content = {
        "state_dict": {} if module is None else module.state_dict(),
        "hyper_parameters": {"_class_path": class_path, **hyperparameters},
    }
    torch.save(content, path)
    return read_checkpoint(path), path


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A module that is not imported yet, with a class of the user's; it leaves a mark when it is."""
    mark = tmp_path / "imported"
    (tmp_path / "unheard_of.py").write_text(
        f"import pathlib\nfrom torch import nn\npathlib.Path({str(mark)!r}).touch()\n"
        "class Theirs(nn.Linear):\n    def __init__(self, size=3):\n        super().__init__(size, 2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield mark
    sys.modules.pop("unheard_of", None)


@pytest.mark.parametrize(
    ("class_path", "argument"),
    [("os.system", "command"), ("subprocess.Popen", "args"), ("builtins.open", "file")],
)
@pytest.mark.parametrize("named_by", ["checkpoint", "user"])
def test_nothing_is_called_that_is_no_module(tmp_path, class_path, argument, named_by):
    mark = tmp_path / "called"
    value = {"command": f"touch {mark}", "args": ["touch", str(mark)], "file": str(mark)}[argument]
    extra = {"mode": "w"} if argument == "file" else {}
    content, path = checkpoint(tmp_path / "x.ckpt", class_path, **{argument: value}, **extra)
    with pytest.raises(ValueError, match=r"expected a subclass of torch\.nn\.Module, got " + class_path):
        build_module(content, path, class_path if named_by == "user" else None)
    assert not mark.exists()


def test_a_checkpoint_imports_nothing_and_the_user_may(tmp_path, package):
    content, path = checkpoint(tmp_path / "x.ckpt", "unheard_of.Theirs", nn.Linear(5, 2), size=5)
    with pytest.raises(ValueError, match=r"If you trust the class, name it: `module: unheard_of\.Theirs`"):
        build_module(content, path)
    assert not package.exists()
    assert build_module(content, path, "unheard_of.Theirs").weight.shape == (2, 5)
    assert package.exists()
    assert build_module(content, path).weight.shape == (2, 5)  # imported by the user


@pytest.mark.parametrize(
    "class_path", ["torch.nn", "sys", "", "lmdyn.models.carry_state", None, "torch.nn.Linear"]
)
def test_what_is_no_class_is_refused(tmp_path, class_path):
    content, path = checkpoint(tmp_path / "x.ckpt", class_path)
    refused = (
        r"expected a subclass|not imported|does not record the class|torch\.nn\.Linear cannot be created"
    )
    with pytest.raises(ValueError, match=refused):
        build_module(content, path)


def test_classes_of_the_run_and_of_lmdyn(tmp_path):
    own = Own(4)
    content, path = checkpoint(tmp_path / "own.ckpt", f"{__name__}.Own", own, size=4)
    assert torch.equal(build_module(content, path).layer.weight, own.layer.weight)
    sizes = {"vocab_size": 7, "embedding_size": 4, "hidden_size": 4}
    lstm = LSTMLanguageModel(**sizes)
    content, path = checkpoint(tmp_path / "lstm.ckpt", "lmdyn.models.LSTMLanguageModel", lstm, **sizes)
    assert isinstance(build_module(content, path), LSTMLanguageModel)


def test_code_beside_the_weights_is_not_run_even_if_a_terminal_says_yes(tmp_path, monkeypatch):
    folder, mark = tmp_path / "model", tmp_path / "run"
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    BertForMaskedLM(BertConfig(vocab_size=20, **sizes)).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    auto_map = {"AutoConfig": "theirs.Theirs", "AutoModelForMaskedLM": "theirs.Theirs"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "theirs", "auto_map": auto_map}))
    (folder / "theirs.py").write_text(
        f"import pathlib\npathlib.Path({str(mark)!r}).touch()\nclass Theirs: ...\n"
    )
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ValueError, match="is not a model of transformers"):
        read_checkpoint(folder)
    assert not mark.exists()
