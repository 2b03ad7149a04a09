"""`pointsman engine --join` as a process: registered, stopped with a stream in flight, started again."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trustme

from pointsman.app.cli import main
from support.etcd_server import EtcdServer
from support.free_ports import free_ports

LIMIT_S = 60.0


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def engines(admin_url: str) -> dict[str, str]:
    """Name → state, `draining` where it drains."""
    try:
        found = get(f"{admin_url}/v1/workers")["engines"]
    except urllib.error.URLError:  # it is not there yet
        return {"nobody": "answers"}
    return {engine["name"]: "draining" if engine["draining"] else engine["state"] for engine in found}


def stream(url: str, tokens: int) -> tuple[int, bytes]:
    body = {"model": "m", "prompt": "hello", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def in_flight(admin_url: str) -> int:
    return sum(engine["requests"] for engine in get(f"{admin_url}/v1/workers")["engines"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--join", "zk://a"], "--join 'zk://a': expected http://HOST:PORT of a front end's admin port"),
        (
            ["--join", "etcd"],
            "--join etcd: which one? Name it: etcd://HOST:PORT, or a --join-config",
        ),
        (["--join", "etcd://a", "--host", "0.0.0.0"], "--advertise is missing: with --host 0.0.0.0 nobody knows"),
        (["--join", "etcd://a", "--advertise", "10.0.0.1"], "--advertise '10.0.0.1': expected the base URL"),
        (["--join", "etcd://a", "--join-ttl", "1s"], "--join-ttl 1s: expected whole seconds, 3s or more"),
        (["--join", "etcd://a", "--drain-grace", "5"], "--drain-grace '5': expected a duration"),
        (["--join", "etcd://a", "--advertise", "http://0.0.0.0:8000"], "0.0.0.0 is no address under which others"),
        (["--join", "etcd://a", "--advertise", "http://None:8000"], "none is no address under which others"),
        (["--name", "x"], "--name: is for --join, which is missing"),
        (["--role", "decode"], "--role: is for --join, which is missing"),
        (["--topology", "rack=r"], "--topology: is for --join, which is missing"),
        (["--join", "etcd://a", "--topology", "rack"], "--topology 'rack': expected LEVEL=NAME, such as rack=r1"),
        (["--drain-grace", "5m"], "--drain-grace: is for --join, which is missing"),
        (["--join-ttl", "20s"], "--join-ttl: is for --join, which is missing"),
        (["--join", "etcd://a", "--name", "a/b", "--port", "0"], "--name: name: expected text"),
        (["--join", "etcd://a", "--join-config", "absent.yaml"], "absent.yaml: can't be read"),
    ],
)
def test_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["engine", "--kind", "sim", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_in_and_out_over_the_admin_port(start: Callable[..., Any]) -> None:
    front_end = start("serve", "--wait-for-engines", "--port", "0", "--admin-port", "0")
    line = front_end.line("pointsman serves")
    url, admin_url = line.split()[2].removesuffix("/v1"), line.split("admin: ")[1].split(";")[0]
    common = ("engine", "--kind", "sim", "--model", "m", "--port", "0", "--join", admin_url)
    first = start(*common, "--name", "first", "--profile", "h100/llama-8b", "--role", "decode")
    second = start(*common, "--name", "second")
    first.line("engine sim serves")
    eventually(lambda: engines(admin_url) == {"first": "ready", "second": "ready"})
    assert {one["name"]: one["role"] for one in get(f"{admin_url}/v1/workers")["engines"]} == {
        "first": "decode",
        "second": "both",
    }
    assert second.stop(signal.SIGTERM) == 0
    eventually(lambda: engines(admin_url) == {"first": "ready"})

    with ThreadPoolExecutor() as pool:
        running = pool.submit(stream, url, 600)  # some six seconds
        eventually(lambda: in_flight(admin_url) == 1)
        first.process.send_signal(signal.SIGTERM)
        eventually(lambda: engines(admin_url) == {"first": "draining"})
        first.process.send_signal(signal.SIGSTOP)  # so that it has not ended meanwhile
        status, body = stream(url, 1)
        assert status == 503, body
        first.process.send_signal(signal.SIGCONT)
        status, body = running.result()
    assert status == 200
    assert body.endswith(b"data: [DONE]\n\n")
    assert body.count(b'"text"') >= 600
    assert first.process.wait(LIMIT_S) == 0
    eventually(lambda: engines(admin_url) == {})
    assert front_end.stop() == 0


def test_an_admin_port_with_a_certificate(start: Callable[..., Any], tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    authority.issue_cert("engine@here").private_key_and_cert_chain_pem.write_to_path(tmp_path / "engine.pem")
    (tmp_path / "config.yaml").write_text(
        "control-plane: {admin_tls: {certificate: server.pem, key: server.pem, client_ca: authority.pem}}\n"
        "auth: {admin_key: secret}\n"
    )
    shown = {"SSL_CERT_FILE": "authority.pem", "POINTSMAN_ADMIN_CERTIFICATE": "engine.pem"}
    front_end = start("serve", "--config", "config.yaml", "--wait-for-engines", "--port", "0", "--admin-port", "0")
    admin_url = front_end.line("pointsman serves").split("admin: ")[1].split(";")[0]
    assert admin_url.startswith("https://")
    joining = ("engine", "--kind", "sim", "--model", "m", "--port", "0", "--join", admin_url)
    stranger = start(*joining, "--name", "stranger")
    assert "SSL_CERT_FILE" in stranger.line("its certificate is not trusted")
    without_key = start(*joining, "--name", "without", **shown)
    without_key.line("set POINTSMAN_ADMIN_KEY")
    friend = start(*joining, "--name", "friend", **shown, POINTSMAN_ADMIN_KEY="secret")
    friend.line("registered at https://")
    for process in (stranger, without_key, friend, front_end):
        assert process.stop() == 0


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path)
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.mark.faults
def test_through_etcd_frozen_and_killed(start: Callable[..., Any], etcd: EtcdServer, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        f"discovery: {{etcd: true, vanish_grace: 1s}}\netcd: {{endpoints: ['{etcd.url}'], fleet: test}}\n"
    )
    front_end = start("serve", "--config", "config.yaml", "--port", "0", "--admin-port", "0")
    admin_url = front_end.line("pointsman serves").split("admin: ")[1].split(";")[0]
    common = ("engine", "--kind", "sim", "--model", "m", "--port", "0", "--join-ttl", "3s")
    one = start(*common, "--name", "one", "--join", f"etcd://{etcd.url.removeprefix('http://')}/test")
    two = start(*common, "--name", "two", "--join", "etcd", "--join-config", "config.yaml")
    eventually(lambda: engines(admin_url) == {"one": "ready", "two": "ready"})

    # Stopped for longer than its lease lasts it is forgotten, and comes back by itself.
    one.process.send_signal(signal.SIGSTOP)
    eventually(lambda: engines(admin_url) == {"two": "ready"})
    one.process.send_signal(signal.SIGCONT)
    eventually(lambda: engines(admin_url) == {"one": "ready", "two": "ready"})
    one.line("registering again")

    # Killed, its lease ends; told to stop, it is gone at once.
    one.process.kill()
    eventually(lambda: engines(admin_url) == {"two": "ready"})
    assert two.stop(signal.SIGTERM) == 0
    eventually(lambda: engines(admin_url) == {})
    assert front_end.stop() == 0


def test_a_second_signal_cuts(start: Callable[..., Any], unused_tcp_port: int) -> None:
    engine = start(
        *("engine", "--kind", "sim", "--model", "m", "--port", "0", "--profile", "h100/llama-8b"),
        *("--join", f"http://127.0.0.1:{unused_tcp_port}"),
    )
    url = engine.url("engine sim serves")
    engine.line("not registered at")
    with ThreadPoolExecutor() as pool:
        running = pool.submit(stream, url, 30_000)
        eventually(lambda: get(f"{url}/load")["server_load"] == 1)
        engine.process.send_signal(signal.SIGTERM)
        engine.line("requests run, they get 600 s")
        engine.process.send_signal(signal.SIGTERM)
        engine.line("1 requests are cut")
        assert engine.process.wait(LIMIT_S) == 0
        with pytest.raises((OSError, http.client.HTTPException)):
            running.result()


@pytest.mark.faults
def test_front_ends_of_one_port_and_those_that_replace_them(start: Callable[..., Any]) -> None:
    """The engine tells one of them; the others hear it from there, and so do new ones."""
    port = free_ports(3)
    urls = [f"http://127.0.0.1:{port + 1}", f"http://127.0.0.1:{port + 2}"]
    front_ends = start(
        *("serve", "--wait-for-engines", "--processes", "2"), *("--port", str(port), "--admin-port", str(port + 1))
    )
    common = ("engine", "--kind", "sim", "--model", "m", "--port", "0", "--join-ttl", "60s")
    engine = start(*common, "--name", "a", "--join", urls[1])
    engine.line("registered at")
    for url in urls:
        eventually(lambda url=url: engines(url) == {"a": "ready"})  # type: ignore[misc]

    front_ends.process.send_signal(signal.SIGHUP)
    for number in (1, 2):
        front_ends.line(f"front end {number} is replaced")
    for url in urls:
        assert engines(url) == {"a": "ready"}
    assert stream(f"http://127.0.0.1:{port}", 1)[0] == 200
    assert engine.stop(signal.SIGTERM) == 0
    for url in urls:
        eventually(lambda url=url: engines(url) == {})  # type: ignore[misc]
    assert front_ends.stop() == 0
