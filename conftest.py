"""What all tests and doctests share: one thread, checked annotations, no network, a cache and logging of their own.

At the root, so that it also holds for the doctests below lmdyn/.
"""

import ast
import inspect
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.helpers.interpreter import Interpreter

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
# tests run in a process for each core, and what they compute is small: more threads only wait for each other; before
# torch is imported, and for the processes that tests start
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import torch
import yaml
from jaxtyping import _decorator, _import_hook, install_import_hook

torch.set_num_threads(1)
yaml.safe_load = lambda text: yaml.load(text, yaml.CSafeLoader)  # ten times as fast; `read_yaml` has its own
pytest_plugins = ["tests.helpers.tiers"]
collect_ignore = ["lmdyn/analysis/__init__.py"]  # its functions have the doctests of those they wrap

_decorate = _import_hook.JaxtypingTransformer.visit_FunctionDef


def _decorate_shaped(self: Any, node: ast.FunctionDef) -> Any:
    """Only shapes are checked, and not of functions within functions, whose checks each call would compile anew."""
    body, node.body = node.body, []
    annotations = ast.unparse(node.args) + (ast.unparse(node.returns) if node.returns else "")
    if "[Tensor, " in annotations or "[np.ndarray, " in annotations:
        _decorate(self, node)
    node.body = body
    return node


_import_hook.JaxtypingTransformer.visit_FunctionDef = _decorate_shaped  # type: ignore[method-assign]
_function_with = _decorator._make_fn_with_signature


def _function_of_its_answer(
    name: str, qualname: str, module: str, signature: inspect.Signature, output: bool
) -> Any:
    """Arguments are checked once, before the call; what is returned, against the sizes that they gave to the names."""
    if output:
        unnamed = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        signature = signature.replace(parameters=unnamed)
    return _function_with(name, qualname, module, signature, output)


_decorator._make_fn_with_signature = _function_of_its_answer
# annotations of the mathematics are checked while testing, and only then; the spaces: no files of older transformations
_hook = install_import_hook("lmdyn.analysis", "beartype.beartype   ")


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoded corpora go to a folder of the session's own."""
    monkeypatch.setenv("LMDYN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def _logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages reach ``caplog``, also after a test has run a command, which shows them itself."""
    logger = logging.getLogger("lmdyn")
    for name, value in (("propagate", True), ("handlers", []), ("level", logging.NOTSET)):
        monkeypatch.setattr(logger, name, value)


@pytest.fixture(scope="session")
def interpreter() -> "Iterator[Interpreter]":
    """Its ``executable`` is Python that has imported everything."""
    from tests.helpers.interpreter import Interpreter

    with Interpreter() as started:
        yield started


@pytest.fixture
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """``fit`` and ``analyze`` draw no report and no figures, which take longer than a tiny training."""
    monkeypatch.setattr("lmdyn.cli.report.write_report", lambda *_: None)
    monkeypatch.setattr("lmdyn.callbacks.observing.loggers.draw", lambda *_: None)
    monkeypatch.setattr("lmdyn.cli.analyze.draw", lambda *_: None)


@pytest.fixture
def warnings_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What lmdyn warns of, each once, also while a command is run, whose messages ``caplog`` does not see."""
    found: list[str] = []
    handle = logging.Logger.handle

    def noted(logger: logging.Logger, record: logging.LogRecord) -> None:
        if record.name.startswith("lmdyn") and record.levelno == logging.WARNING:
            found.append(record.getMessage())
        handle(logger, record)

    monkeypatch.setattr(logging.Logger, "handle", noted)
    return found


_SURVIVED: list[logging.LogRecord] = []
_handler = logging.Handler(logging.ERROR)
_handler.emit = _SURVIVED.append  # type: ignore[method-assign]
for _name in ("callbacks.observing.loggers", "cli.fit", "cli.pages.observer_section"):
    logging.getLogger(f"lmdyn.{_name}").addHandler(_handler)


@pytest.fixture(autouse=True)
def survived() -> Iterator[list[logging.LogRecord]]:
    """Errors of drawing and reporting, which end no training: a test that expects some takes them off this list.

    Those of fixtures that several tests share are of the first of these.
    """
    yield _SURVIVED
    found = [(r.getMessage(), r.exc_info) for r in _SURVIVED]
    _SURVIVED.clear()
    assert not found


@pytest.fixture(autouse=True)
def _names(doctest_namespace: dict[str, Any]) -> None:
    """Examples of tensors need no import of torch, as in a reader's own session."""
    doctest_namespace["torch"] = torch
