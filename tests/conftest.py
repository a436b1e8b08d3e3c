"""What all tests share: checked annotations, no network, small models and batches."""

import os

import pytest
from jaxtyping import install_import_hook

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

# annotations of the mathematics are checked while testing, and only then
_hook = install_import_hook("lmdyn.analysis", "beartype.beartype")


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoded corpora go to a folder of the session's own."""
    monkeypatch.setenv("LMDYN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
