"""Sphinx: ``python -m sphinx -b html -n -W docs docs/_build``."""

import importlib
import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "lmdyn"
author = "the lmdyn authors"
copyright = author
version = release = installed_version("lmdyn")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "mathml",  # of docs/_ext
    "shared_navigation",  # … too
    "sphinx_gallery.gen_gallery",
]
html_math_renderer = "mathml"
html_theme = "furo"
html_title = "lmdyn"
html_static_path = ["_static"]
html_css_files = ["lmdyn.css"]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_ext", "_templates", "records", "gallery"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sys.path[:0] = [str(Path(__file__).parent / name) for name in ("_ext", "gallery")]  # what scripts import
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": "/plot_",
    "ignore_pattern": "shared_runs",
    "subsection_order": [
        f"gallery/{name}"
        for name in (
            "words",
            "similarity",
            "probing",
            "interdependence",
            "parameters",
            "dynamics",
            "preference",
            "reading",
        )
    ],
    "within_subsection_order": "FileNameSortKey",
    "reset_modules": ("matplotlib", "gallery_pages.reset"),
    "capture_repr": ("_repr_html_",),
    "backreferences_dir": "auto_gallery/backreferences",
    "doc_module": ("lmdyn",),
    "min_reported_time": 60,
    "write_computation_times": False,
    "show_memory": False,
    "show_signature": False,
    "plot_gallery": "True",
    "run_stale_examples": True,  # their text did not change, but what they import may have
}

autosummary_generate = True
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # shapes are no markup; each attribute shows its type
napoleon_custom_sections = [("Layouts", "params_style")]

nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!lmdyn\b).*")]  # names of other projects, and shapes
suppress_warnings = ["misc.highlighting_failure"]

# the first that has a name: `Trajectory` on a page is the observer, not the orbit of a map in lmdyn.analysis
_PUBLIC = ("lmdyn.callbacks", "lmdyn.analysis", "lmdyn.models", "lmdyn.datamodules")


def _exists(name: str) -> bool:
    """Whether a dotted name is something of lmdyn's, public or not."""
    parts = name.split(".")
    for i in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:i]))
        except ImportError:
            continue
        return all(hasattr(found, part) and (found := getattr(found, part)) is not None for part in parts[i:])
    return False


def _public_reference(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Link a deep path to the public name of the same thing; what is there and not public stays without a link."""
    target = str(node.get("reftarget", ""))
    if node.get("refdomain") != "py" or not target.startswith("lmdyn."):
        return None
    for package in _PUBLIC:
        if not target.startswith(f"{package}."):
            continue
        exported = importlib.import_module(package).__all__
        parts = target.split(".")
        for i, part in enumerate(parts):
            if part in exported:
                name = ".".join([package, *parts[i:]])
                if name != target:
                    found = env.get_domain("py").resolve_xref(
                        env, node["refdoc"], app.builder, node["reftype"], name, node, contnode
                    )
                    if found is not None:
                        return found
    return contnode if _exists(target) else None


def _plain_signs(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Bars and stars of mathematics, as in |λ| and (*shape, d), are none of the markup."""
    for i, line in enumerate(lines):
        if line.lstrip().startswith((">>>", "...")):
            continue
        parts = line.split("``")  # every second one is code
        parts[::2] = [re.sub(r"\*(?=\w+[,)])", r"\\*", part.replace("|", "\\|")) for part in parts[::2]]
        lines[i] = "``".join(parts)


def _linked(code: re.Match[str]) -> str:
    """A public name of lmdyn's leads to its reference; other code stays as it is."""
    for package in _PUBLIC:
        if code[1] in importlib.import_module(package).__all__:
            return f"{{py:obj}}`~{package}.{code[1]}`"
    return code[0]


def _links_out(app: Any, name: str, source: list[str]) -> None:
    """Pages are read in the repository too: links to what stands beside ``docs/`` there."""
    text = re.sub(r"\]\((?:\.\./)+benchmarks/README\.md", "](/benchmarks.md", source[0])
    text = re.sub(r"\[([^\]]+)\]\((?:\.\./)*records(?:/[^)]*)?\)", r"\1", text)  # data: not part of the site
    if not name.startswith(("results/", "reference/", "auto_gallery/")):
        blocks = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)  # every second one is code
        blocks[::2] = [re.sub(r"(?<![`}\[])`(\w+)`(?!`)", _linked, block) for block in blocks[::2]]
        text = "".join(blocks)
    source[0] = text


def _on_its_page(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """What an observer records is a table of its page."""
    return True if name == "recorded" and obj else None


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-skip-member", _on_its_page)
    app.connect("source-read", _links_out)
    app.connect("autodoc-process-docstring", _plain_signs, priority=400)  # before napoleon
    app.connect("missing-reference", _public_reference)
