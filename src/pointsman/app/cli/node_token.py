"""The token that nodes and those who ask them share, from the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TypeVar

import click

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.secret import Secret

F = TypeVar("F", bound=Callable[..., object])

NODE_TOKEN_VARIABLE = "POINTSMAN_NODE_TOKEN"
"""Where the token is, unless `--token-env` names another variable."""


def token_option(command: F) -> F:
    """The option `--token-env`."""
    return click.option(
        "--token-env",
        metavar="NAME",
        help=f"Environment variable with the token that all nodes share.  [default: {NODE_TOKEN_VARIABLE}, if set]",
    )(command)


def node_token(variable: str | None, environ: Mapping[str, str] = os.environ) -> Secret | None:
    """The token; None: none is set. Raises ConfigError that names the variable and never holds its value."""
    name = variable or NODE_TOKEN_VARIABLE
    text = environ.get(name, "")
    if not text.strip():
        if variable is not None:
            raise ConfigError(f"--token-env {variable}: that environment variable is not set, or empty; export it")
        return None
    try:
        return Secret.parse(text)
    except ValueError as error:
        raise ConfigError(f"{name}: expected {error}") from None
