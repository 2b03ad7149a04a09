from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pointsman.core.workload.reuse import reuse
from pointsman.core.workload.trace import Trace, TraceRequest
from pointsman.edge.traces.formats import read_trace
from support.recorded import recorded, write_rows


def _request(at_s: float, tokens: int, keep: int, new: list[list[int]], **changed: object) -> dict[str, object]:
    return {"t": at_s, "type": "n", "in": tokens, "out": 10, "keep": keep, "new": new, "m": "model"} | changed


def _session(name: str, *requests: dict[str, object], **changed: object) -> dict[str, object]:
    return {
        "id": name,
        "block_size": 64,
        "tool_tokens": 100,
        "system_tokens": 60,
        "requests": list(requests),
    } | changed


def _read(tmp_path: Path, *rows: object) -> tuple[Trace, list[str]]:
    loaded = read_trace(write_rows(tmp_path / "a.jsonl", rows))
    assert loaded.format == "agentic"
    return loaded.trace, loaded.problems.describe()


def test_lists_of_blocks_are_put_together(tmp_path: Path) -> None:
    trace, lines = _read(
        tmp_path,
        _session(
            "s",
            _request(0, 330, 0, [[1, 5]], api_time=2.0),
            _request(9, 400, 4, [[6, 1], [9, 1]], think_time=4.0, api_time=1.5, ttft=0.5),
            _request(20, 400, 6, []),
            _request(30, 400, 2, [[3, 2]]),
        ),
    )
    blocks = [request.block_ids for request in trace.requests]
    assert [len(ids) for ids in blocks] == [5, 6, 6, 4]
    assert blocks[1][:4] == blocks[0][:4]
    assert blocks[2] == blocks[1]
    # Ids that the session had before are the same blocks again.
    assert blocks[3] == blocks[0][:4]
    assert len({block for ids in blocks for block in ids}) == 7
    assert [(r.at_ms, r.after, r.gap_ms) for r in trace.requests] == [
        (0, None, 0),
        (9000, 0, 4000),
        (20_000, 1, 9500),
        (30_000, 2, 10_000),
    ]
    assert lines == ["all sessions start at 0 s: start them as you like with `pointsman trace scale`"]


def test_observed_times_are_kept(tmp_path: Path) -> None:
    row = _session("s", _request(1, 70, 0, [[1, 1]], api_time=2.0, ttft=0.5), _request(9, 70, 1, []))
    observed = read_trace(write_rows(tmp_path / "a.jsonl", [row])).observed
    assert [(o.arrival_ms, o.ttft_ms, o.e2e_ms) for o in observed] == [(0, 500, 2000), (8000, None, None)]


def test_equal_tools_and_instructions_are_shared_and_nothing_else(tmp_path: Path) -> None:
    requests = _request(0, 400, 0, [[1, 6]])
    trace, _ = _read(
        tmp_path,
        _session("a", requests),
        _session("b", requests),
        _session("c", requests, system_tokens=200),
        _session("d", requests, tool_tokens=300),
    )
    a, b, c, d = (request.block_ids for request in trace.requests)
    # 160 tokens lead: two full blocks, the first of tools alone.
    assert a[:2] == b[:2]
    assert set(a[2:]).isdisjoint(b[2:])
    assert a[:1] == c[:1]
    assert set(a[1:]).isdisjoint(c[1:])
    assert set(a).isdisjoint(d)


def test_sub_agents_are_sessions_that_wait_for_their_parent(tmp_path: Path) -> None:
    inner = {
        "t": 5.0,
        "type": "subagent",
        "agent_id": "agent_001",
        "tool_tokens": 64,
        "system_tokens": 0,
        "requests": [_request(0, 130, 0, [[50, 2]]), _request(3, 200, 2, [[52, 1]], think_time=1.0)],
    }
    trace, _ = _read(
        tmp_path,
        _session(
            "s", _request(0, 200, 0, [[1, 3]], api_time=2.0), inner, _request(40, 260, 3, [[4, 1]], think_time=9.0)
        ),
    )
    assert [(r.session, r.at_ms, r.after, r.gap_ms) for r in trace.requests] == [
        ("s", 0, None, 0),
        ("s/agent_001", 5000, 0, 3000),
        ("s/agent_001", 8000, 1, 1000),
        ("s", 40_000, 0, 9000),
    ]
    assert trace.requests[3].block_ids[:3] == trace.requests[0].block_ids


def test_bad_requests_are_named_and_the_session_goes_on(tmp_path: Path) -> None:
    trace, lines = _read(
        tmp_path,
        _session(
            "s",
            _request(0, 130, 0, [[1, 2]]),
            _request(1, 130, 9, []),
            _request(2, 130, 2, [], out=0),
            _request(3, 130, 0, [[1, 10**9]]),
            _request(4, 200, 2, [[3, 1]]),
            _request(5, 200, 0, [[1, 1]]),
            _request(6, 200, 1, [[5, 1]]),
        ),
        _session("t", _request(0, 130, 0, [[1, 2]]), block_size=16),
        {"id": "u", "block_size": 64, "requests": 3},
    )
    assert [(r.prompt_tokens, r.after) for r in trace.requests] == [(130, None), (200, 0), (200, 1), (200, 2)]
    # Which blocks the unreadable requests have is not known, so neither is what comes after shares with them.
    assert [len(r.block_ids) for r in trace.requests] == [2, 0, 1, 2]
    assert lines[0] == "1 requests share blocks with one that can't be read: nothing is known of what they share"
    assert lines[2:] == [
        "5 of 9 rows are left out",
        "  line 1: s, request 2: keep: 9 blocks of the 2 that the request before it has",
        "  line 1: s, request 3: its output has 0 tokens; at least 1 and at most 2147483647 are expected",
        "  line 1: s, request 4: new: more blocks than tokens, or a run of less than one",
        "  line 2: block_size: 16 where sessions before have 64",
        "  line 3: requests: expected `array`, got `int`",
    ]


def test_the_recorded_sessions() -> None:
    loaded = read_trace(recorded("agentic/claude_code_sessions.jsonl"))
    requests = loaded.trace.requests
    assert (len(requests), loaded.problems.left_out) == (22_690, 9)
    sessions = {request.session for request in requests}
    assert len({session for session in sessions if session and "/" not in session}) == 346
    assert len(sessions) == 346 + 53
    marks = np.percentile([request.prompt_tokens for request in requests], (10, 50, 90, 99))
    assert marks == pytest.approx([41_000, 99_000, 164_000, 486_000], rel=0.01)
    marks = np.percentile([request.output_tokens for request in requests], (10, 50, 90, 99))
    assert marks == pytest.approx([105, 219, 866, 3_650], rel=0.01)
    repeated = total = 0
    before: dict[str | None, TraceRequest] = {}
    for request in requests:
        total += request.prompt_tokens
        if request.session in before:
            one, other = before[request.session].block_ids, request.block_ids
            low, high = 0, min(len(one), len(other))
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if one[middle - 1] == other[middle - 1] else (low, middle - 1)
            repeated += 64 * low
        before[request.session] = request
    assert total == pytest.approx(2.57e9, rel=0.005)
    assert repeated / total == pytest.approx(0.959, abs=0.002)
    some = Trace("some", tuple(r for r in requests[:400] if r.after is None), 64)
    assert reuse(some).share > 0.05
