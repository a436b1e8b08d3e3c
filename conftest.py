"""What all tests and doctests share: checked annotations, no network, a cache of their own.

At the root, so that it also holds for the doctests below lmdyn/.
"""

import os
from typing import Any

import pytest
import torch
from jaxtyping import install_import_hook

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

# annotations of the mathematics are checked while testing, and only then
_hook = install_import_hook("lmdyn.analysis", "beartype.beartype")


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoded corpora go to a folder of the session's own."""
    monkeypatch.setenv("LMDYN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def _names(doctest_namespace: dict[str, Any]) -> None:
    """Examples of tensors need no import of torch, as in a reader's own session."""
    doctest_namespace["torch"] = torch
