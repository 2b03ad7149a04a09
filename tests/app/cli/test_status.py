"""What `pointsman status` shows."""

from __future__ import annotations

from typing import Any

import pytest

from pointsman.app.cli import main, status
from pointsman.edge.serving.status import EngineReport, RequestStatus, Status, WorkerStatus


def worker(**changes: Any) -> WorkerStatus:
    values: dict[str, Any] = {
        "id": "a/0",
        "url": "http://a:1",
        "kind": "vllm",
        "models": ["m"],
        "state": "ready",
        "reason": "GET /health answered 200",
        "running": 3,
        "foreign": 0,
        "queued": 1,
        "kv_use": 0.256,
        "kv_capacity_tokens": 100,
        "requests_total": 12,
        "failed_total": 1,
        "cancelled_total": 0,
        "cached_share": 0.5,
        "predicted_cached_tokens": 40,
        "reported_cached_tokens": 50,
    }
    return WorkerStatus(**(values | changes))


def report(**changes: Any) -> Status:
    requests = RequestStatus(
        running=3,
        waiting=0,
        finished_total=8,
        failed_total=1,
        cancelled_total=2,
        retries_total=4,
        missing_usage_total=0,
        ttft_mean_ms=12.3,
        cached_share=None,
    )
    values: dict[str, Any] = {
        "version": "0.1.0",
        "policy": "prefix",
        "policy_in_force": "prefix",
        "models": {"m": ["a/0"]},
        "workers": [worker()],
        "engines": [],
        "requests": requests,
    }
    return Status(**(values | changes))


def shown(document: Status, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setattr(status, "call", lambda *arguments: document)
    assert main.run(["status"]) == 0
    return capsys.readouterr().out.splitlines()


def test_all_is_well(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(report(), monkeypatch, capsys)
    assert lines[0] == "pointsman 0.1.0, policy prefix"
    assert lines[1] == "models: m (1)"
    assert lines[3].split() == ["a/0", "vllm", "ready", "3", "1", "26", "%", "12", "1", "50", "%", "40", "50"]
    assert lines[4] == (
        "requests: 3 running, 0 waiting, 8 finished, 1 failed, 2 cancelled, 4 retries; mean TTFT 12 ms, cached –"
    )


def test_the_policy_in_force_is_told_where_it_differs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "policy auto → prefix" in shown(report(policy="auto"), monkeypatch, capsys)[0]


def test_reasons(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    long_name = "engine-with-a-long-name-" * 4
    workers = [
        worker(foreign=2),
        worker(id=f"{long_name}/0", url="http://b:1", state="unreachable", reason="[connection] refused"),
    ]
    engines = [
        EngineReport("a", "http://a:1", "ready", "", None, None),
        EngineReport("c", "http://c:1", "looking", "no answer from [c]", None, None),
    ]
    lines = shown(report(workers=workers, engines=engines, models={}), monkeypatch, capsys)
    assert "models: none yet" in lines
    assert any("3 + 2" in line for line in lines)
    assert any(f"{long_name}/0" in line and "unreachable" in line for line in lines)
    assert f"{long_name}/0: unreachable: [connection] refused" in lines
    assert "c (http://c:1): looking: no answer from [c]" in lines
    assert not any(line.startswith("a (http://a:1)") for line in lines)
