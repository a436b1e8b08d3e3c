"""lmdyn as it is installed: what its wheel holds, its extras' versions, and configurations by name without a clone."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from lmdyn.cli.__main__ import main
from lmdyn.cli.parsing.shipped import shipped_files, with_shipped

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def pins():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {normal(name): Version(version) for name, version in pairs}


@pytest.mark.parametrize("extra", ["", *PROJECT["optional-dependencies"]])
def test_constraints_hold_each_extra(pins, extra):
    """Each requirement has a pin that it allows, and so has what follows from it, as far as that is installed."""
    stated = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    todo, met = [Requirement(line) for line in stated], set()
    while todo:
        needed = todo.pop()
        name = normal(needed.name)
        extras = needed.extras or {""}
        if name == "lmdyn" or (name, frozenset(extras)) in met:
            continue
        met.add((name, frozenset(extras)))
        assert name in pins, f"{needed} of lmdyn[{extra}] has no pin in constraints.txt"
        assert needed.specifier.contains(pins[name], prereleases=True), f"{needed}, pinned {pins[name]}"
        try:
            further = distribution(name).requires or ()
        except PackageNotFoundError:  # of an extra that is not installed here
            continue
        for line in further:
            one = Requirement(line)
            cuda = normal(one.name).startswith(("nvidia", "cuda", "triton"))  # they follow from torch
            if not cuda and any(one.marker is None or one.marker.evaluate({"extra": e}) for e in extras):
                todo.append(one)
    assert met


def test_the_file_of_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    there = {
        str(path.relative_to(ROOT / "configs").with_suffix("")) for path in (ROOT / "configs").rglob("*.yaml")
    }
    assert set(shipped_files()) == there
    quickstart = str(shipped_files()["quickstart"])
    for typed in ("quickstart", "quickstart.yaml", "configs/quickstart.yaml"):
        assert with_shipped(["fit", "--config", typed]) == ["fit", "--config", quickstart]
        assert with_shipped(["check", f"--replay={typed}"]) == ["check", f"--replay={quickstart}"]
    (tmp_path / "mine.yaml").touch()
    inline = ["fit", "--config", "{trainer: {max_steps: 3}}"]
    for words in (["fit", "--config", "mine.yaml"], ["fit", "--config"], ["report", "quickstart"], inline):
        assert with_shipped(words) == words
    (tmp_path / "quickstart").touch()  # what is here goes first
    assert with_shipped(["fit", "--config", "quickstart"]) == ["fit", "--config", "quickstart"]


@pytest.mark.parametrize(
    ("typed", "close"),
    [
        ("configs/quickstat.yaml", "quickstart"),
        ("saphra2019_svcca/organism/ml", "saphra2019_svcca/organism/lm"),
        ("my/own_thing_of_no_name.yaml", None),
    ],
)
def test_a_name_that_is_mistyped(tmp_path, monkeypatch, capsys, typed, close):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="1"):
        main(["fit", "--config", typed])
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "Run `lmdyn configs`" in line]
    assert f"--config {typed!r} is neither a file nor the name of a shipped configuration" in line
    named = line.partition("Close names: ")[2].partition(". ")[0].split(", ")
    assert named == [""] if close is None else close in named


def test_a_study_is_copied(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["configs"])
    assert "saphra2019_sparsity/organism/lm" in capsys.readouterr().out.splitlines()
    main(["configs", "he2022_twotower"])
    for name in (
        "he2022_twotower/Snakefile",
        "he2022_twotower/organism/config.yaml",
        "study.smk",
        "runs.smk",
    ):
        assert (tmp_path / "configs" / name).read_bytes() == (ROOT / "configs" / name).read_bytes()
    for words, message in (
        (["he2022_twotower"], "already exists: choose another folder with --to"),
        (["he2022"], "unknown study 'he2022': studies are changbergen2022_acquisition, "),
    ):
        with pytest.raises(SystemExit):
            main(["configs", *words])
        assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the tracked files, built from their sdist."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignored = shutil.ignore_patterns(
        ".git", "*.egg-info", "__pycache__", ".*cache", ".venv*", "build", "dist"
    )

    def left_out(folder: str, names: list[str]) -> set[str]:
        return ignored(folder, names) | ({"runs"} & {*names} if Path(folder) == ROOT else set())

    shutil.copytree(ROOT, source, symlinks=True, ignore=left_out)
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(source)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    (found,) = (folder / "dist").glob("*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_holds_all_and_is_fit_to_be_uploaded(wheel):
    with zipfile.ZipFile(wheel) as file:
        inside = set(file.namelist())
    for folder in ("lmdyn", "configs"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".yaml", ".smk", ".typed", ".js", ".css") or path.name == "Snakefile":
                name = str(path.relative_to(ROOT))
                assert (name if folder == "lmdyn" else f"lmdyn/{name}") in inside
    assert not [name for name in inside if name.startswith(("tests", "configs", "docs", "benchmarks"))]
    assert wheel.name.startswith(f"lmdyn-{PROJECT['version']}-")
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *map(str, wheel.parent.iterdir())],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
def test_it_runs_where_it_is_installed(wheel, tmp_path):
    """In an empty environment, with the packages that are at hand here, away from the clone."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    install = [*pip, "install", "--no-deps", "--no-index", "-q", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    at_hand = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "at_hand.pth").write_text("\n".join(at_hand) + "\n", encoding="utf-8")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    lmdyn = [str(tmp_path / "venv" / "bin" / "lmdyn")]
    where = subprocess.run([str(python), "-c", "import lmdyn; print(lmdyn.__file__)"], cwd=elsewhere, check=True,
                           capture_output=True, text=True).stdout  # fmt: skip
    assert str(tmp_path) in where
    steps = [
        "--trainer.max_steps=2",
        "--trainer.limit_val_batches=2",
        "--data.init_args.n_train_tokens=40000",
    ]
    subprocess.run([*lmdyn, "fit", "--config", "quickstart", *steps], cwd=elsewhere, check=True)
    (page,) = elsewhere.rglob("report/index.html")
    assert page.stat().st_size > 10_000
