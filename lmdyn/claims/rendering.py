"""Jinja templates of the pages of claims and phases."""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

__all__ = ["render"]


def render(package: str, template: str, **values: Any) -> str:
    """Render a template in the folder ``templates`` of a package; in HTML, all texts but ``Markup`` are escaped."""
    environment = Environment(
        loader=PackageLoader(package),
        autoescape=template.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(**values)
