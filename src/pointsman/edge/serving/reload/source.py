"""Where a front end's configuration comes from, and how it is read again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.serving.settings import FrontendSettings


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """All of it may be called from another thread, and raises PointsmanError for what can't be used."""

    tree: ConfigTree
    """That the front end started with."""
    reread: Callable[[], ConfigTree]
    """The file as it is now, under the flags that were given."""
    settings: Callable[[ConfigTree], FrontendSettings]
    reloaded: Callable[[], None] = lambda: None
    """To be told that another configuration is in force."""
    roll_over: Callable[[], None] | None = None
    """Asks for front ends to be replaced one by one; None: this one is alone."""
