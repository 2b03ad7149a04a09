"""The supervisor outlives what it can't do: there is nobody who would start it again."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time

import msgspec
import pytest

from pointsman.app.cli import supervisor
from pointsman.app.cli.main import EXIT_ERROR, EXIT_INTERRUPTED
from pointsman.app.cli.seats import Seat
from pointsman.app.cli.supervisor import Supervisor, _Child
from pointsman.app.cli.switchboard import Message
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.tree import ConfigTree

TREE = load_text("execution-group: {nodes: [{url: 'http://127.0.0.1:1'}]}", "c.yaml", ConfigTree)


def run(count: int, *, signals: int = 1, deaf: bool = False, patience_s: float = 60.0) -> int:
    """Until the last front end was started, which ends the whole. `deaf` ones do not stop when they are told to.

    Signals that come while one waits are one: whoever needs several to be seen sends them until it is killed.
    """

    def serve(seat: int, tree: ConfigTree, *others: object) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN if deaf else signal.SIG_DFL)
        if seat == count - 1:
            for _ in range(signals):
                os.kill(os.getppid(), signal.SIGTERM)
                time.sleep(0.3)
        time.sleep(120)
        return 0

    seats = [Seat((), ()) for _ in range(count)]
    return Supervisor([TREE] * count, seats, serve, lambda tree: patience_s, None, lambda: [TREE] * count).run()


def test_without_a_free_process_it_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fork, failures = os.fork, [OSError(errno.EAGAIN, "Resource temporarily unavailable")] * 3

    def short() -> int:
        if failures:
            raise failures.pop()
        return fork()

    monkeypatch.setattr(os, "fork", short)
    monkeypatch.setattr(supervisor, "RESTART_PAUSE_S", 0.05)
    assert run(2) == 0
    assert failures == []
    assert caplog.text.count("can't be started: Resource temporarily unavailable") == 3


def test_the_status_says_whether_front_ends_had_to_be_killed(caplog: pytest.LogCaptureFixture) -> None:
    assert run(2) == 0
    assert run(2, signals=2) == 0
    assert run(2, signals=300, deaf=True) == EXIT_INTERRUPTED
    assert "killed" not in caplog.text
    assert run(2, deaf=True, patience_s=0.2) == EXIT_ERROR
    assert "2 front ends did not stop in time and are killed" in caplog.text


def test_replacing_that_waits_for_old_front_ends_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    started: list[int] = []
    watched = Supervisor([TREE], [Seat((), ())], lambda *_: 0, lambda tree: 5.0, None, lambda: [TREE])
    monkeypatch.setattr(watched, "_fork", lambda seat, new: started.append(seat))
    watched._left = [0]
    watched._children = {pid: _Child(pid, 0, 0.0, retiring=True) for pid in (1, 2)}
    for _ in range(3):
        watched._replace_next()
    assert caplog.text.count("replacing front end 1 waits for 2 old ones to end their requests") == 1
    assert started == []
    del watched._children[1]
    watched._replace_next()
    assert started == [0]


def test_a_front_end_that_stands_still_is_killed_and_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "HUNG_S", 0.2)
    monkeypatch.setattr(supervisor, "RESTART_PAUSE_S", 0.05)
    starts, started = os.pipe()

    def serve(seat: int, tree: ConfigTree, at: Seat, line: socket.socket, rollout: object) -> int:
        os.write(started, b".")
        line.send(msgspec.json.encode(Message(beat=True)))
        if len(os.read(starts, 2)) == 2:
            os.kill(os.getppid(), signal.SIGTERM)
        else:
            os.write(started, b".")  # for the next one
        time.sleep(60)
        return 0

    assert Supervisor([TREE], [Seat((), ())], serve, lambda tree: 20.0, None, lambda: [TREE]).run() == 0
    assert "stood still for 0 s and is killed" in caplog.text
    assert f"front end 1 ended with status {-signal.SIGKILL}; starting it again" in caplog.text


def test_only_who_was_heard_and_fell_silent_stands_still(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 100.0
    killed: list[int] = []
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(supervisor.os, "kill", lambda pid, number: killed.append(pid))
    watched = Supervisor([TREE], [Seat((), ())], lambda *_: 0, lambda tree: 5.0, None, lambda: [TREE])
    loading, busy, hung = 11, 12, 13
    watched._children = {pid: _Child(pid, 0, 0.0) for pid in (loading, busy, hung)}
    watched._board.beating |= {busy, hung}
    watched._end_hung()
    now_s += 3600.0  # the supervisor itself stood still, so nobody is to blame
    assert not watched._end_hung()
    for _ in range(int(supervisor.HUNG_S)):
        now_s += 1.0
        watched._board.beating.add(busy)
        watched._end_hung()
    assert killed == [hung]
    assert caplog.text.count("stands still") == caplog.text.count("is killed") == 1
