from __future__ import annotations

from pathlib import Path

import pytest

from pointsman.core.model.errors import TraceError
from pointsman.edge.traces.formats import read_trace
from pointsman.edge.traces.source import ReadOptions
from support.recorded import recorded, write_rows


def _row(at: float, tokens: int, ids: list[int], **changed: object) -> dict[str, object]:
    return {"timestamp": at, "input_length": tokens, "output_length": 5, "hash_ids": ids} | changed


def test_times_are_kept_and_blocks_have_512_tokens(tmp_path: Path) -> None:
    loaded = read_trace(write_rows(tmp_path / "m.jsonl", [_row(7, 600, [0, 1]), _row(9, 1024, [0, 2])]))
    assert loaded.format == "mooncake"
    assert loaded.trace.block_tokens == 512
    assert [(r.at_ms, r.prompt_tokens, r.block_ids) for r in loaded.trace.requests] == [
        (7, 600, (0, 1)),
        (9, 1024, (0, 2)),
    ]


def test_another_block_size_is_found_or_given(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "m.jsonl", [_row(0, 33, [0, 1, 2]), _row(1, 64, [0, 1, 3, 4])])
    loaded = read_trace(path)
    assert loaded.trace.block_tokens == 16
    assert "blocks of 16 tokens" in loaded.problems.describe()[0]
    assert read_trace(path, options=ReadOptions(block_tokens=8)).trace.block_tokens == 8
    odd = write_rows(tmp_path / "odd.jsonl", [_row(0, 10, [0, 1, 2])])
    with pytest.raises(TraceError, match="--block-tokens"):
        read_trace(odd)


def test_rows_that_go_back_in_time_are_sorted_and_named(tmp_path: Path) -> None:
    rows = [_row(100, 10, [0]), _row(40, 20, [1]), _row(130, 30, [2]), _row(-1, 40, [3])]
    loaded = read_trace(write_rows(tmp_path / "m.jsonl", rows))
    assert [request.prompt_tokens for request in loaded.trace.requests] == [20, 10, 30]
    lines = loaded.problems.describe()
    assert "1 of 4 rows are left out" in lines
    assert "  line 4: its time is -1 ms; times count from the start of the trace" in lines
    assert "  line 2: arrives 60 ms before the line before it" in lines
    with pytest.raises(TraceError, match=r"line 2: arrives 60 ms before"):
        read_trace(tmp_path / "m.jsonl", options=ReadOptions(strict=True))


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"input_length": -4}, "its prompt has -4 tokens"),
        ({"hash_ids": [1, 2, 3]}, "it has 3 block ids for 600 tokens in blocks of 512"),
        ({"hash_ids": "1"}, "hash_ids: expected `array`, got `str`"),
        ({"timestamp": None}, "timestamp: expected `float`, got `null`"),
        ({"output_length": 1.5}, "output_length: expected `int`"),
    ],
)
def test_a_bad_field_is_named(tmp_path: Path, changed: dict[str, object], text: str) -> None:
    rows = [_row(0, 600, [0, 9]), _row(1, 600, [0, 1], **changed)]
    loaded = read_trace(write_rows(tmp_path / "m.jsonl", rows))
    assert loaded.problems.named[0].text.startswith(text)


def test_only_the_first_bad_rows_are_named_but_all_are_counted(tmp_path: Path) -> None:
    rows = [_row(0, 1, [0]), *(_row(1, 0, []) for _ in range(50))]
    loaded = read_trace(write_rows(tmp_path / "m.jsonl", rows))
    assert loaded.problems.left_out == 50
    assert loaded.problems.describe()[-1] == "  and 30 more"


def test_a_block_size_that_the_ids_do_not_fit_is_told(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "m.jsonl", [_row(n, 1500, [0, 1, 2 + n]) for n in range(3)])
    notes = read_trace(path, None, ReadOptions(block_tokens=16)).problems.notes
    assert notes == ["3 of the first 3 requests with hash_ids do not have one for each 16 tokens"]
    assert not read_trace(path, None, ReadOptions(block_tokens=512)).problems.notes


def test_ids_that_are_not_chained_are_told(tmp_path: Path) -> None:
    rows = [_row(0, 1024, [0, 1]), _row(1, 1024, [2, 1])]
    assert "not chained" in read_trace(write_rows(tmp_path / "m.jsonl", rows)).problems.notes[0]


def test_the_recorded_trace() -> None:
    loaded = read_trace(recorded("mooncake/conversation_trace.jsonl"))
    trace = loaded.trace
    assert not loaded.problems.describe()
    assert (len(trace), trace.block_tokens, trace.requests[-1].at_ms) == (12_031, 512, 3_536_999)
    assert sum(request.prompt_tokens for request in trace.requests) / len(trace) == pytest.approx(12_035, abs=1)
    assert sum(request.output_tokens for request in trace.requests) / len(trace) == pytest.approx(343, abs=1)
    assert len({block for request in trace.requests for block in request.block_ids}) == 182_790
