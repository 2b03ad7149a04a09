from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.trace import Trace, TraceRequest
from pointsman.edge.traces.block_runs import common_prefix, from_runs, to_runs
from pointsman.edge.traces.canonical import write_trace
from pointsman.edge.traces.formats import read_trace
from pointsman.edge.traces.observed import Observed
from pointsman.edge.traces.source import ReadOptions
from support.recorded import recorded, write_rows

_times = st.floats(0, 1e12)
_names = st.none() | st.text(max_size=5)
_ids = st.integers(0, 2**60)


@st.composite
def _traces(draw: st.DrawFn) -> tuple[Trace, tuple[Observed, ...]]:
    requests: list[TraceRequest] = []
    for position, at_ms in enumerate(sorted(draw(st.lists(_times, min_size=1, max_size=8)))):
        prompt = draw(st.integers(1, 40))
        most = -(-prompt // 4)
        base = requests[draw(st.integers(0, position - 1))].block_ids if position and draw(st.booleans()) else ()
        ids = (base + tuple(draw(st.lists(_ids | st.integers(0, 5), max_size=most))))[:most]
        request = TraceRequest(
            at_ms,
            prompt,
            draw(st.integers(1, 99)),
            ids,
            tuple(draw(st.lists(_ids, max_size=2))) if prompt > 3 else (),
            draw(_names),
            draw(st.none() | st.integers(0, position - 1)) if position else None,
            draw(_times),
            draw(_names),
            draw(_names),
            draw(st.integers(-5, 5)),
        )
        requests.append(request)
    observed = draw(st.booleans())
    maybe = st.none() | _times
    rows = tuple(
        Observed(draw(_times), draw(maybe), draw(maybe), 1, 2, 3, "w", 4.5, tuple(draw(st.lists(_times, max_size=2))))
        for _ in requests
        if observed
    )
    blocks = 4 if any(request.block_ids for request in requests) else 0
    return Trace(draw(st.text(min_size=1, max_size=5)), tuple(requests), blocks, draw(st.text(max_size=5))), rows


@given(_traces(), st.sampled_from(["t.jsonl", "t.jsonl.gz"]))
@settings(max_examples=60, deadline=None)
def test_nothing_of_a_trace_is_lost(made: tuple[Trace, tuple[Observed, ...]], name: str) -> None:
    trace, observed = made
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write_trace(trace, path, observed)
        first = path.read_bytes()
        loaded = read_trace(path)
        write_trace(loaded.trace, path, loaded.observed)
        assert path.read_bytes() == first
        assert [file.name for file in Path(folder).iterdir()] == [name]
    assert loaded.trace == trace
    assert loaded.observed == observed
    assert not loaded.problems.describe()


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_runs_and_prefixes(ids: list[int], one: list[int], other: list[int]) -> None:
    assert from_runs(to_runs(ids)) == tuple(ids)
    naive = 0
    while naive < min(len(one), len(other)) and one[naive] == other[naive]:
        naive += 1
    assert common_prefix(one, other) == naive


def _written(tmp_path: Path, *requests: dict[str, object], **header: object) -> Path:
    head = {"pointsman_trace": 1, "name": "n", "block_tokens": 4} | header
    rows = [{"at_ms": 0.0, "prompt_tokens": 8, "output_tokens": 1} | request for request in requests]
    return write_rows(tmp_path / "t.jsonl", [head, *rows])


def test_what_depends_on_a_bad_row_is_named_too(tmp_path: Path) -> None:
    path = _written(
        tmp_path,
        {"blocks": [[0, 2]]},
        {"prompt_tokens": "8"},
        {"like": [1, 1]},
        {"like": [0, 1], "blocks": [[7, 1]], "after": 1, "gap_ms": 5},
        {"like": [0, 1], "after": 0, "gap_ms": 5},
    )
    loaded = read_trace(path)
    assert [(problem.line, problem.text) for problem in loaded.problems.named] == [
        (3, "prompt_tokens: expected `int`, got `str`"),
        (4, "like: request 1, whose blocks it starts with, can't be read"),
    ]
    assert loaded.problems.notes == [
        "line 5: the request that it waits for is not in the trace; it comes at its own time"
    ]
    assert [(r.block_ids, r.after, r.gap_ms) for r in loaded.trace.requests] == [
        ((0, 1), None, 0.0),
        ((0, 7), None, 0.0),
        ((0,), 0, 5.0),
    ]


@pytest.mark.parametrize(
    "row",
    [
        {"blocks": [[0, 10**12]]},
        {"blocks": [[0, 0]]},
        {"answer": [[0, 10**12]]},
        {"like": [0, 3]},
        {"like": [5, 1]},
        {"like": [-1, 1]},
        {"blocks": [[0, 3]]},
        {"gap_ms": -1},
        {"at_ms": 1e999},
    ],
)
def test_a_damaged_row_is_left_out(tmp_path: Path, row: dict[str, object]) -> None:
    loaded = read_trace(_written(tmp_path, {"blocks": [[0, 2]]}, row))
    assert (len(loaded.trace), loaded.problems.left_out) == (1, 1)


def test_a_file_that_was_cut_off_says_so(tmp_path: Path) -> None:
    path = _written(tmp_path, {}, requests=2)
    assert "header says 2 requests, it holds 1" in read_trace(path).problems.notes[0]
    with pytest.raises(TraceError, match="cut off or edited"):
        read_trace(path, options=ReadOptions(strict=True))


def test_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="trace format 2, this version reads 1"):
        read_trace(_written(tmp_path, {}, pointsman_trace=2))


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    trace = Trace("n", (TraceRequest(0, 1, 1),))
    with pytest.raises(TraceError, match="can't be written"):
        write_trace(trace, tmp_path / "no" / "t.jsonl")
    (tmp_path / "folder").mkdir()
    with pytest.raises(TraceError, match="can't be written"):
        write_trace(trace, tmp_path / "folder")
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]


def test_prefixes_are_written_once(tmp_path: Path) -> None:
    ids = tuple(range(0, 2000, 2))
    turns = tuple(TraceRequest(float(n), 4000, 1, ids[: 990 + n], session="s") for n in range(10))
    write_trace(Trace("n", turns, 4), tmp_path / "t")
    lines = (tmp_path / "t").read_text().splitlines()
    assert json.loads(lines[5])["like"] == [3, 993]
    assert json.loads(lines[5])["blocks"] == [[1986, 1]]
    assert len(lines[5]) < 150


def test_a_recorded_trace_comes_back(tmp_path: Path) -> None:
    loaded = read_trace(recorded("mooncake/conversation_trace.jsonl"))
    write_trace(loaded.trace, tmp_path / "t.jsonl")
    assert read_trace(tmp_path / "t.jsonl").trace == loaded.trace
