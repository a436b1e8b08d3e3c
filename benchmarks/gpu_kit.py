"""All that is to be measured on a machine with one CUDA card, in the order of worth; benchmarks/gpu.sh runs it.

Each step is a command in a process of its own, with a limit. What is done is written at once to ``--out``:
results.json, results.md and each step's output. Run again, it goes on with the steps that are not done; those that
failed or ran out of time are tried again. Steps that cannot end within ``--minutes`` are left out, and said so.

Run: ``benchmarks/gpu.sh`` (at most 40 minutes); ``benchmarks/gpu.sh --smoke`` on any machine (tiny sizes, minutes)
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from tables import machine, table

HERE = Path(__file__).parent
ROOT = HERE.parent


@dataclass(frozen=True)
class Step:
    """What is measured.

    Attributes:
        name: of the step, and its output's file.
        question: what it answers.
        command: arguments of this Python.
        limit: minutes.
        smoke: arguments instead, on any machine.
    """

    name: str
    question: str
    command: tuple[str, ...]
    limit: float
    smoke: tuple[str, ...]


@dataclass
class Result:
    """What came of a step."""

    name: str
    question: str
    status: str
    seconds: float
    command: list[str]
    tables: list[list[dict[str, str]]] = field(default_factory=list)


def script(name: str, *arguments: str, limit: float, question: str, file: str | None = None) -> Step:
    """A step by one of the scripts here."""
    path = str(HERE / f"{file or name}.py")
    return Step(name, question, (path, *arguments), limit, (path, "--smoke"))


PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0")
STEPS = (
    Step(
        "tests", "do the tests that need a card pass?",
        (*PYTEST, "-m", "gpu", str(ROOT / "tests")), 6,
        (*PYTEST, "-m", "gpu", str(ROOT / "tests" / "test_gpu.py")),
    ),
    script(
        "pretraining", "--size", "base", "--family", "bert", "--length", "512", "--batch", "32", "--compile", limit=7,
        question="share of the measured matrix-product peak at base size, bfloat16, compiled: at least 45 %?",
    ),
    script("observers_device", limit=6, question="what does an observation cost, against CPU and a training step?"),
    script("long_term", limit=5, question="a network of a million steps × 64 sentences: within 70 s?"),
    script("dynamics", "--reps", "3", limit=4, question="rate of the map of one token against the full map"),
    script(
        "two_tower", "--hidden-size", "768", "--layers", "12", "--length", "128", "--reps", "3", limit=6,
        question="two towers at published size: at most 1.1 of their parts?",
    ),
    script("sweep_precision", limit=3, question="a similarity sweep in float64 and float32"),
    script("token_learning", "--layers", "12", "--hidden-size", "768", "--heads", "12", limit=3,
           question="TokenLearning against one forward pass a word"),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu_results"), help="folder of what is found")
    parser.add_argument("--minutes", type=float, default=40, help="of all steps together")
    parser.add_argument("--only", nargs="+", choices=[step.name for step in STEPS], help="these steps")
    parser.add_argument(
        "--smoke", action="store_true", help="tiny sizes on any machine; the numbers mean nothing"
    )
    args = parser.parse_args()
    if not args.smoke and not torch.cuda.is_available():
        sys.exit("no CUDA device is here: --smoke runs all steps with tiny sizes on the CPU")
    args.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * args.minutes
    about = about_machine(args.smoke)
    results = done_before(args.out, about)
    for step in STEPS:
        if args.only and step.name not in args.only:
            continue
        if step.name in results and results[step.name].status == "done":
            print(f"{step.name}: done before", flush=True)
            continue
        left = (end - time.monotonic()) / 60
        if left < step.limit and not args.smoke:
            results[step.name] = Result(
                step.name, step.question, f"left out: {left:.0f} minutes left", 0.0, []
            )
        else:
            results[step.name] = run(step, args)
        print(f"{step.name}: {results[step.name].status}, {results[step.name].seconds:.0f} s", flush=True)
        write(args.out, about, results)
    write(args.out, about, results)
    print(f"written: {args.out}/results.md, {args.out}/results.json")
    if any(result.status.startswith("failed") for result in results.values()):
        sys.exit(1)


def about_machine(smoke: bool) -> dict[str, str]:
    """What numbers depend on."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "commit": commit.stdout.strip() or "unknown",
        "sizes": "tiny" if smoke else "full",
    }


def done_before(out: Path, about: dict[str, str]) -> dict[str, Result]:
    """Results of the same machine, versions, sizes and commit; of others none."""
    file = out / "results.json"
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text())
    except ValueError:
        return {}
    if found.get("about") != about:
        print(f"{file} is of another machine, commit or size: all steps are run", flush=True)
        return {}
    return {step["name"]: Result(**step) for step in found["steps"]}


def run(step: Step, args: argparse.Namespace) -> Result:
    """The step, with its output kept."""
    command = [sys.executable, *(step.smoke if args.smoke else step.command)]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    began = time.monotonic()
    with (args.out / f"{step.name}.txt").open("w+") as output:
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=env,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=60 * step.limit,
                check=False,
            )
            # pytest's 5: no test; on a machine without a card all are skipped, which is 0
            status = "done" if done.returncode == 0 else f"failed: exit status {done.returncode}"
        except subprocess.TimeoutExpired:
            status = f"failed: more than {step.limit:g} minutes"
        output.seek(0)
        text = output.read()
    shown = [part.replace(str(ROOT) + os.sep, "") for part in command[1:]]
    return Result(step.name, step.question, status, time.monotonic() - began, shown, tables_of(text))


def tables_of(text: str) -> list[list[dict[str, str]]]:
    """Markdown tables as lists of rows.

    Example:
        >>> tables_of("x\\n| a | b |\\n| --- | --- |\\n| 1 | 2 |\\n")
        [[{'a': '1', 'b': '2'}]]
    """
    found: list[list[dict[str, str]]] = []
    header: list[str] | None = None
    before: list[str] | None = None
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")] if line.startswith("|") else None
        if cells is None:
            header = before = None
        elif header is not None:
            found[-1].append(dict(zip(header, cells, strict=False)))
        elif before is not None and set("".join(cells)) <= set("-: "):
            header = before
            found.append([])
        else:
            before = cells
    return found


def write(out: Path, about: dict[str, str], results: dict[str, Result]) -> None:
    """results.json and results.md."""
    steps = [results[step.name] for step in STEPS if step.name in results]
    file = out / "results.json"
    part = file.with_suffix(".part")
    part.write_text(json.dumps({"about": about, "steps": [asdict(step) for step in steps]}, indent=1) + "\n")
    part.replace(file)
    lines = [f"{about['device']}; {machine()}; commit {about['commit'][:10]}; sizes: {about['sizes']}", ""]
    lines.append(table(["step", "question", "status", "seconds"],
                       [[s.name, s.question, s.status, f"{s.seconds:.0f}"] for s in steps]))  # fmt: skip
    for step in steps:
        lines += ["", f"## {step.name}", "", f"`python {' '.join(step.command)}`", ""] if step.command else []
        for rows in step.tables:
            if rows:
                lines += [table(list(rows[0]), [list(row.values()) for row in rows]), ""]
    (out / "results.md").write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("interrupted: steps that are done are kept, and the same command goes on", file=sys.stderr)
        sys.exit(130)
