"""The site builds, without a warning, from what is in the repository; no page asks for anything elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path):
    words = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-n", "-W", "--keep-going"]
    built = subprocess.run(
        [*words, "-d", str(tmp_path / "doctrees"), str(ROOT / "docs"), str(tmp_path / "site")],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 200
    script = r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//"
    style = r"<link\b[^>]*\brel=\"stylesheet\"[^>]*href=\"(?:https?:)?//"
    for page in pages:
        assert not re.search(f"{script}|{style}", page.read_text(encoding="utf-8")), page
