"""Templates of pages, with the style that they share."""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template


def page_template(package: str, name: str) -> Template:
    """A template of a package; `{% include "style.css.j2" %}` is the style. A name that is not given is an error."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader("pointsman.app.charts", ".")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)
