"""One line an event, on the stream that was named."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Iterator

import pytest
from aiohttp import web

from pointsman.core.model.errors import PolicyError
from pointsman.edge.telemetry.logs import ROOT, set_up_logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    logger = logging.getLogger(ROOT)
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    root, of_all = logging.getLogger(), list(logging.getLogger().handlers)
    yield
    root.handlers = of_all
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)


def test_level_and_room_and_message() -> None:
    stream = io.StringIO()
    set_up_logs("info", stream)
    logging.getLogger("pointsman.serving").info("listening on %s", "x")
    logging.getLogger("pointsman.serving").debug("not this")
    logging.getLogger("elsewhere").info("nor this")
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


def test_what_a_library_says_is_cut_after_its_first_line() -> None:
    """asyncio shows below it what it was called with."""
    stream = io.StringIO()
    for _ in range(2):
        set_up_logs("info", stream)
    logging.getLogger("elsewhere").error("it failed\nhandle: <Handle f(b'a prompt')>")
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("ERROR   elsewhere: it failed")


async def test_what_is_no_http_does_not_bring_its_keys_into_the_log() -> None:
    """aiohttp shows the line of the header that it could not read."""
    stream = io.StringIO()
    set_up_logs("debug", stream)
    runner = web.AppRunner(web.Application())
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        reader, writer = await asyncio.open_connection(*runner.addresses[0])
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nAuthorization Bearer a-key\r\n\r\n")
        assert (await reader.readline()).endswith(b"400 Bad Request\r\n")
        writer.close()
    finally:
        await runner.cleanup()
    assert "Error handling request" in stream.getvalue()
    assert "a-key" not in stream.getvalue()
