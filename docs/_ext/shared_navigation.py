"""The list of all pages, beside each of them, is made once for the pages of a folder; each then marks its own place.

Sphinx resolves the list anew for each page, and furo parses it: most of the time of a build.
"""

import posixpath
import re
from functools import cache
from typing import Any

__all__ = ["marked", "setup"]

_PART = re.compile(r"<(ul|li)([^>]*)>|</(?:ul|li)>")
_BOX = 'class="toctree-checkbox"'  # which folds a part of the list


def marked(pages: str, name: str) -> str:
    """Return furo's list with one of its pages marked, and all that this page is in unfolded."""
    link = f'<a class="reference internal" href="{name}.html">'
    before, found, after = pages.partition(link)
    if not found:
        return pages
    around: list[re.Match[str]] = []
    for part in _PART.finditer(before):
        around = around[:-1] if part[1] is None else [*around, part]
    made, last = f'<a class="current reference internal" href="#">{after}', " current-page"
    for part in reversed(around):
        made, before = before[part.end() :] + made, before[: part.start()]
        classes = re.findall(r'[\w-]+(?=[\w -]*")', part[2])
        if "has-children" in classes:
            made = made.replace(_BOX, f'checked="" {_BOX}', 1)
        if part[1] == "li":
            level, *others = classes
            made = f'<li class="{" ".join([level, "current", *others])}{last}">{made}'
            last = ""
        else:
            made = f'<ul class="current">{made}'
    return before + made


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""

    @cache
    def of_folder(folder: str, **how: Any) -> str:
        return str(app.builder._get_local_toctree(posixpath.join(folder, "-"), **how))

    def share(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
        context["toctree"] = lambda **how: of_folder(posixpath.dirname(page), **how)

    def mark(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
        tree = context["furo_navigation_tree"]
        context["furo_navigation_tree"] = marked(tree, posixpath.basename(page))

    app.connect("html-page-context", share, priority=400)  # before furo
    app.connect("html-page-context", mark, priority=600)  # after it
    return {"parallel_read_safe": True, "parallel_write_safe": True}
