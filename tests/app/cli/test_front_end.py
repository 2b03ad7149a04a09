"""One front end in this process."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pointsman.app.cli import switchboard
from pointsman.app.cli.front_end import Membership, serve_here
from pointsman.app.cli.seats import take_seat
from pointsman.app.cli.signals import Signals
from pointsman.app.cli.switchboard import Message
from pointsman.core.trials.arms import By
from pointsman.edge.configuration.control_plane import ControlPlane
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.rollout_order import Orders, RolloutOrder
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


async def test_a_member_says_that_it_works_from_its_start_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it was told that another one has its place, and waits for its last streams."""
    monkeypatch.setattr(switchboard, "_BEAT_S", 0.01)
    monkeypatch.setattr("pointsman.app.cli.front_end.SETTLE_S", 0.0)
    bus = tmp_path / "bus"
    bus.mkdir(mode=0o700)
    tree = ConfigTree(control_plane=ControlPlane(listen_port=0, admin_port=0))
    seat = take_seat("127.0.0.1", 0, "127.0.0.1", 0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard: list[Message] = []

    def hears(wanted: str) -> bool:
        while True:
            try:
                heard.append(msgspec.json.decode(ours.recv(4096), type=Message))
            except BlockingIOError:
                return any(getattr(message, wanted) for message in heard)

    async def hears_anew(wanted: str) -> None:
        hears(wanted)
        heard.clear()
        await eventually(lambda: hears(wanted))

    for end in (ours, theirs):
        end.setblocking(False)
    retiring, held = asyncio.Event(), asyncio.Event()

    async def last_streams(self: object, grace_s: float) -> None:
        retiring.set()
        await held.wait()

    monkeypatch.setattr("pointsman.edge.serving.shutdown.Shutdown.retire", last_streams)
    member = Membership(theirs, Orders("auto"), 1, seat, bus)
    with ours, theirs:
        serving = asyncio.create_task(serve_here(tree, Signals(supervised=True), lambda: tree, member))
        await eventually(lambda: hears("admin_url"))
        await hears_anew("beat")
        ours.send(msgspec.json.encode(Message(retire=True)))
        await asyncio.wait_for(retiring.wait(), 30)
        await hears_anew("beat")
        held.set()
        assert await serving == 0
        seat.close()


@pytest.mark.parametrize("in_force", [Orders("prefix"), Orders("kv", RolloutOrder("random", 0.5, By.REQUEST))])
async def test_a_reload_leaves_a_member_that_began_with_what_was_set_by_hand_as_it_is(
    in_force: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Policy and rollout of the file are not new to a front end that was started with others instead of them."""
    monkeypatch.setattr("pointsman.app.cli.front_end.SETTLE_S", 0.0)
    bus = tmp_path / "bus"
    bus.mkdir(mode=0o700)
    routing = "routing: {policy: auto, rollout: {policy: kv}, shadow: [prefix]}"
    tree = load_text(f"control-plane: {{listen_port: 0, admin_port: 0}}\n{routing}", "c.yaml", ConfigTree)
    begun: list[Frontend] = []
    start = Frontend.start

    async def begin(self: Frontend) -> None:
        await start(self)
        begun.append(self)

    monkeypatch.setattr(Frontend, "start", begin)
    seat = take_seat("127.0.0.1", 0, "127.0.0.1", 0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in (ours, theirs):
        end.setblocking(False)
    member = Membership(theirs, in_force, 2, seat, bus)
    with ours, theirs:
        serving = asyncio.create_task(serve_here(tree, Signals(supervised=True), lambda: tree, member))
        await eventually(lambda: bool(begun))
        (frontend,) = begun
        assert frontend.policy.orders() == in_force
        report = await frontend.reload("test")
        assert (report.changed, report.needs_restart) == ([], [])
        assert frontend.policy.orders() == in_force
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        seat.close()
