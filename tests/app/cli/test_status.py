"""What `pointsman status` shows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pointsman.app.cli import main, status
from pointsman.edge.serving.health_status import CanaryStatus, FactStatus, HealthStatus
from pointsman.edge.serving.kv_status import LinksStatus, PassingStatus, TransfersStatus
from pointsman.edge.serving.replica_report import ReplicaReport, ReplicasReport
from pointsman.edge.serving.status import EngineReport, KvStatus, LastFault, RequestStatus, TimesStatus, WorkerStatus


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
        "drift": None,
        "drift_reason": None,
        "kv": KvStatus("complete", "all was applied", 1.0, 16, {"gpu": 8}, 0),
    }
    return WorkerStatus(**(values | changes))


def report(**changes: Any) -> status.FrontEndStatus:
    requests = RequestStatus(
        running=3,
        waiting=0,
        finished_total=8,
        failed_total=1,
        cancelled_total=2,
        retries_total=4,
        migrations_total=0,
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
    return status.FrontEndStatus(**(values | changes))


def shown(
    document: status.FrontEndStatus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    monkeypatch.setattr(status, "call", lambda *arguments: document)
    assert main.run(["status"]) == 0
    return capsys.readouterr().out.splitlines()


def test_all_is_well(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(report(), monkeypatch, capsys)
    assert lines[0] == "pointsman 0.1.0, policy prefix"
    assert lines[1] == "models: m (1)"
    assert " ".join(lines[3].split()) == "a/0 vllm ready – complete 100 % 3 1 26 % 12 1 50 % 40 50 – –"
    assert lines[4] == (
        "requests: 3 running, 0 waiting, 8 finished, 1 failed, 2 cancelled, 4 retries; mean TTFT 12 ms, cached –"
    )


def test_how_streams_go_on_elsewhere(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    workers = [
        worker(migration="token_ids"),
        worker(id="b/0", migration="token_ids"),
        worker(id="c/0", migration="replay"),
    ]
    document = report(workers=workers)
    document.requests.migrations_total = 7
    text = "\n".join(shown(document, monkeypatch, capsys))
    assert "streams that break off go on elsewhere by token ids (a/0, b/0); by replay (c/0)" in text
    assert "4 retries, 7 migrations;" in text


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


def test_an_engine_that_does_not_tell_its_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = [EngineReport("a", "http://a:1", "ready", "", None, "GET /metrics answered 404")]
    lines = shown(report(engines=engines), monkeypatch, capsys)
    assert "a (http://a:1): its load is unknown: GET /metrics answered 404" in lines


def test_gpus_have_a_column_where_anything_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "GPU" not in shown(report(), monkeypatch, capsys)[2]
    workers = [worker(gpu_use=0.826, gpu_memory=0.9), worker(id="b/0", url="http://b:1")]
    engines = [EngineReport("b", "http://b:1", "ready", "", None, None, "GET http://x/metrics answered 500")]
    lines = shown(report(workers=workers, engines=engines), monkeypatch, capsys)
    assert "GPU" in lines[2]
    assert "26 %  83 %, 90 % full" in lines[3]
    assert "26 %" + " " * 16 + "–" in lines[4]
    assert "b (http://b:1): how busy its GPUs are is unknown: GET http://x/metrics answered 500" in lines


def test_roles_and_transfers_have_columns_where_there_are_any(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = [
        worker(role="prefill", state="prefill", passing=PassingStatus(1, "h0", 1000, out=2)),
        worker(
            id="b/0",
            role="decode",
            role_ordered=True,
            passing=PassingStatus(1, "h1", 1000, into=2, out=1, refused={"x/0": "sizes differ", "y/0": "sizes differ"}),
        ),
        worker(id="c/0", passing=PassingStatus(0, "h1")),
    ]
    document = report(
        workers=workers,
        transfers=TransfersStatus(2, 9, 1, 8, 64_000, 8_400_000_000),
        kv_links=LinksStatus(3, "h0 → h1", 1.2e5, 5.0, "h1 → h0", 9.9e6),
    )
    lines = [" ".join(line.split()) for line in shown(document, monkeypatch, capsys)]
    assert lines[2].startswith("worker kind role state health KV events running transfers queued")
    assert lines[3].startswith("a/0 vllm prefill prefill – complete 100 % 3 2 out 1 ")
    assert lines[4].startswith("b/0 vllm decode (ordered) ready – complete 100 % 3 1 out, 2 in 1 ")
    assert lines[5].startswith("c/0 vllm both ready – complete 100 % 3 – 1 ")
    text = "\n".join(lines)
    assert "a/0: prefill:" not in text
    assert "b/0 shares no requests with x/0, y/0: sizes differ" in text
    assert (
        "KV between workers: 2 transfers under way, 8 arrived with 64,000 tokens (8.40 GB), 9 prompts computed for "
        "others (1 more failed)"
    ) in text
    assert (
        "links: 3 directions between machines known, the slowest h0 → h1 0.12 GB/s after 5 ms, the fastest h1 → h0 9.9 "
        "GB/s"
    ) in text
    assert "transfers" not in "\n".join(shown(report(), monkeypatch, capsys))


def test_other_front_ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert not any("others" in line for line in shown(report(), monkeypatch, capsys))
    there = [
        ReplicaReport("x1", "h/1", 1, 212.0, complete=True, gaps=0),
        ReplicaReport("x2", "h/2", 30, 480.0, complete=True, gaps=2),
        ReplicaReport("x3", "h/3", 0, 10.0, complete=False, gaps=0),
    ]
    lines = shown(
        report(workers=[worker(others=31)], replicas=ReplicasReport("me", there, "etcd is away")), monkeypatch, capsys
    )
    assert "others" in lines[2]
    assert "31" in lines[3].split()
    assert (
        "other front ends: 3: h/1 (1 request, heard 0.2 s ago), h/2 (30 requests, heard 0.5 s ago, lost messages 2 ×), "
        "h/3 (asked for all that it has)"
    ) in lines
    assert "other front ends may not be found: etcd is away" in lines
    lines = shown(report(replicas=ReplicasReport("me", [])), monkeypatch, capsys)
    assert "other front ends: none is heard" in lines


def test_what_is_known_of_kv_events(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    off = KvStatus("off", "it publishes no KV events", 0.0, None, {}, 0)
    workers = [
        worker(),
        worker(id="b/0", kv=KvStatus("partial", "events were lost", 0.4, 16, {}, 3)),
        worker(id="c/0", kv=off),
        worker(id="d/0", kv=off),
    ]
    lines = shown(report(workers=workers), monkeypatch, capsys)
    assert "KV events" in lines[2]
    assert [line.split("ready")[1].split()[1:4] for line in lines[3:7]] == [
        ["complete", "100", "%"],
        ["partial", "40", "%"],
        ["off", "3", "1"],
        ["off", "3", "1"],
    ]
    assert lines[7:9] == [
        "KV events partial: events were lost (b/0)",
        "KV events off: it publishes no KV events (c/0, d/0)",
    ]


def health(serving: str = "yes", **changes: Any) -> HealthStatus:
    values: dict[str, Any] = {
        "live": FactStatus("yes", 60.0, "GET /health answered 200"),
        "ready": FactStatus("yes", 60.0, "GET /health answered 200"),
        "serving": FactStatus(serving, 4.0, "tokens came"),
        "standing": "trusted",
        "cause": None,
        "reason": "",
        "again_in_s": None,
        "paused_for_s": None,
        "kept": False,
        "failures_in_row": 0,
        "proof_ago_s": 1.0,
        "canary": CanaryStatus(None, "passed", "", 30.0, 40.0),
    }
    return HealthStatus(**(values | changes))


def test_health_is_one_word_until_something_is_not_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stalled = "no token for 9 s with 3 streams there"
    refused = CanaryStatus("it answered 400 to a canary: no such field", "refused", "", 3.0, None)
    off = CanaryStatus("switched off", None, "", None, None)
    workers = [
        worker(health=health(canary=off)),
        worker(id="b/0", health=health("unknown", standing="suspect", reason=stalled)),
        worker(
            id="c/0",
            state="not_serving",
            reason=stalled,
            health=health("no", standing="out", reason=stalled, again_in_s=7.6),
        ),
        worker(id="d/0", health=health("no", standing="out", reason=stalled, kept=True)),
        worker(id="e/0", health=health(canary=refused)),
    ]
    lines = shown(report(workers=workers), monkeypatch, capsys)
    assert [line.split()[3:6] for line in lines[3:8]] == [
        ["well", "complete", "100"],
        ["yes", "yes", "?"],
        ["yes", "yes", "no"],
        ["yes", "yes", "no"],
        ["well", "complete", "100"],
    ]
    assert lines[8:13] == [
        f"b/0: in doubt: {stalled}",
        f"c/0: not_serving: {stalled}",
        "c/0: tried again in 8 s",
        f"d/0: used although it should be left out, too many others are: {stalled}",
        "e/0: gets no canaries: it answered 400 to a canary: no such field",
    ]


def test_what_requests_failed_of_lately(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    last = LastFault("lost", "it closed the connection", 12.4)
    workers = [
        worker(faults={"lost": 2, "late": 1}, last_fault=last),
        worker(id="b/0", faults={"lost": 1}, last_fault=last),
        worker(id="c/0", faults={"lost": 1}, last_fault=LastFault("lost", "long ago", 4000.0)),
        worker(id="d/0"),
    ]
    lines = shown(report(workers=workers), monkeypatch, capsys)
    assert [line for line in lines if "failed there" in line or "long ago" in line] == [
        "a/0: 3 attempts failed there (late 1, lost 2), the last one 12 s ago: it closed the connection",
        "b/0: 1 attempt failed there (lost 1), the last one 12 s ago: it closed the connection",
    ]


def test_drift_and_its_likely_reason(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    drifting = worker(drift=0.31, drift_reason="its cache was reset")
    lines = shown(report(workers=[drifting]), monkeypatch, capsys)
    assert lines[3].split()[-3:] == ["31", "%", "–"]
    assert lines[4] == "a/0: cached tokens differ from what was predicted: its cache was reset"


@pytest.mark.parametrize(("factor", "shown_as"), [(1.04, "7 %"), (1.5, "7 % ×1.50")])
def test_how_far_predicted_step_times_are_off(
    factor: float, shown_as: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"samples": 128, "mape_percent": 7.2, "p50_ratio": 1.0, "p90_ratio": 1.1}
    names = ("a_ms", "b_ms_per_sequence", "c_ms_per_1000_context_tokens", "d_ms_per_prefill_token")
    times = dict.fromkeys((*names, "q_ms_per_square_token", "overhead_ms"), 1.0)
    times |= {"worker_class": "h100/llama-8b", "factor": factor, "intervals": 200.0, "step": error, "ttft": error}
    lines = shown(report(workers=[worker(times=msgspec.convert(times, TimesStatus))]), monkeypatch, capsys)
    assert "time error" in lines[2]
    assert lines[3].endswith(shown_as)


def test_several_front_ends_are_a_list_in_json(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(status, "call", lambda *arguments: report())
    monkeypatch.setattr(status, "front_ends", lambda url: [url, "http://b:2"])
    assert main.run(["status", "--json", "--admin-url", "http://a:1"]) == 0
    told = msgspec.json.decode(capsysbinary.readouterr().out)
    assert [front_end["admin_url"] for front_end in told] == ["http://a:1", "http://b:2"]
