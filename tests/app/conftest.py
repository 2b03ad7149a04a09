"""The command `pointsman` as a process, and a check that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pointsman.app.cli.model_places import model_places
from pointsman.edge.engines.local.model_file import resolve
from pointsman.edge.engines.local.model_spec import DEFAULT_MODEL
from support.running import Running

Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `pointsman ARGUMENTS…` in a directory of the test; whatever is left at the end is killed."""
    running: list[Running] = []

    def begin(*arguments: str, **environ: str) -> Running:
        running.append(Running(arguments, tmp_path, environ))
        return running[-1]

    yield begin
    for process in running:
        process.close()


@pytest.fixture(scope="session")
def real_model() -> Path:
    """The default model's file; downloaded once where it isn't there yet."""
    return asyncio.run(resolve(DEFAULT_MODEL, model_places(os.environ))).path
