"""`pointsman serve` with `status` and `policies`, all as processes, before simulated engines."""

from __future__ import annotations

import json
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from pointsman.app.cli import admin_client, main
from pointsman.app.cli.siblings import front_ends_with
from support.free_ports import free_ports

Start = Callable[..., Any]
LIMIT_S = 60.0


def post(url: str, body: dict[str, object]) -> tuple[int, str]:
    """Status and the worker that answered."""
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return answer.status, answer.headers["x-pointsman-worker"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


def ready(url: str) -> None:
    """Wait until the front end would take a request."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=LIMIT_S):
                return
        except OSError:
            time.sleep(0.02)
    raise AssertionError(f"{url} is never ready")


def test_serve_status_policies(start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engines = [start("engine", "--kind", "sim", "--port", "0", "--model", "m") for _ in range(2)]
    urls = [engine.url("engine sim serves") for engine in engines]
    front = start("serve", "--engine", urls[0], "--engine", urls[1], "--port", "0", "--admin-port", "0")
    line = front.line("pointsman serves")
    url, admin = line.split()[2].removesuffix("/v1"), line.split("admin: ")[1].split(";")[0]
    ready(url)
    wait_until(lambda: ready_workers(admin) == 2)
    code, worker = post(url, {"model": "m", "prompt": "hello", "max_tokens": 2})
    assert code == 200
    assert worker.endswith("/0")
    wait_until(lambda: status_of(admin)["requests"]["finished_total"] == 1)  # an answer ends before it is counted

    assert main.run(["status", "--admin-url", admin]) == 0
    table = capsys.readouterr().out
    assert "policy auto → cost" in table
    assert worker in table
    assert "1 finished" in table

    assert main.run(["status", "--admin-url", admin, "--json", str(tmp_path / "s.json")]) == 0
    status = json.loads((tmp_path / "s.json").read_text())
    assert sorted(w["url"] for w in status["workers"]) == sorted(urls)
    assert status["requests"]["finished_total"] == 1
    capsys.readouterr()

    assert main.run(["policies", "set", "round_robin", "--admin-url", admin]) == 0
    assert capsys.readouterr().out == "policy: auto → round_robin\n"
    assert main.run(["policies", "list", "--admin-url", admin]) == 0
    assert "* round_robin\n" in capsys.readouterr().out
    workers = {post(url, {"model": "m", "prompt": "hello", "max_tokens": 1})[1] for _ in range(4)}
    assert len(workers) == 2

    assert main.run(["policies", "set", "none_such", "--admin-url", admin]) == 2
    assert "none_such" in capsys.readouterr().err
    assert front.stop() == 0
    assert front.family() == []


def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_ports(1)
    for arguments in (["status"], ["policies", "list"], ["policies", "set", "prefix"]):
        assert main.run([*arguments, "--admin-url", f"http://127.0.0.1:{port}"]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"pointsman: no front end answers at http://127.0.0.1:{port} (connection refused)")
        assert said.count("\n") == 1
    assert main.run(["status", "--admin-url", "nonsense"]) == 2
    assert "expected http://host:port" in capsys.readouterr().err


REPLICAS = "a file in which front ends tell each other of their load"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no engines: give --engine URL"),
        (["--engine", "nonsense"], "--engine: execution-group.nodes[0].url: expected the base URL"),
        (
            ["--engine", "http://a:1", "--port", "99999"],
            "--port: control-plane.listen_port: expected an integer from 0",
        ),
        (
            ["--engine", "http://a:1", "--policy", "session"],
            "--policy: routing.policy: session needs routing.route_key",
        ),
        (["--config", "absent.yaml"], "absent.yaml: can't be read"),
        (["--engine", "http://a:1", "--port", "0", "--processes", "2"], "--processes: several front ends can't share"),
        (
            ["--engine", "http://a:1", "--port", "8089", "--admin-port", "8088", "--processes", "2"],
            "of front end 2: 8089 is",
        ),
        (["--engine", "http://a:1", "--port", "1", "--admin-port", "65535", "--processes", "2"], "is above 65535"),
        (
            [
                "--config",
                REPLICAS,
                "--engine",
                "http://a:1",
                "--port",
                "8080",
                "--admin-port",
                "8081",
                "--processes",
                "2",
            ],
            "port 8082, which is one of --admin-port; choose another port in replicas.listen",
        ),
        (
            ["--config", REPLICAS, "--engine", "http://a:1", "--port", "8083", "--admin-port", "0", "--processes", "2"],
            "front end 2 would tell others of its load at port 8083, which is one of --port",
        ),
    ],
)
def test_refused_before_anything_starts(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if REPLICAS in arguments:
        arguments[arguments.index(REPLICAS)] = str(tmp_path / "c.yaml")
        (tmp_path / "c.yaml").write_text(
            "replicas: {listen: 'tcp://127.0.0.1:8082', peers: ['tcp://127.0.0.1:9082']}\n"
        )
    assert main.run(["serve", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("pointsman: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_taken_port_is_one_line(processes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ["serve", "--engine", "http://127.0.0.1:1", "--port", port, "--admin-port", "0"]
        assert main.run([*arguments, "--log-level", "error", "--processes", processes]) == 2
    said = capsys.readouterr().err
    assert f"can't listen on 127.0.0.1:{port}" in said
    assert said.count("\n") == 1


def test_processes_share_a_port_and_a_policy_and_are_watched(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    engine = start("engine", "--kind", "sim", "--port", "0", "--model", "m").url("engine sim serves")
    port = free_ports(3)
    ports = ["--port", str(port), "--admin-port", str(port + 1)]
    front = start("serve", "--engine", engine, *ports, "--processes", "2", "--log-level", "warning")
    assert f"admin ports {port + 1} to {port + 2}" in front.line("pointsman serves")
    url = f"http://127.0.0.1:{port}"
    for admin_port in (port + 1, port + 2):
        wait_for_admin(admin_port, "m")
    assert {post(url, {"model": "m", "prompt": "x", "max_tokens": 1})[0] for _ in range(8)} == {200}

    admin_urls = [f"http://127.0.0.1:{admin_port}" for admin_port in (port + 1, port + 2)]
    wait_until(lambda: front_ends_with(admin_urls[1], tmp_path / "pointsman") == admin_urls[::-1])
    assert main.run(["status", "--admin-url", admin_urls[1]]) == 0
    shown = capsys.readouterr().out
    assert all(f"at {admin_url} (of 2 front ends), policy auto" in shown for admin_url in admin_urls)
    assert main.run(["policies", "set", "random", "--admin-url", admin_urls[0].replace("127.0.0.1", "localhost")]) == 0
    assert capsys.readouterr().out == "policy: auto → random at 2 front ends\n"
    assert [policy_at(url) for url in admin_urls] == ["random", "random"]
    put_policy(admin_urls[1], "round_robin")  # whoever asks one front end, not this program, switches all too
    # The one that was asked may for a moment obey what was told it before, and is told the last word again.
    wait_until(lambda: [policy_at(admin_url) for admin_url in admin_urls] == ["round_robin", "round_robin"])

    (child,) = [p for p in front.family() if p.pid != front.process.pid and listens_at(p, port + 1)]
    front.process.send_signal(signal.SIGSTOP)  # else the killed one may be back before both commands have run
    child.send_signal(signal.SIGKILL)
    wait_until(lambda: child.status() == psutil.STATUS_ZOMBIE)
    monkeypatch.setattr(admin_client, "_LIMIT_S", 1.0)
    assert main.run(["policies", "set", "least_loaded", "--admin-url", admin_urls[1]]) == 2
    said = capsys.readouterr().err
    assert "round_robin → least_loaded at 1 of 2 front ends" in said
    # Who calls waits in the queue of the supervisor's socket for the next front end.
    assert f"not at {admin_urls[0]} (nothing for 1 s)" in said
    assert main.run(["status", "--admin-url", admin_urls[1]]) == 2
    assert f"no front end answers at {admin_urls[0]}" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    front.process.send_signal(signal.SIGCONT)
    front.line("starting it again")
    for admin_port in (port + 1, port + 2):
        wait_for_admin(admin_port)
    wait_until(lambda: [policy_at(url) for url in admin_urls] == ["least_loaded", "least_loaded"])
    assert len(front.family()) == 3
    assert front.stop(signal.SIGTERM) == 0
    assert front.family() == []
    assert list((tmp_path / "pointsman").iterdir()) == []


def listens_at(process: psutil.Process, port: int) -> bool:
    return any(c.laddr.port == port for c in process.net_connections() if c.status == psutil.CONN_LISTEN)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def status_of(admin_url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{admin_url}/v1/status", timeout=LIMIT_S) as answer:
        return dict(json.load(answer))


def ready_workers(admin_url: str) -> int:
    return sum(worker["state"] == "ready" for worker in status_of(admin_url)["workers"])


def policy_at(admin_url: str) -> str:
    with urllib.request.urlopen(f"{admin_url}/v1/policies", timeout=LIMIT_S) as answer:
        name: str = json.load(answer)["policy"]
    return name


def put_policy(admin_url: str, name: str) -> None:
    body = json.dumps({"policy": name}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{admin_url}/v1/policy", body, method="PUT"), timeout=LIMIT_S):
        pass


def wait_for_admin(port: int, *models: str) -> None:
    """Wait until the front end with that admin port runs, and has ready workers of the models."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/status", timeout=LIMIT_S) as answer:
                workers = json.load(answer)["workers"]
        except OSError:
            workers = None
        if workers is not None and set(models) <= {m for w in workers if w["state"] == "ready" for m in w["models"]}:
            return
        time.sleep(0.02)
    raise AssertionError(f"admin port {port} never answers, or never has {models}")


def test_a_killed_supervisor_leaves_no_front_end(start: Start) -> None:
    port = free_ports(3)
    ports = ["--port", str(port), "--admin-port", str(port + 1)]
    front = start("serve", "--engine", "http://127.0.0.1:1", *ports, "--processes", "2")
    for admin_port in (port + 1, port + 2):
        wait_for_admin(admin_port)
    front.process.kill()
    front.process.wait(30)
    deadline = time.monotonic() + LIMIT_S
    while front.family() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert front.family() == []
