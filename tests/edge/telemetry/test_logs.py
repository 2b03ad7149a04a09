"""One line an event, on the stream that was named."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from pointsman.core.model.errors import PolicyError
from pointsman.edge.telemetry.logs import ROOT, set_up_logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    logger = logging.getLogger(ROOT)
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)


def test_level_and_room_and_message() -> None:
    stream = io.StringIO()
    set_up_logs("info", stream)
    logging.getLogger("pointsman.serving").info("listening on %s", "x")
    logging.getLogger("pointsman.serving").debug("not this")
    logging.getLogger("elsewhere").error("nor this")
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("INFO    pointsman.serving: listening on x")


def test_set_up_twice_says_it_once() -> None:
    first, second = io.StringIO(), io.StringIO()
    set_up_logs("info", first)
    set_up_logs("warning", second)
    logging.getLogger("pointsman.x").warning("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_what_others_sent_cannot_begin_a_line() -> None:
    stream = io.StringIO()
    set_up_logs("info", stream)
    logging.getLogger("pointsman.x").warning("bad name %s", "a\n23:59:59.000 ERROR forged")
    assert stream.getvalue().count("\n") == 1
    assert "a\\n23:59:59.000 ERROR forged" in stream.getvalue()


def test_a_traceback_keeps_its_lines() -> None:
    stream = io.StringIO()
    set_up_logs("info", stream)
    try:
        raise PolicyError("oh")
    except PolicyError:
        logging.getLogger("pointsman.x").exception("failed")
    assert "Traceback" in stream.getvalue()
    assert stream.getvalue().splitlines()[-1] == "PolicyError: oh"


def test_what_an_unexpected_exception_says_is_left_out() -> None:
    """It may be what a client wrote; the place and the kind of the fault are shown."""
    stream = io.StringIO()
    set_up_logs("debug", stream)
    try:
        try:
            {}["a prompt"]
        except KeyError as error:
            raise ConnectionResetError(104, "reset by peer") from error
    except OSError:
        logging.getLogger("pointsman.x").exception("failed")
    said = stream.getvalue()
    assert "a prompt" not in said.replace('{}["a prompt"]', "")
    assert "KeyError: (what it says is left out)" in said
    assert said.splitlines()[-1] == "ConnectionResetError: [Errno 104] reset by peer"
    assert said.count("test_logs.py") == 2
