"""Answers of an admin port that are none."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
import trustme

from pointsman.app.cli import admin_client
from pointsman.app.cli.admin_client import NoFrontEndError, call
from pointsman.app.cli.admin_trust import AdminTrust
from pointsman.core.model.errors import ConfigError, EngineError


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


def test_one_that_stands_still_is_not_to_be_started(monkeypatch) -> None:
    monkeypatch.setattr(admin_client, "_LIMIT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(NoFrontEndError, match=r"\(nothing for 0 s\); it may stand still") as caught:
            call("GET", url, "/good", Document)
    assert "start one" not in str(caught.value)
    with pytest.raises(NoFrontEndError, match=r"connection refused.*start one with"):
        call("GET", url, "/good", Document)


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[str, trustme.CA]]:
    """A port with https that wants certificates, and the authority of both sides."""
    ca = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    ca.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}", ca
    server.shutdown()
    thread.join()
    server.server_close()


class TestTls:
    def test_a_certificate_is_shown(self, secure, tmp_path: Path, monkeypatch) -> None:
        url, ca = secure
        ca.cert_pem.write_to_path(tmp_path / "ca.pem")
        ca.issue_cert("me@here").private_key_and_cert_chain_pem.write_to_path(tmp_path / "me.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        monkeypatch.setenv("POINTSMAN_ADMIN_CERTIFICATE", str(tmp_path / "me.pem"))
        assert call("GET", url, "/good", Document).value == 7

    def test_what_is_missing_is_named(self, secure, tmp_path: Path, monkeypatch) -> None:
        url, ca = secure
        with pytest.raises(
            EngineError, match=r"its certificate is not trusted \(.*\); SSL_CERT_FILE may name"
        ) as caught:
            call("GET", url, "/good", Document)
        assert "engine_tls" not in str(caught.value)
        ca.cert_pem.write_to_path(tmp_path / "ca.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        with pytest.raises(EngineError, match="it may want a certificate: POINTSMAN_ADMIN_CERTIFICATE"):
            call("GET", url, "/good", Document)
        monkeypatch.setenv("POINTSMAN_ADMIN_CERTIFICATE", str(tmp_path / "none.pem"))
        with pytest.raises(
            ConfigError, match=r"POINTSMAN_ADMIN_CERTIFICATE: can't use certificate '.*none\.pem': No such"
        ):
            call("GET", url, "/good", Document)

    def test_files_that_became_bad_leave_what_was_read_before(self, tmp_path: Path) -> None:
        ca, file = trustme.CA(), tmp_path / "me.pem"
        ca.issue_cert("me@here").private_key_and_cert_chain_pem.write_to_path(file)
        trust = AdminTrust({"POINTSMAN_ADMIN_CERTIFICATE": str(file)})
        before = trust.context
        assert trust.files() == [file]
        file.write_text("half")
        (fault,) = trust.renew()
        assert fault.startswith("POINTSMAN_ADMIN_CERTIFICATE: can't use certificate")
        assert trust.context is before
        ca.issue_cert("me@here").private_key_and_cert_chain_pem.write_to_path(file)
        assert trust.renew() == []
        assert trust.context is not before

    def test_http_where_https_is_spoken(self, secure) -> None:
        with pytest.raises(EngineError, match="its URL may begin with https://"):
            call("GET", secure[0].replace("https", "http"), "/good", Document)
