"""The supervisor outlives what it can't do: there is nobody who would start it again."""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import Any

import pytest

from pointsman.app.cli import supervisor
from pointsman.app.cli.seats import Seat
from pointsman.app.cli.supervisor import Supervisor
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.tree import ConfigTree

TREE = load_text("execution-group: {nodes: [{url: 'http://127.0.0.1:1'}]}", "c.yaml", ConfigTree)


def run(count: int, reread: Any = lambda: [TREE]) -> int:
    """Until the last front end was started, which ends the whole."""

    def serve(seat: int, tree: ConfigTree, *others: object) -> int:
        if seat == count - 1:
            os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(30)
        return 0

    seats = [Seat((), ()) for _ in range(count)]
    return Supervisor([TREE] * count, seats, serve, lambda tree: 5.0, None, reread).run()


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
