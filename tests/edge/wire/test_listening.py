from __future__ import annotations

import socket

import pytest

from pointsman.core.model.errors import EngineError
from pointsman.edge.wire.listening import listen_error, refuse_taken

NOWHERE = "nowhere.invalid"


def test_a_host_that_nobody_knows_is_called_that() -> None:
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    said = f"can't listen on {NOWHERE}:80: no such host (Name or service not known); choose another --port"
    assert str(listen_error(NOWHERE, 80, "--port", unknown)) == said


def test_a_port_that_is_taken_is_named_in_the_systems_words() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EngineError, match=f"127.0.0.1:{port}: Address already in use; choose another --here"):
            refuse_taken("127.0.0.1", port, "--here")


def test_what_asyncio_wraps_around_an_error_is_left_out() -> None:
    wrapped = OSError(98, "error while attempting to bind on address ('127.0.0.1', 1): address already in use")
    assert str(listen_error("127.0.0.1", 1, "--port", wrapped)).count("already in use") == 1


def test_an_error_without_a_number_is_told_as_it_is() -> None:
    assert "no luck" in str(listen_error("h", 1, "--port", OSError("no luck")))
