"""`pointsman simulate`: tables, files, errors in one line, Ctrl-C."""

from __future__ import annotations

import csv
import json
import re
import signal
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pointsman.app.cli import main, simulate_output
from pointsman.app.cli import simulate as simulate_verb
from pointsman.app.experiments import runner
from pointsman.core.policies.cost.cost import Cost
from support.waiting import eventually

Simulate = Callable[..., int]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Twelve conversations of five turns in Mooncake's format, two requests a second."""
    file = tmp_path / "talk.jsonl"
    rows = []
    for number in range(60):
        person, turn = number % 12, number // 12
        ids = [1, *(100 * (person + 1) + block for block in range(2 + 2 * turn))]
        rows.append({"timestamp": 500 * number, "input_length": 512 * len(ids), "output_length": 20, "hash_ids": ids})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def simulate(trace: Path) -> Simulate:
    def run(*arguments: str, policy: str = "kv,round_robin", workers: str = "3", seeds: int = 3) -> int:
        fixed = ["--trace", str(trace), "--profile", "h100/llama-70b-tp4", "--jobs", "1"]
        return main.run(
            ["simulate", *fixed, "--policy", policy, "--workers", workers, "--seeds", str(seeds), *arguments]
        )

    return run


def test_a_table_and_a_verdict(simulate: Simulate, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--slo", "ttft=500ms,tpot=50ms") == 0
    told = capsys.readouterr()
    assert told.err == ""
    first, *lines = told.out.splitlines()
    assert first == "talk, 60 requests, 3 × h100/llama-70b-tp4, 2/s, 3 seeds, SLO ttft=500ms,tpot=50ms"
    assert lines[0].split() == ["kv", "round_robin"]
    assert [
        line
        for line in lines
        if re.match(r"P99 TTFT +[\d.]+ m?s (?:± [\d.]+ %|×÷ [\d.]+) +[\d.]+ m?s (?:± [\d.]+ %|×÷ [\d.]+)$", line)
    ]
    for title in ("P50 ITL", "P99 E2E", "output", "goodput", "hit rate", "load imbalance", "GPU time", "preemptions"):
        assert any(line.startswith(title) for line in lines), title
    assert not any(line.startswith("failed") for line in lines)
    assert any(line.startswith("kv beats round_robin by ") and " on P99 TTFT" in line for line in lines)


def test_the_policy_that_decides_by_default_is_compared_by_default() -> None:
    (policies,) = (option.default for option in simulate_verb.simulate.params if option.name == "policies")
    assert Cost.name in policies.split(",")


def test_the_same_bytes_again(simulate: Simulate, tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        assert simulate("--json", str(tmp_path / name)) == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    told = json.loads((tmp_path / "a.json").read_text())
    assert [policy["policy"] for policy in told["points"][0]["policies"]] == ["kv", "round_robin"]
    assert len(told["points"][0]["policies"][0]["runs"]) == 3


def test_one_seed_is_the_trace_as_it_is(simulate: Simulate, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--json", policy="round_robin", seeds=1) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["step_noise"] == 0
    assert told["points"][0]["policies"][0]["metrics"]["ttft_p99_ms"]["low"] is None


def test_rates(simulate: Simulate, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("×2", "x2", "2", "4/s"):
        assert simulate("--rate", option, policy="round_robin", seeds=1) == 0
        assert ", 4/s, 1 seed" in capsys.readouterr().out.splitlines()[0]


def test_clients(simulate: Simulate, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--clients", "4", policy="round_robin", seeds=1) == 0
    assert ", 4 clients, 1 seed" in capsys.readouterr().out.splitlines()[0]


def test_a_table_that_would_be_too_wide_leaves_intervals_to_the_files(
    simulate: Simulate, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(policy=",".join(["random"] * 8), seeds=2) == 0
    lines = capsys.readouterr().out.splitlines()
    (ttft,) = (line for line in lines if line.startswith("P99 TTFT"))
    assert "±" not in ttft
    assert "…" not in ttft
    assert ttft.count("s") == 8
    assert "(There is no room for intervals; --json and --html have them.)" in lines


@pytest.mark.parametrize("options", [[], ["--sweep", "workers=1,2"]])
def test_no_value_is_cut_off_where_lines_are_short(
    simulate: Simulate, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setattr(simulate_output, "_PIPE_WIDTH", 40)
    monkeypatch.setenv("COLUMNS", "40")
    assert simulate(*options, policy="round_robin,least_loaded,power_of_two", seeds=1) == 0
    told = capsys.readouterr().out
    assert "…" not in told
    assert "power_of_two" in told
    assert "room for intervals" not in told


def test_the_same_policy_twice(simulate: Simulate, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(policy="random,random") == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["random", "random", "2"]


def test_prefill_and_decode(simulate: Simulate, capsys: pytest.CaptureFixture[str]) -> None:
    profile = "prefill=h100/llama-70b-tp4,decode=b200/llama-70b"
    assert simulate("--profile", profile, workers="1:2", policy="least_loaded", seeds=1) == 0
    fleet = "1 × h100/llama-70b-tp4 (prefill) + 2 × b200/llama-70b (decode)"
    assert fleet in capsys.readouterr().out.splitlines()[0]


def test_a_sweep(simulate: Simulate, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, page = tmp_path / "runs.csv", tmp_path / "report.html"
    more = ["--sweep", "workers=1,4", "--slo", "ttft=1s", "--rate", "30", "--knee", "0.5", "--bisect", "1"]
    assert simulate(*more, "--csv", str(rows), "--html", str(page), seeds=2) == 0
    told = capsys.readouterr().out
    assert re.search(
        r"^kv needs \d workers? for 50 % of requests within the SLO; \d workers? would be too few\.$", told, re.M
    )
    with rows.open() as file:
        found = list(csv.DictReader(file))
    assert [row["point"] for row in found] == [
        name for name in ("workers=1", "workers=2", "workers=4") for _ in range(4)
    ]
    assert all(float(row["ttft_p99_ms"]) > 0 for row in found)
    assert "Along the sweep" in page.read_text()


def made(spec: str, *arguments: str) -> int:
    fixed = ["--workers", "2", "--profile", "h100/llama-8b", "--policy", "kv", "--jobs", "1"]
    return main.run(["simulate", "--make", spec, *fixed, *arguments])


def test_made_traffic_is_another_under_each_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert made("chat --arrivals 2 --sessions 20", "--json", "--seeds", "2") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["workload"]["name"] == "chat"
    first, second = (run["metrics"] for run in told["points"][0]["policies"][0]["runs"])
    assert first["gpu_s"] != pytest.approx(second["gpu_s"], rel=0.01)


def test_made_traffic_is_that_of_trace_make(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "made.jsonl"
    options = ["chat", "--arrivals", "2", "--sessions", "20", "--seed", "5"]
    assert main.run(["trace", "make", options[0], str(file), *options[1:]]) == 0
    fixed = ["--workers", "2", "--profile", "h100/llama-8b", "--policy", "kv", "--jobs", "1", "--seeds", "1", "--json"]
    capsys.readouterr()
    found = []
    for source in (["--make", " ".join(options)], ["--trace", str(file)]):
        assert main.run(["simulate", *source, *fixed]) == 0
        metrics = json.loads(capsys.readouterr().out)["points"][0]["policies"][0]["runs"][0]["metrics"]
        found.append({key: value for key, value in metrics.items() if value is not None})
    assert found[0] == pytest.approx(found[1], rel=1e-4)


@pytest.mark.parametrize("options", [["--rate", "5/s"], ["--sweep", "rate=5..10/s"]])
def test_turns_come_when_answers_allow(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert made("chat --arrivals 2 --sessions 20", *options) == 2
    assert "requests of chat wait for answers, so only how fast conversations begin" in capsys.readouterr().err


def test_made_traffic_has_no_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert made("chat --arrivals 2 --sessions 20", "--format", "mooncake") == 2
    assert "--format mooncake: traffic that is made has none" in capsys.readouterr().err


def test_part_of_made_traffic(capsys: pytest.CaptureFixture[str]) -> None:
    assert made("chat --arrivals 2 --sessions 20", "--requests", "7", "--seeds", "1") == 0
    assert capsys.readouterr().out.startswith("chat, 7 requests, ")


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("chatt", "'chatt' is no kind of workload; there are chat, agents"),
        ("", "'' is no kind of workload"),
        ("chat", "Missing option '--arrivals'; see pointsman trace make chat --help"),
        ("chat --arrivals often", "'often' are no arrivals"),
        ("chat --arrivals 2 --colour red", "No such option '--colour'; see"),
        ("chat 'x", "No closing quotation; write KIND --option VALUE"),
    ],
)
def test_what_can_not_be_made(spec: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert made(spec) == 2
    told = capsys.readouterr().err
    assert told.startswith("pointsman: --make ")
    assert told.count("\n") == 1
    assert part in told


def test_splits_by_role(simulate: Simulate, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    more = ["--sweep", "roles=1:2,3", "--slo", "ttft=1s", "--html", str(page)]
    assert simulate(*more, policy="kv", seeds=1) == 0
    told = capsys.readouterr().out
    best = r"^kv does best with (1:2 prefill:decode|3 workers that do both): [\d.]+ % of requests within the SLO"
    assert re.search(best, told, re.M)
    assert "<h1>kv does best with " in page.read_text()


class Links(HTMLParser):
    """What a page would load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in {"script", "link", "img", "iframe", "object"} or {"src", "href", "onload", "onclick"} & given.keys():
            self.found.append((tag, given))


def test_the_report_needs_nothing_else(simulate: Simulate, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert simulate("--html", str(page), "--slo", "ttft=500ms") == 0
    text = page.read_text(encoding="utf-8")
    links = Links()
    links.feed(text)
    assert links.found == []
    assert "url(" not in text
    assert "@import" not in text
    assert "http" not in re.sub(r"<!doctype[^>]*>", "", text)
    charts = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(charts) == 6
    for chart in charts:
        drawn = ElementTree.fromstring(chart)
        assert drawn.get("aria-label")
        assert "nan" not in chart.replace("aria", "")
        assert drawn.iter("title") is not None
    assert text.index('class="verdict"') < text.index("<svg")
    assert "prefers-color-scheme: dark" in text


def test_names_in_the_report_are_escaped(simulate: Simulate, trace: Path, tmp_path: Path) -> None:
    evil = trace.with_name("<b>&x.jsonl")
    evil.write_bytes(trace.read_bytes())
    page = tmp_path / "report.html"
    assert simulate("--trace", str(evil), "--html", str(page), policy="random", seeds=1) == 0
    assert "<b>&x" not in page.read_text()
    assert "&lt;b&gt;&amp;x" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--policy", "round_robbin"], "unknown policy 'round_robbin'; did you mean 'round_robin'?"),
        (["--policy", ","], "--policy ',': name at least one; there are auto, cost, kv"),
        (["--profile", "h100/lama-8b"], "profile 'h100/lama-8b' is not known; did you mean 'h100/llama-8b'?"),
        (["--workers", "0"], "--workers 0: at least one worker is needed"),
        (["--workers", "two"], "--workers two: write a number such as 16"),
        (["--profile", "prefill=tiny,decode=tiny"], "say how many of each there are, such as 4:12"),
        (["--slo", "fast"], "--slo fast: 'fast' is no limit"),
        (["--rate", "quick"], "--rate quick: write ×1.5 (or 1.5) for so many times as fast, or 12/s"),
        (["--rate", "0"], "--rate 0: write"),
        (["--rate", "2", "--clients", "3"], "with clients the rate is what they ask for; choose one"),
        (["--metrics-every", "soon"], "--metrics-every: 'soon' is no duration"),
        (["--sweep", "workers"], "--sweep workers: write AXIS=VALUES"),
        (["--bisect", "2"], "--bisect looks between the points of a sweep"),
        (["--block-tokens", "48"], "block_tokens 48 does not go with the trace's blocks of 512 tokens"),
        (
            ["--max-context-tokens", "1000"],
            "no prompt of talk leaves room for an answer in the longest context (1,000",
        ),
        (["--html", "/nowhere/at/all.html"], "--html /nowhere/at/all.html: there is no folder /nowhere/at; make it"),
        (["--csv", "table", "--html", "./table"], "--html table: is the file of --csv too; name another one"),
        (["--metrics-every", "1e-3s"], "--metrics-every: '1e-3s' is no duration"),
        (["--metrics-every", "0.5ms"], "--metrics-every 0.5ms: at least 1ms is expected, or 0s for before each"),
        (["--knee", "nan"], "--knee nan: write a number"),
        (["--front-end-ms", "inf"], "--front-end-ms inf: write a number"),
        (["--sweep", "rate=1,2", "--rate", "2"], "the sweep says what load there is; leave out --rate"),
        (["--sweep", "clients=1,2", "--rate", "2"], "the sweep says what load there is; leave out --rate"),
        (["--sweep", "clients=1,2", "--clients", "2"], "the sweep says how many; leave out --clients"),
        (["--csv", "/"], "--csv /: is a folder; name a file in it"),
        (["--trace", "/nowhere.jsonl"], "/nowhere.jsonl: no such file"),
    ],
)
def test_mistakes_are_one_line(
    simulate: Simulate, capsys: pytest.CaptureFixture[str], arguments: list[str], part: str
) -> None:
    assert simulate(*arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("pointsman: ")
    assert told.err.count("\n") == 1
    assert part in told.err


def test_the_trace_is_not_written_over(simulate: Simulate, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = trace.read_bytes()
    assert simulate("--csv", str(trace)) == 2
    assert "is the file of --trace too" in capsys.readouterr().err
    assert trace.read_bytes() == before


def test_a_file_that_can_not_be_written_costs_nothing_else(
    simulate: Simulate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    page = tmp_path / "page.html"
    assert simulate("--csv", str(full), "--html", str(page), policy="random", seeds=1) == 2
    told = capsys.readouterr()
    assert "P99 TTFT" in told.out
    assert page.exists()
    assert told.err == "pointsman: --csv /dev/full: can't be written: No space left on device\n"


def test_a_trace_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["simulate", "--workers", "2", "--profile", "tiny"]) == 2
    assert "--trace or --make: give one" in capsys.readouterr().err


def test_an_empty_trace(simulate: Simulate, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert simulate("--trace", str(empty)) == 2
    assert capsys.readouterr().err.startswith(f"pointsman: {empty}: ")


def test_rows_that_are_left_out_and_prompts_that_fit_nowhere_are_told(
    simulate: Simulate, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with trace.open("a") as file:
        file.write("nonsense\n")
    assert simulate("--max-context-tokens", "5000", policy="random", seeds=1) == 0
    told = capsys.readouterr()
    assert "note: 1 of 61 rows are left out" in told.err
    assert "note: 12 of 60 prompts leave no room for an answer in the longest context (5,000 tokens)" in told.err
    assert re.search(r"^failed requests +20\.0 %$", told.out, re.M)
    assert "random: 20.0 % of the requests were rejected, failed or not finished" in told.out


def test_an_interrupt_shows_what_is_done(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual, calls = runner.simulate, [0]

    def interrupted(*arguments: object, **more: object) -> object:
        calls[0] += 1
        if calls[0] > 3:
            raise KeyboardInterrupt
        return usual(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "simulate", interrupted)
    assert simulate() == 130
    told = capsys.readouterr()
    assert "P99 TTFT" in told.out
    assert told.err == "interrupted; not finished: kv: seed 2; round_robin: seeds 1, 2\n"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
async def test_no_process_stays_behind(
    start: Callable[..., Any], trace: Path, tmp_path: Path, how: signal.Signals
) -> None:
    """The runs of one policy would take hours."""
    waiting = tmp_path / "waiting"
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib, time\n"
        "from pointsman.core.policies import random_choice\n"
        "def decide(*arguments):\n"
        f"    pathlib.Path({str(waiting)!r}).touch()\n"
        "    time.sleep(3600)\n"
        "random_choice.RandomChoice.decide = decide\n"
    )
    arguments = ["--workers", "2", "--profile", "instant", "--policy", "round_robin,random", "--seeds", "1"]
    process = start("simulate", "--trace", str(trace), *arguments, "--jobs", "2", PYTHONPATH=str(tmp_path))
    await eventually(waiting.exists, limit_s=60)
    assert process.stop(how) == (130 if how is signal.SIGINT else -how)
    if how is signal.SIGINT:
        process.line("random: its run")
    await eventually(lambda: process.family() == [], limit_s=60)


def test_kv_may_move_between_workers_that_do_both(simulate: Simulate, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--kv-transfer", "always", "--link", "roce:1ms", "--policy", "cost"]
    assert simulate("--workers", "2", "--profile", "h100/llama-8b", *more) == 0
    (apart,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("prefill apart")]
    assert apart.split()[2] == "100.0"


def test_nothing_is_said_of_kv_that_never_moves(simulate: Simulate, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--workers", "2", "--profile", "h100/llama-8b", "--policy", "cost") == 0
    assert "prefill apart" not in capsys.readouterr().out
