from __future__ import annotations

from pathlib import Path

import pytest

from pointsman.core.model.errors import TraceError
from pointsman.edge.traces.access_log import parse_fields
from pointsman.edge.traces.formats import read_trace
from pointsman.edge.traces.loaded import LoadedTrace
from pointsman.edge.traces.source import ReadOptions
from support.recorded import write_rows


def _read(tmp_path: Path, *rows: object, fields: dict[str, str] | None = None) -> LoadedTrace:
    path = write_rows(tmp_path / "log.jsonl", rows)
    return read_trace(path, "access-log" if fields else None, ReadOptions(fields=fields or {}))


def test_litellm(tmp_path: Path) -> None:
    row = {
        "id": "x",
        "trace_id": "t-1",
        "status": "success",
        "prompt_tokens": 120,
        "completion_tokens": 30,
        "startTime": 1700000000.5,
        "endTime": 1700000002.5,
        "completionStartTime": 1700000000.75,
        "model": "llama",
        "end_user": "team-a",
        "api_base": "http://10.0.0.1:8000",
        "metadata": {"user_api_key_team_id": None},
    }
    later = {
        "standard_logging_object": row
        | {"startTime": 1700000001.5, "completionStartTime": None, "endTime": 1700000009.5}
    }
    loaded = _read(tmp_path, row, later)
    assert loaded.format == "access-log"
    first, second = loaded.trace.requests
    assert (first.at_ms, first.prompt_tokens, first.output_tokens) == (0, 120, 30)
    assert (first.session, first.tenant, first.model) == ("t-1", "team-a", "llama")
    assert second.at_ms == 1000
    timed = loaded.observed[0]
    assert (timed.ttft_ms, timed.e2e_ms, timed.worker) == (250, 2000, "http://10.0.0.1:8000")


def test_answers_of_the_api_as_they_are(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}}
    rows = [{"id": "c", "object": "chat.completion", "created": 1700000000 + n, "usage": usage} for n in (5, 0)]
    loaded = _read(tmp_path, *rows)
    assert [request.at_ms for request in loaded.trace.requests] == [0, 5000]
    assert [observed.cached_tokens for observed in loaded.observed] == [8, 8]
    assert not loaded.problems.describe()


def test_nginx_writes_when_the_answer_is_done(tmp_path: Path) -> None:
    rows = [
        {
            "time_iso8601": f"2026-01-31T12:00:{second:02}+01:00",
            "request_time": f"{took:.3f}",
            "status": "200",
            "prompt_tokens": "50",
            "completion_tokens": "5",
            "upstream_addr": "10.0.0.7:8000",
            "session_id": "-",
        }
        for second, took in ((10, 1.0), (20, 15.0))
    ]
    loaded = _read(tmp_path, *rows)
    assert [(r.at_ms, r.session) for r in loaded.trace.requests] == [(0, None), (4000, None)]
    assert [observed.e2e_ms for observed in loaded.observed] == [15_000, 1000]
    assert not loaded.problems.describe()
    del rows[0]["request_time"]
    assert _read(tmp_path, *rows).problems.notes == [
        "1 rows say when the answer was done and not how long it took: they are taken to come when it was done"
    ]


def test_names_of_ones_own(tmp_path: Path) -> None:
    rows = [{"when": "2026-01-31T12:00:00Z", "tok": {"a": 5, "b": 6}, "took": 2, "who": "me"}]
    fields = parse_fields(("time=when,prompt=tok.a", "output=tok.b,e2e_s=took,session=who"))
    loaded = _read(tmp_path, *rows, fields=fields)
    request = loaded.trace.requests[0]
    assert (request.prompt_tokens, request.output_tokens, request.session) == (5, 6, "me")
    assert loaded.observed[0].e2e_ms == 2000
    with pytest.raises(TraceError, match=r"--fields tokens=x: expected FIELD=NAME; fields are time, end, prompt"):
        parse_fields(("tokens=x",))


def test_rows_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    good = {"ts": 1700000000, "usage": {"prompt_tokens": 1, "completion_tokens": 1}, "latency_ms": 5}
    loaded = _read(
        tmp_path,
        good,
        {"ts": 1700000001, "status": 503},
        good | {"ts": "soon"},
        good | {"usage": {"prompt_tokens": 1.5, "completion_tokens": 1}},
        good | {"latency_ms": -5},
        good | {"latency_ms": "fast"},
        [1],
    )
    assert [problem.text.split(";")[0] for problem in loaded.problems.named] == [
        "no usage.prompt_tokens or a like name (tell it with --fields prompt=NAME)",
        "ts: 'soon' is no time",
        "usage.prompt_tokens: expected a whole number, not 1.5",
        "its time to the end is -5 ms",
        "latency_ms: expected a number, not 'fast'",
        "expected `object`, got `array`",
    ]
    assert "its status is 503" in loaded.problems.named[0].text


def test_only_some_rows_are_timed(tmp_path: Path) -> None:
    row = {"ts": 1700000000, "prompt_tokens": 3, "output_tokens": 4}
    loaded = _read(tmp_path, row, row | {"ttft": 0.25})
    assert [observed.ttft_ms for observed in loaded.observed] == [None, 250]
    assert _read(tmp_path, row).observed == ()
