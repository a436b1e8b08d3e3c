"""Formulas as MathML, which browsers draw themselves: no script, no font and no request to anywhere.

Sphinx's own ways are MathJax from another host, and images by LaTeX.
"""

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert


def mathml(latex: str, display: str) -> str:
    """A formula in LaTeX as an element ``math``.

    Args:
        latex: without dollar signs.
        display: ``inline`` or ``block``.

    Raises:
        ValueError: a command that is not known, which would be drawn as its name.
    """
    found = convert(" ".join(latex.split()), display=display)
    if "\\" in found:
        raise ValueError(f"expected LaTeX that latex2mathml knows, got {latex!r}: {found}")
    return found


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    translator.body.append(f"{mathml(node.astext(), 'block')}</div>\n")
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
