"""Count lines of code, without docstrings, comments and blank lines, and hold them against ``budget.toml``."""

import ast
import io
import sys
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_NO_CODE = (
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
)  # fmt: skip


def counted(path: Path) -> tuple[int, int]:
    """Return the lines of code of a file and their tokens; scripts and templates have lines only."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return sum(1 for line in text.splitlines() if line.strip()), 0
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    strings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            strings |= {*range(node.body[0].lineno, node.body[0].end_lineno + 1)}
    lines: set[int] = set()
    tokens = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE and token.start[0] not in strings:
            lines |= {*range(token.start[0], token.end[0] + 1)}
            tokens += 1
    return len(lines), tokens


def files(folder: str) -> list[Path]:
    """Return our files below a folder: no vendored library."""
    found = (p for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".js", ".html", ".css"))
    return [p for p in found if "vendor" not in p.parts]


def main() -> None:
    """Print the numbers; exit with status 1 if one is above its budget."""
    budget = tomllib.loads((ROOT / "budget.toml").read_text(encoding="utf-8"))
    library, tests = files("lmdyn"), files("tests")
    claims = sum(counted(p)[0] for p in library if "claims" in p.parts)
    python = [counted(p) for p in library if p.suffix == ".py"]
    whole = sum(counted(p)[0] for p in library)
    found = {
        "lmdyn": whole - claims,
        "claims": claims,
        "tests_per_line": sum(counted(p)[0] for p in tests) / whole,
        "tokens_per_line": sum(tokens for _, tokens in python) / sum(lines for lines, _ in python),
    }
    for name, number in found.items():
        above = "  ABOVE" if number > budget[name] else ""
        print(f"{name:16} {number:10,.6g}  at most {budget[name]:,}{above}")
    sys.exit(any(number > budget[name] for name, number in found.items()))


if __name__ == "__main__":
    main()
