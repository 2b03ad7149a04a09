"""`pointsman calibrate`: files in, tables and profiles out; what is wrong is one line."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pointsman.app.cli import main
from pointsman.edge.telemetry.decision_row import pack_keys
from pointsman.edge.traces.canonical import write_trace
from pointsman.edge.traces.formats import read_trace
from pointsman.edge.traces.profile_file import load_profile

STEP_MS, TOKEN_MS = 20.0, 0.05


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """Requests one at a time on an engine whose speed is known."""
    rng = random.Random(0)
    at_s, lines = 0.0, []
    for number in range(24):
        prompt, output = rng.randint(100, 2000), rng.randint(10, 40)
        first_s = at_s + (STEP_MS + TOKEN_MS * prompt) / 1000
        last_s = first_s + (output - 1) * STEP_MS / 1000
        row = {
            "request_id": str(number),
            "input_toks": prompt,
            "output_toks": output,
            "arrival_time": 1.7e9 + at_s,
            "queued_ts": 50 + at_s,
            "scheduled_ts": 50 + at_s,
            "first_token_ts": 50 + first_s,
            "last_token_ts": 50 + last_s,
        }
        lines.append(json.dumps(row))
        at_s = last_s + 0.1
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_file_becomes_a_profile(run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.yaml"
    arguments = ["calibrate", str(run_file), "--start", "h100/llama-8b", "--scheduling", "ahead"]
    assert main.run([*arguments, "--kv-tokens", "50000", "--out", str(out), "--json"]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert found["requests"] == 24
    assert found["source"] == "requests.jsonl: 24 of 24 requests"
    assert "do not use it for prompts over" in told.err
    loaded = load_profile(str(out))
    assert (loaded.name, loaded.kv_tokens, loaded.gpu) == ("mine", 50_000, "H100")
    assert loaded.step.step_ms(1, 1000, 0) == pytest.approx(STEP_MS, rel=0.03)
    assert loaded.step.d_ms_per_prefill_token == pytest.approx(TOKEN_MS, rel=0.05)
    assert loaded.valid is not None
    assert loaded.valid.sequences == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either a FILE of results or --engine URL"),
        (["FILE", "--engine", "http://127.0.0.1:1"], "give either a FILE of results or --engine URL"),
        (["FILE", "--out", "no/where.yaml"], "there is no folder no; make it first"),
        (["FILE", "--out", "."], "--out .: is a folder; name a file in it"),
        (["FILE", "--out", "FILE"], "is the file of FILE too; name another one to write"),
        (["FILE", "--json", "FILE"], "is the file of FILE too; name another one to write"),
        (["FILE", "--out", "x.yaml"], "a profile (--out) must hold that: give --kv-tokens"),
        (["FILE", "--start", "h100/lama"], "is not known; did you mean"),
        (["FILE", "--kv-tokens", "600"], "give the engine's --kv-tokens as it was"),
        (["gone.jsonl"], "gone.jsonl: no such file"),
        (["--engine", "127.0.0.1:8000"], "--engine 127.0.0.1:8000: expected the base URL of an engine"),
        (["--engine", "http://127.0.0.1:1"], "cannot connect to http://127.0.0.1:1"),
        (["--engine", "http://127.0.0.1:1", "--api-key-env", "NO_SUCH"], "there is no such environment variable"),
    ],
)
def test_what_is_wrong_is_one_line(
    run_file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main.run(["calibrate", *(str(run_file) if one == "FILE" else one for one in arguments)]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pointsman: ")]
    assert len(lines) == 1
    assert message in lines[0]


def decision_rows(run_file: Path, **changes: object) -> list[str]:
    """The same run as a decision log of a front end that did not tokenize."""
    lines = ['{"pointsman_decisions":1}']
    for number, one in enumerate(read_trace(run_file).observed):
        assert one.first_token_ms is not None
        assert one.last_token_ms is not None
        row = {
            "id": str(number),
            "at_ms": one.arrival_ms,
            "model": "m",
            "status": "finished",
            "http": 200,
            "prompt_tokens": one.prompt_tokens,
            "prompt_from": "engine",
            "output_tokens": one.output_tokens,
            "worker": "w0",
            "block_unit": "bytes",
            "block_size": 128,
            "prompt_bytes": 4 * one.prompt_tokens + one.prompt_tokens // 5,
            "blocks": pack_keys([1000 * number + block for block in range(one.prompt_tokens * 4 // 128)]),
            "first_token_ms": one.first_token_ms - one.arrival_ms,
            "last_token_ms": one.last_token_ms - one.arrival_ms,
        }
        lines.append(json.dumps({**row, **changes}))
    return lines


def test_a_decision_log_whose_blocks_are_of_text_becomes_a_profile(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "decisions.jsonl"
    log.write_text("\n".join(decision_rows(run_file)) + "\n")
    assert main.run(["calibrate", str(log), "--start", "h100/llama-8b", "--scheduling", "ahead", "--json"]) == 0
    told = capsys.readouterr()
    assert "blocks are 128 bytes of text, taken for 30 tokens each" in told.err
    values = {one["name"]: one["value"] for one in json.loads(told.out)["coefficients"]}
    assert values["d"] == pytest.approx(TOKEN_MS, rel=0.05)


def test_answers_that_were_not_streamed_do_not_tell_enough(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "decisions.jsonl"
    log.write_text("\n".join(decision_rows(run_file, streamed=False, first_token_ms=None)) + "\n")
    assert main.run(["calibrate", str(log)]) == 2
    assert "has 0 requests with times of their first and last token (answers that are not" in capsys.readouterr().err


def test_cached_prompts_that_nobody_names_are_a_warning(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = read_trace(run_file)
    seen = tuple(replace(one, cached_tokens=one.prompt_tokens // 2) for one in trace.observed)
    file = tmp_path / "cached.jsonl"
    write_trace(trace.trace, file, seen)
    assert main.run(["calibrate", str(file), "--start", "h100/llama-8b", "--scheduling", "ahead", "--first", "12"]) == 0
    assert "50 % of the prompt tokens were cached" in capsys.readouterr().out


def test_an_engine_with_a_tiny_context_is_told_so(
    capsys: pytest.CaptureFixture[str], start: Callable[..., Any]
) -> None:
    engine = start("engine", "--kind", "sim", "--port", "0", "--max-model-len", "256")
    assert main.run(["calibrate", "--engine", engine.url("engine sim serves")]) == 2
    assert "the engine's context of 256 tokens is too short to be measured; 427 are needed" in capsys.readouterr().err


def test_an_engine_is_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path, start: Callable[..., Any]) -> None:
    engine = start(
        "engine", "--kind", "sim", "--port", "0", "--profile", "tiny", "--speedup", "4", "--num-blocks", "2048"
    )
    sim_url = engine.url("engine sim serves")
    out = tmp_path / "live.yaml"
    arguments = ["--engine", sim_url, "--most-tokens", "3000", "--most-prompt", "256", "--most-sequences", "2"]
    assert main.run(["calibrate", *arguments, "--start", "tiny", "--scheduling", "between", "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert "sending 11 requests, about " in told.err
    assert "the engine schedules between steps" in told.out
    loaded = load_profile(str(out))
    assert (loaded.kv_tokens, loaded.model) == (2048 * 16, "sim")
    assert loaded.step.a_ms > 0
