"""`pointsman trace`, called as people do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pointsman.app.cli import main
from pointsman.edge.traces.formats import FORMATS, read_trace
from support.recorded import write_rows

Captured = pytest.CaptureFixture[str]


def _run(*arguments: object) -> None:
    assert main.run(["trace", *map(str, arguments)]) == 0


def _fails(capsys: Captured, *arguments: object) -> str:
    assert main.run(["trace", *map(str, arguments)]) == 2
    return capsys.readouterr().err


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    """A small made trace with sessions."""
    path = tmp_path / "chat.jsonl.gz"
    _run("make", "chat", path, "--arrivals", "gamma:2,2", "--sessions", 40, "--seed", 3)
    return path


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A vLLM run of five requests, one of them damaged."""
    rows: list[object] = [
        {"input_toks": 9, "output_toks": 5, "arrival_time": 1.0 + n, "queued_ts": 1.0 + n}
        | {"first_token_ts": 2.0 + n, "last_token_ts": 4.0 + n}
        for n in range(4)
    ]
    return write_rows(tmp_path / "run.jsonl", [*rows, "{"])


def test_info_as_a_table(chat: Path, capsys: Captured) -> None:
    capsys.readouterr()
    _run("info", chat, "--cache-tokens", "20k,1M")
    said = capsys.readouterr().out
    assert "chat (pointsman): made: chat with several turns" in said
    assert "requests of 40 sessions" in said
    assert "20 k tokens" in said
    assert "1 M tokens" in said
    assert "last in the same session" in said


def test_info_as_json(chat: Path, tmp_path: Path) -> None:
    _run("info", chat, "--json", tmp_path / "info.json")
    told = json.loads((tmp_path / "info.json").read_text())
    assert (told["format"], told["left_out"], told["observed"]) == ("pointsman", 0, None)
    figures = told["statistics"]
    assert figures["requests"] == len(read_trace(chat).trace)
    assert figures["sessions"]["count"] == 40
    assert set(figures["reuse"]["share_by_cache_tokens"]) == {f"{n}000000" for n in (1, 3, 10, 30, 100)}


def test_what_was_wrong_goes_to_stderr(measured: Path, capsys: Captured) -> None:
    _run("info", measured)
    said = capsys.readouterr()
    assert "run.jsonl: 1 of 5 rows are left out\nrun.jsonl:   line 5: is no JSON" in said.err
    assert "observed TTFT, ms" in said.out
    assert "nothing is known of what prompts have in common" in said.out
    assert "line 5: is no JSON" in _fails(capsys, "info", measured, "--strict")


def test_convert_keeps_all_or_says_what_is_lost(measured: Path, chat: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out.jsonl"
    _run("convert", measured, out)
    assert read_trace(out).observed == read_trace(measured).observed
    capsys.readouterr()
    _run("convert", chat, out, "--to", "mooncake", "--to-block-tokens", 32)
    said = capsys.readouterr()
    assert (
        "lost, for that format has no place for them: sessions, what requests wait for, blocks of answers" in said.err
    )
    converted, made = read_trace(out), read_trace(chat)
    assert converted.format == "mooncake"
    assert converted.trace.block_tokens == 32
    assert [r.prompt_tokens for r in converted.trace.requests] == [r.prompt_tokens for r in made.trace.requests]
    _run("convert", measured, out, "--to", "mooncake")
    assert "measured times" in capsys.readouterr().err


def test_blocks_that_are_not_known_have_no_size(measured: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out.jsonl"
    said = _fails(capsys, "convert", measured, out, "--to-block-tokens", 16)
    assert "nothing is known of what its prompts share, so --to-block-tokens changes nothing" in said
    assert not out.exists()


def test_scale(chat: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    requests = len(read_trace(chat).trace)
    _run("scale", chat, out, "--clone", 3, "--keep-shared", "--rate", 2)
    scaled = read_trace(out).trace
    assert len(scaled) == 3 * requests
    assert scaled.source == "made: chat with several turns; 3 times the sessions; rate times 2"
    _run("scale", chat, out, "--thin", 0.5, "--sessions", "constant:1", "--seed", 5)
    starts = [request.at_ms for request in read_trace(out).trace.requests if request.after is None]
    assert 10 < len(starts) < 30
    assert starts == [1000.0 * n for n in range(len(starts))]


def test_cut(chat: Path, tmp_path: Path, measured: Path, capsys: Captured) -> None:
    out = tmp_path / "out.jsonl"
    _run("cut", chat, out, "--from-s", 5, "--to-s", 15, "--whole-sessions")
    part = read_trace(out).trace
    assert all(request.at_ms < 10_000 for request in part.requests if request.after is None)
    assert any(request.at_ms > 10_000 for request in part.requests)
    _run("cut", measured, out, "--requests", 2)
    assert len(read_trace(out).trace) == 2
    assert "measured times are left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("chat", ["--sessions", 3, "--turns", "uniform:1,3"]),
        ("agents", ["--sessions", 2, "--steps", 3]),
        ("rag", ["--requests", 9, "--no-popular-first"]),
        ("shared-prefix", ["--requests", 9, "--order", "drawn", "--zipf", 1]),
        ("independent", ["--duration-s", 9, "--prompt-tokens", "histogram:5=1,7=2"]),
    ],
)
def test_make(kind: str, arguments: list[object], tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for out in (one, other):
        _run("make", kind, out, "--arrivals", "poisson:2", "--seed", 7, *arguments)
    assert one.read_bytes() == other.read_bytes()
    assert read_trace(one).trace.name == kind
    _run("make", kind, other, "--arrivals", "poisson:2", "--seed", 8, *arguments)
    assert one.read_bytes() != other.read_bytes()


def test_lengths_like_those_of_a_trace(measured: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    like = f"like:{measured}"
    lengths = ["--prompt-tokens", like, "--output-tokens", like]
    _run("make", "independent", out, "--arrivals", "at-once", "--requests", 5, *lengths)
    assert {(r.prompt_tokens, r.output_tokens) for r in read_trace(out).trace.requests} == {(9, 5)}
    assert "1 of 5 rows are left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "owner"),
    [
        (["--start-s", 60], "servegen; `pointsman trace cut` keeps a part of any trace"),
        (["--duration-s", 60], "servegen; `pointsman trace cut` keeps a part of any trace"),
        (["--fields", "prompt=in"], "access-log"),
        (["--block-tokens", 32], "mooncake"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    chat: Path, capsys: Captured, arguments: list[object], owner: str
) -> None:
    said = _fails(capsys, "info", chat, *arguments)
    assert f"is read as pointsman, which has no use for {arguments[0]}; it belongs to {owner}" in said


def test_sizes_of_caches_that_cannot_be(chat: Path, capsys: Captured) -> None:
    for size in ("0", "9" * 400 + "g", "x"):
        assert "Invalid value for '--cache-tokens'" in _fails(capsys, "info", chat, "--cache-tokens", f"3M,{size}")


def test_a_field_map_for_access_logs(tmp_path: Path, capsys: Captured) -> None:
    path = write_rows(tmp_path / "log", [{"when": 1700000000, "in": 5, "res": {"out": 6}}])
    _run("info", path, "--format", "access-log", "--fields", "time=when,prompt=in", "--fields", "output=res.out")
    assert "\n1 request\n" in capsys.readouterr().out
    assert "--fields who=x: expected FIELD=NAME" in _fails(capsys, "info", path, "--fields", "who=x")


def test_formats_are_listed(capsys: Captured) -> None:
    _run("formats")
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines()] == list(FORMATS)


def test_errors_say_what_to_do(chat: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    for arguments, message in (
        (("scale", chat, out), "nothing to do: give --rate, --clone, --thin or --sessions"),
        (("scale", chat, out, "--gaps", "--clone", 2), "--gaps belongs to --rate"),
        (("scale", chat, chat, "--rate", 2), "is the file that is read; name another one to write"),
        (("scale", chat, out, "--sessions", "often"), "'often' are no arrivals"),
        (("convert", chat, out, "--to-block-tokens", 24), "24 neither divides that nor is a multiple of it"),
        (("cut", chat, out, "--from-s", 1e9), "nothing of chat is left"),
        (("make", "chat", out, "--arrivals", "poisson:1"), "say how many requests, or for how long"),
        (("make", "chat", out, "--arrivals", "poisson"), "Invalid value for '--arrivals'"),
        (("make", "rag", out, "--arrivals", "1", "--question-tokens", "like:/none"), "/none: no such file"),
        (("make", "rag", out, "--arrivals", "0.001", "--duration-s", 0.001), "no request came"),
        (("make", "rag", out, "--arrivals", "1", "--requests", 1, "--block-tokens", 0), "blocks of 0 tokens"),
        (("info", chat, "--cache-tokens", "big"), "'big' is no number of tokens"),
        (("info", out), "no such file"),
    ):
        assert message in _fails(capsys, *arguments).replace("\n", " "), arguments
    assert not out.exists()
