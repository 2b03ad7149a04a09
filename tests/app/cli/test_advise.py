"""`pointsman advise`: text, JSON, report, errors in one line, Ctrl-C."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pointsman.app.advice import laboratory
from pointsman.app.cli import main
from pointsman.core.workload.trace import Trace
from pointsman.edge.traces.canonical import write_trace
from support.known_traffic import traffic

Advise = Callable[..., int]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "talk.jsonl"
    write_trace(traffic(24, 200, groups=4), file)
    return file


@pytest.fixture
def advise(trace: Path) -> Advise:
    def run(*arguments: str, profile: str = "h100/llama-8b", gpus: str = "2", file: Path = trace) -> int:
        fixed = ["--trace", str(file), "--profile", profile, "--gpus", gpus, "--jobs", "1", "--seeds", "2"]
        return main.run(["advise", *fixed, *arguments])

    return run


def test_the_answer_first_then_its_parts_then_what_it_rests_on(
    advise: Advise, capsys: pytest.CaptureFixture[str]
) -> None:
    assert advise() == 0
    told = capsys.readouterr()
    assert told.err == ""
    lines = told.out.splitlines()
    assert lines[0].startswith("No. ")
    titles = [line for line in lines[1:] if line and not line.startswith(" ") and lines[lines.index(line) - 1] == ""]
    assert titles == ["Policy", "GPUs", "Prefill and decode apart", "KV memory", "Measured", "Assumed", "Not known"]
    assert max(map(len, lines)) <= 100
    said = " ".join(told.out.split())
    assert "The SLO: ttft=2s,tpot=50ms for 95 % of the requests, since none was given (--slo)." in said
    assert "2 workers (2 GPUs) are enough" in said


def test_json_has_the_numbers_and_the_text(advise: Advise, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "answer.json"
    assert advise("--slo", "ttft=1s", "--target", "0.9", "--json", str(file)) == 0
    assert capsys.readouterr().out == ""
    answer = json.loads(file.read_text())
    assert answer["schema"] == 1
    assert answer["worth"] in ("no", "some")
    assert answer["slo"] == "ttft=1s"
    assert answer["slo_assumed"] is False
    assert answer["target"] == 0.9
    assert answer["fleet"]["enough"] is True
    assert set(answer["fleet"]["load"]) == {"round_robin", "cost", "prefix", "kv"}
    assert answer["layer_policy"] == "cost"
    assert answer["split"]["best_ratio"] == "1:1"
    assert answer["comparison"]["seeds"] == 2
    policies = [each["policy"] for each in answer["comparison"]["points"][0]["policies"]]
    assert policies == ["round_robin", "least_loaded", "cost", "prefix", "kv"]


def test_the_same_answer_in_any_number_of_processes(advise: Advise, tmp_path: Path) -> None:
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    assert advise("--json", str(first), gpus="1") == 0
    assert advise("--json", str(second), "--jobs", "2", gpus="1") == 0
    assert first.read_bytes() == second.read_bytes()


def test_the_report_begins_with_the_answer(advise: Advise, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert advise("--html", str(file)) == 0
    page = file.read_text()
    assert page.startswith("<!doctype html>")
    assert "<p>No. " in page
    assert "least_loaded" in page
    assert "cost" in page


@pytest.mark.parametrize(
    ("arguments", "profile", "gpus", "message"),
    [
        ([], "h100/llama-70b-tp4", "2", "--gpus 2: one worker of h100/llama-70b-tp4 takes 4 GPUs"),
        ([], "h100/llama-9b", "2", "profile 'h100/llama-9b' is not known; did you mean"),
        ([], "h100/llama-8b", "two", "--gpus two: write how many there are"),
        (["--slo", "ttft"], "h100/llama-8b", "2", "--slo ttft: 'ttft' is no limit"),
        (["--link", "rope"], "h100/llama-8b", "2", "link 'rope' is not known"),
        (["--block-tokens", "500"], "h100/llama-8b", "2", "block_tokens 500 does not go with"),
        (["--html", "/nowhere/at/all.html"], "h100/llama-8b", "2", "--html /nowhere/at/all.html: there is no folder"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    advise: Advise,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    profile: str,
    gpus: str,
    message: str,
) -> None:
    assert advise(*arguments, profile=profile, gpus=gpus) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert message in told.err
    assert told.err.count("\n") == 1


def test_prompts_that_no_worker_can_hold_are_an_error(
    advise: Advise, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "long.jsonl"
    write_trace(traffic(5, 100, shared_blocks=100), file)
    assert advise(profile="tiny", file=file) == 2
    assert "no prompt of made leaves room" in capsys.readouterr().err


def test_rows_that_were_left_out_are_told(advise: Advise, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"timestamp": 500 * n, "input_length": 512, "output_length": 5, "hash_ids": [n]} for n in range(10)]
    rows[4]["output_length"] = -1
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert advise(file=file, gpus="1") == 0
    assert "line 5" in capsys.readouterr().out


def test_ctrl_c_tells_what_is_known(
    advise: Advise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(laboratory.Runner, "results", interrupted)
    assert advise() == main.EXIT_INTERRUPTED
    told = capsys.readouterr().out
    assert told.startswith("Not known yet: too little was simulated before it was interrupted.")
    assert "what is missing above was not simulated" in " ".join(told.split())
    assert advise("--html", str(tmp_path / "report.html")) == 2
    assert "nothing was simulated before the interruption" in capsys.readouterr().err


def test_an_empty_trace_is_an_error(advise: Advise, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "empty.jsonl"
    write_trace(Trace("empty", ()), file)
    assert advise(file=file) == 2
    assert capsys.readouterr().err.count("\n") == 1
