"""Reading the decision log: block keys to ids, headers anywhere, what can't be used is named."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pointsman.core.model.errors import TraceError
from pointsman.edge.telemetry.decision_row import VERSION, DecisionRow, Header, pack_keys
from pointsman.edge.traces.formats import read_trace


def row(number: int, at_ms: float, **fields: object) -> DecisionRow:
    values = {"id": f"r{number}", "at_ms": 1e12 + at_ms, "model": "m", "status": "finished", "http": 200}
    values |= {"prompt_tokens": 64, "prompt_from": "tokenizer", "output_tokens": 5, "worker": "a/0"}
    return DecisionRow(**(values | fields))  # type: ignore[arg-type]


def write(path: Path, *entries: DecisionRow | Header | bytes) -> Path:
    lines = [entry if isinstance(entry, bytes) else msgspec.json.encode(entry) for entry in entries]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def tokens(*keys: int, size: int = 16) -> dict[str, object]:
    return {"block_unit": "tokens", "block_size": size, "blocks": pack_keys(keys)}


def test_keys_become_ids_and_times_count_from_the_first_arrival(tmp_path: Path) -> None:
    second = row(2, 250.0, **tokens(7, 2**59 + 1), session="s", first_token_ms=40.0, last_token_ms=90.0)
    first = row(1, 0.0, **tokens(7, 9), cached=16, cached_reported=32)
    loaded = read_trace(write(tmp_path / "d.jsonl", Header(VERSION), second, first))
    assert loaded.format == "decision-log"
    one, two = loaded.trace.requests
    assert (one.at_ms, two.at_ms) == (0.0, 250.0)
    assert one.block_ids[0] == two.block_ids[0]
    assert one.block_ids[1] != two.block_ids[1]
    assert loaded.trace.block_tokens == 16
    assert (two.session, two.model) == ("s", "m")
    assert loaded.observed[0].cached_tokens == 32
    assert loaded.observed[1].ttft_ms == 40.0
    assert loaded.observed[1].tpot_ms == 12.5


def test_files_put_one_after_the_other(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", Header(VERSION), row(1, 5.0), Header(VERSION), row(2, 0.0))
    loaded = read_trace(path)
    assert [request.at_ms for request in loaded.trace.requests] == [0.0, 5.0]
    assert loaded.problems.moved == loaded.problems.left_out == 0


def test_a_part_of_a_log_without_its_header_is_recognised(tmp_path: Path) -> None:
    loaded = read_trace(write(tmp_path / "tail.jsonl", row(1, 5.0), row(2, 0.0)))
    assert loaded.format == "decision-log"
    assert len(loaded.trace) == 2


def test_blocks_of_text_are_taken_for_as_many_tokens_as_prompts_have(tmp_path: Path) -> None:
    text = {"block_unit": "bytes", "block_size": 128, "prompt_from": "estimate"}
    rows = [
        row(1, 0.0, **text, blocks=pack_keys((1, 2, 3)), prompt_bytes=400, prompt_tokens=100),
        row(2, 1.0, **text, blocks=pack_keys((1, 2, 3, 4, 5, 6)), prompt_bytes=800, prompt_tokens=140),
    ]
    loaded = read_trace(write(tmp_path / "d.jsonl", Header(VERSION), *rows))
    assert loaded.trace.block_tokens == 26  # 128 bytes of 240 tokens in 1200
    assert [len(request.block_ids) for request in loaded.trace.requests] == [3, 6]
    assert "taken for 26 tokens each" in loaded.problems.notes[0]
    assert loaded.problems.notes[1].startswith("2 prompts are as long as was estimated")


def test_prompts_that_were_cut_otherwise_than_most_have_no_blocks(tmp_path: Path) -> None:
    rows = [row(1, 0, **tokens(1)), row(2, 1, **tokens(2)), row(3, 2, **tokens(1, size=32)), row(4, 3)]
    loaded = read_trace(write(tmp_path / "d.jsonl", Header(VERSION), *rows))
    assert [len(request.block_ids) for request in loaded.trace.requests] == [1, 1, 0, 0]
    assert loaded.problems.notes == [
        "1 requests have blocks of another kind than most (16 tokens); theirs are not used"
    ]


def test_rows_that_can_not_be_used_are_named(tmp_path: Path) -> None:
    rows = (
        row(1, 0.0),
        row(2, 1.0, status="failed", http=503, output_tokens=0),
        row(3, 2.0, status="cancelled", http=499, output_tokens=3, last_token_ms=9.0),
        row(4, 3.0, **tokens(1), first_token_ms=-1.0),
        b'{"id":"r5","at_ms":1,"mod',
        row(6, 4.0, block_unit="tokens", block_size=16, blocks="abc"),
        row(7, 5.0, first_token_ms=9.0, last_token_ms=8.0),
    )
    loaded = read_trace(write(tmp_path / "d.jsonl", Header(VERSION), *rows))
    assert len(loaded.trace) == 2
    assert loaded.observed[1].last_token_ms is None
    assert [problem.line for problem in loaded.problems.named] == [3, 5, 6, 7, 8]
    texts = " | ".join(problem.text for problem in loaded.problems.named)
    wanted = ("failed (503)", "first_token_ms: -1.0 is before", "is no JSON", "blocks: 3 characters")
    for part in (*wanted, "last_token_ms: 8.0 is before"):
        assert part in texts
    assert any("1 requests were cancelled" in note for note in loaded.problems.notes)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (Header(2, "7.0"), r"line 1: decision log of format 2 \(pointsman 7.0\)"),
        (b'{"pointsman_decisions":"x"}', "damaged"),
    ],
)
def test_a_header_of_another_version(tmp_path: Path, header: Header | bytes, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_trace(write(tmp_path / "d.jsonl", header, row(1, 0.0)))
