"""The site builds without a warning from what is in the repository; links lead somewhere, and nothing is loaded."""

import html
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
ELSEWHERE = re.compile(r"https?:|mailto:|data:|javascript:")


@pytest.fixture(scope="module")
def begun():
    return time.time()


@pytest.fixture(scope="module")
def site(begun, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-n", "-W", "--keep-going"]
    built = subprocess.run(
        [*words, "-d", str(folder / "doctrees"), str(ROOT / "docs"), str(folder / "html")],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return {path: path.read_text(encoding="utf-8") for path in sorted((folder / "html").rglob("*.html"))}


def test_no_page_loads_anything_from_elsewhere(site):
    assert len(site) > 200
    script = r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//"
    style = r"<link\b[^>]*\brel=\"stylesheet\"[^>]*href=\"(?:https?:)?//"
    assert not [path for path, text in site.items() if re.search(f"{script}|{style}", text)]


def test_the_gallery_was_run(begun, site):
    """Each script has a page with the numbers that its text rests on, and with what it drew in this very build."""
    scripts = sorted((ROOT / "docs" / "gallery").glob("*/plot_*.py"))
    assert len(scripts) > 20
    pages = {path.stem: text for path, text in site.items() if path.parent.parent.name == "auto_gallery"}
    for script in scripts:
        assert "sphx-glr-script-out" in pages[script.stem], script
        figure = f"sphx_glr_{script.stem}_001.png"
        assert f"_images/{figure}" in pages[script.stem], script
        drawn = (ROOT / "docs" / "auto_gallery" / script.parent.name / "images" / figure).stat()
        assert drawn.st_mtime > begun, f"{script} was not run"
        assert drawn.st_size > 5000, script


def test_links_lead_somewhere(site):
    anchors = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in site.items()}
    checked, broken = 0, []
    for page, text in site.items():
        for link in set(re.findall(r'\b(?:href|src)="([^"]+)"', text)):
            if ELSEWHERE.match(link):
                continue
            place, _, anchor = html.unescape(link).partition("#")
            path = (page.parent / unquote(place.split("?")[0])).resolve() if place else page
            there = path.exists() and (not anchor or path not in anchors or unquote(anchor) in anchors[path])
            checked += 1
            broken += [] if there else [(page.name, link)]
    assert checked > 10_000
    assert not broken
