"""Answers of an admin port that are none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest

from pointsman.app.cli.admin_client import call
from pointsman.core.model.errors import EngineError


class Document(msgspec.Struct):
    value: int


ANSWERS = {
    "/good": (200, b'{"value": 7, "more": 1}'),
    "/other": (200, b'{"value": "seven"}'),
    "/html": (200, b"<html>"),
    "/refused": (400, b'{"error": {"message": "unknown policy"}}'),
    "/broken": (500, b"oops"),
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = ANSWERS[self.path]
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        return


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_document(url: str) -> None:
    assert call("GET", f"{url}/", "/good", Document).value == 7
    assert call("PUT", url, "/any", Document, {"value": 8}).value == 8


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/other", "no answer of a pointsman of this version"),
        ("/html", "no answer of a pointsman of this version"),
        ("/refused", "/refused: unknown policy"),
        ("/broken", "/broken: status 500"),
    ],
)
def test_no_document(url: str, path: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        call("GET", url, path, Document)
