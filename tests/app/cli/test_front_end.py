"""One front end in this process."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from pointsman.app.cli.front_end import serve_here
from pointsman.app.cli.signals import Signals
from pointsman.edge.configuration.control_plane import ControlPlane
from pointsman.edge.configuration.tree import ConfigTree
from support.waiting import eventually


@pytest.fixture(autouse=True)
def collected_again() -> Iterator[None]:
    yield
    gc.unfreeze()


async def test_full_collections_leave_out_what_start_up_made(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    tree = ConfigTree(control_plane=ControlPlane(listen_port=0, admin_port=0))
    serving = asyncio.create_task(serve_here(tree, Signals(), lambda: tree))

    def listening() -> bool:
        said.append(capsys.readouterr().out)
        return "pointsman serves" in "".join(said)

    await eventually(listening)
    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects()) < gc.get_freeze_count() / 10
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
