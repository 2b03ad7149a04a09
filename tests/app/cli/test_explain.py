"""`pointsman explain` on logs and on front ends: what it prints, its documents, and what it says when it can't."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest

from pointsman.app.cli import explain_log, explain_source, main
from pointsman.app.cli.admin_client import NoFrontEndError, RefusedError
from pointsman.app.cli.explain_log import LogFiles
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.policies.chance import decision_chance
from pointsman.core.policies.kv import Kv
from pointsman.core.policies.session import Session
from pointsman.core.timing.fleet_times import FleetTimes
from pointsman.core.timing.step import StepCoefficients
from pointsman.core.timing.worker_times import WorkerTimes
from pointsman.edge.decisions.candidates import logged_candidates
from pointsman.edge.decisions.search import Query
from pointsman.edge.decisions.state import pack_state
from pointsman.edge.decisions.transfers import TransferSums
from pointsman.edge.serving.status import Status
from pointsman.edge.telemetry.decision_row import DecisionRow, Header, hashed
from support.dealt_rows import dealt
from support.decision_rows import ended
from support.moved_kv import SLOW, told
from support.moved_kv import decided as decided_move
from support.moved_kv import ended as ended_move

WORKERS = ("a/0", "b/0", "c/0")
SEED = 5
TIMES = FleetTimes({worker: WorkerTimes(StepCoefficients(6.0, 0.1, 0.05, 0.1)) for worker in WORKERS})


def decided(number: int, **fields: object) -> DecisionRow:
    """kv sends it to a/0, which holds most of it and had its last request last."""
    view = FleetView.of(
        list(WORKERS), cached_tokens=[900, 0, 0], exact=[1, 1, 1], last_dispatch=[3, 1, 2], running=[1, 0, 0]
    )
    request = Request(f"r{number}", "m", 10.0, 1000)
    decision = Kv().decide(request, view, TIMES, 10.0, decision_chance(SEED, request.id))
    values: dict[str, object] = {
        "candidates": logged_candidates(decision), "policy": "kv", "unit": "tokens", "workers": 3, "cached": 900,
        "runner_up": "b/0", "margin": 772.0, "exact": True, "cached_reported": 896,
        "state": pack_state(request, decision, TIMES.rows(view.workers), 10.0, SEED),
    }  # fmt: skip
    return ended(number, "a/0", **(values | fields))


def write(path: Path, *rows: DecisionRow) -> Path:
    lines = [msgspec.json.encode(Header(1, "0", 0.0)), *(msgspec.json.encode(row) for row in rows)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def ran(*arguments: object) -> tuple[int, str, str]:
        code = main.run(["explain", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return ran


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Rotated once; the second of its rows was slow."""
    write(tmp_path / "d.jsonl.1", decided(1), decided(2, first_token_ms=900.0, ttft_ms=900.0, client=hashed("mine")))
    return write(tmp_path / "d.jsonl", decided(3), decided(4, state=""))


Closed = Callable[[LogFiles], LogFiles]


@pytest.fixture
def closed_after(request: pytest.FixtureRequest) -> Closed:
    """What it is given is closed once the test is over."""

    def noted(log: LogFiles) -> LogFiles:
        request.addfinalizer(log.close)
        return log

    return noted


def test_logs_of_several_front_ends_are_one(run: Run, tmp_path: Path) -> None:
    """`serve --processes` writes one a front end; the youngest of all are the last, not those of the last file."""
    write(tmp_path / "d[1].1.jsonl.1", decided(1))
    write(tmp_path / "d[1].1.jsonl", decided(4), decided(6))
    write(tmp_path / "d[1].2.jsonl", decided(2), decided(3), decided(5))
    for logs in (("--log", tmp_path / "d[1].jsonl"),
                 ("--log", tmp_path / "d[1].1.jsonl", "--log", tmp_path / "d[1].2.jsonl")):  # fmt: skip
        code, _, err = run("--last", 4, *logs, "--json", tmp_path / "told.json")
        assert (code, err) == (0, "")
        told = json.loads((tmp_path / "told.json").read_bytes())["decisions"]
        assert [one["decision"]["id"] for one in told] == ["r6", "r5", "r4", "r3"]
        assert [Path(one["source"]).name for one in told][:2] == ["d[1].1.jsonl", "d[1].2.jsonl"]
    assert run("r1", "--log", tmp_path / "d[1].jsonl")[0] == 0
    code, _, err = run("--last", 1, "--log", tmp_path / "e.jsonl")
    assert code == 2
    assert "e.jsonl: can't be read" in err


def test_a_log_that_is_rotated_while_it_is_read_is_read_whole(tmp_path: Path, closed_after: Closed) -> None:
    path = tmp_path / "d.jsonl"
    write(tmp_path / "d.jsonl.1", decided(1), decided(2))
    write(path, decided(3))
    log = closed_after(LogFiles([path]))
    for older, younger in (("d.jsonl.2", "d.jsonl.1"), ("d.jsonl.1", "d.jsonl")):
        (tmp_path / younger).rename(tmp_path / older)
    write(path, decided(4))
    last = Query.of([("last", "9")])
    for _ in range(2):
        assert [row.id for row, _ in log.search(last)] == ["r3", "r2", "r1"]
    assert [row.id for row, _ in closed_after(LogFiles([path])).search(last)] == ["r4", "r3", "r2", "r1"]


def test_a_log_that_is_rotated_while_it_is_opened_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_after: Closed
) -> None:
    path = tmp_path / "d.jsonl"
    write(tmp_path / "d.jsonl.1", decided(1))
    write(path, decided(2))
    opened = explain_log._opened

    def rotated_after(name: Path) -> BinaryIO | None:
        file = opened(name)
        if name == path:
            (tmp_path / "d.jsonl.1").rename(tmp_path / "d.jsonl.2")
            path.rename(tmp_path / "d.jsonl.1")
        return file

    write(tmp_path / "d.jsonl.2", decided(0))
    monkeypatch.setattr(explain_log, "_opened", rotated_after)
    log = closed_after(LogFiles([path]))
    assert [row.id for row, _ in log.search(Query.of([("last", "9")]))] == ["r2", "r1"]


def test_one_decision_for_people(run: Run, log: Path) -> None:
    code, out, err = run("r1", "--log", log)
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert re.match(
        r"r1 \d{4}-\d\d-\d\d \S+, m: 1,000 prompt tokens \(engine\), 21 tokens of answer, finished", lines[0]
    )
    assert lines[1] == "decided by kv, runner-up b/0, 772 tokens behind"
    assert lines[2] == (
        "why: a/0 took it because it holds 900 of 1,000 prompt tokens (b/0: 0), which saves 900 tokens of prefill; b/0 "
        "was next, 772 tokens dearer, although a/0 means 128 tokens more for its load."
    )
    assert lines[3] == "worker score, tokens new waiting load price exact cached load excluded"
    assert lines[4] == "→ a/0 228 100 0 128 1 900 1"
    assert "cached tokens 900 896 -4" in lines
    assert lines[-1].startswith("time: its first token came after 100 ms: ")


def test_by_the_clients_own_name(run: Run, log: Path) -> None:
    assert run("mine", "--log", log)[1].startswith("r2 ")


def test_one_decision_for_programs(run: Run, log: Path) -> None:
    code, out, _ = run("r1", "--log", log, "--json")
    document = json.loads(out)
    assert code == 0
    assert set(document) == {"decision", "why", "slow", "source"}
    assert document["decision"]["id"] == "r1"
    assert "state" not in document["decision"]
    assert document["source"].endswith("d.jsonl.1")
    assert sum(cause["ms"] for cause in document["slow"]["causes"]) == pytest.approx(100)


def test_the_last_ones_are_the_youngest_first(run: Run, log: Path) -> None:
    code, out, _ = run("--last", 3, "--log", log, "--json")
    assert code == 0
    assert [one["decision"]["id"] for one in json.loads(out)["decisions"]] == ["r4", "r3", "r2"]
    people = run("--last", 3, "--log", log)[1]
    assert [line.split()[0] for line in people.splitlines()[1:4]] == ["r4", "r3", "r2"]
    assert people.count("took it because") == 3


def test_the_worst(run: Run, log: Path) -> None:
    document = json.loads(run("--worst", "ttft", "--log", log, "--json")[1])
    assert [one["decision"]["id"] for one in document["decisions"]] == ["r2"]
    assert run("--worst", "error", "--limit", 1, "--log", log)[1].startswith("r2 ")
    assert run("--worst", "ttft", "--last", 2, "--log", log)[1].startswith(("r3 ", "r4 "))
    assert len(json.loads(run("--worst", "e2e", "--limit", 3, "--log", log, "--json")[1])["decisions"]) == 3


@pytest.mark.parametrize(
    ("worst", "column", "most"),
    [
        ("ttft", "first token after ms", 450.0),
        ("e2e", "last token after ms", 2_000.0),
        ("error", "TTFT off by ms", 300.0),
    ],
)
def test_a_list_of_the_worst_shows_what_it_is_sorted_by(
    run: Run, tmp_path: Path, worst: str, column: str, most: float
) -> None:
    """A request that waited here before it was sent is slow for its client, though not from the decision on."""
    waited = decided(1, first_token_ms=450.0, last_token_ms=2_000.0, ttft_ms=20.0, predicted_ttft_ms=320.0)
    told = run("--worst", worst, "--limit", 2, "--log", write(tmp_path / "d.jsonl", waited, decided(2)))[1]
    heading, first = told.splitlines()[:2]
    assert column in heading
    assert first.startswith("r1 ")
    end = heading.index(column) + len(column)
    assert first[:end].split()[-1].replace(",", "") == f"{most:.0f}"
    assert column not in run("--last", 2, "--log", tmp_path / "d.jsonl")[1]


def test_filters(run: Run, log: Path) -> None:
    assert run("--last", 5, "--worker", "b/0", "--log", log)[0] == 1
    assert run("--last", 5, "--worker", "a/0", "--policy", "kv", "--model", "m", "--log", log)[0] == 0
    code, _, err = run("--last", 5, "--status", "lost", "--log", log)
    assert code == 2
    assert "status: expected one of running, finished" in err


def test_only_one_arm_of_a_rollout_or_one_tenant(run: Run, tmp_path: Path) -> None:
    rows = [decided(n, arm=("base", "trial")[n % 2], tenant=f"t{n % 3}") for n in range(6)]
    log = write(tmp_path / "d.jsonl", *rows)
    for option, value, ids in (("--arm", "trial", ["r5", "r3", "r1"]), ("--tenant", "t2", ["r5", "r2"])):
        code, out, _ = run("--last", 9, option, value, "--log", log, "--json")
        assert code == 0
        assert [one["decision"]["id"] for one in json.loads(out)["decisions"]] == ids
    assert "'base', 'trial'" in run("--last", 9, "--arm", "both", "--log", log)[2]


def test_what_if(run: Run, log: Path) -> None:
    """In turn b/0 would be next."""
    code, out, _ = run("r1", "--what-if", "policy=round_robin", "--log", log)
    assert code == 0
    assert "what if: round_robin would have chosen b/0 instead of a/0" in out
    document = json.loads(run("r1", "--what-if", "policy=kv", "--log", log, "--json")[1])
    assert document["what_if"]["changed"] is False


def test_what_if_of_many_is_summed_up(run: Run, log: Path) -> None:
    code, out, _ = run("--last", 4, "--what-if", "policy=round_robin", "--log", log)
    assert code == 0
    assert "round_robin would have chosen another worker in 3 of 3 decisions" in out
    assert "1 decision without a recorded state" in out


def test_without_a_state_there_is_no_what_if(run: Run, log: Path) -> None:
    for way in (("r4",), ("--last", 1)):
        code, out, err = run(*way, "--what-if", "policy=round_robin", "--log", log)
        assert (code, out) == (1, "")
        assert "decision-log.state" in err


def test_what_can_not_be_asked(run: Run, log: Path, tmp_path: Path) -> None:
    for arguments, said in (
        (("r9", "--log", log), (1, "is in none of")),
        (("r1", "--log", tmp_path / "no.jsonl"), (2, "can't be read")),
        (("--log", log), (2, "Name one of")),
        (("", "--log", log), (2, "ID is empty")),
        (("r1", "--last", 3, "--log", log), (2, "Name one of")),
        (("r1", "--worker", "a/0", "--log", log), (2, "leave out --worker")),
        (("--last", 3, "--limit", 2, "--log", log), (2, "--limit goes with --worst")),
        (("r1", "--what-if", "round_robin", "--log", log), (2, "expected policy=NAME")),
        (("r1", "--what-if", "policy=raund_robin", "--log", log), (2, "did you mean 'round_robin'?")),
        (("--skew", "--what-if", "policy=kv", "--log", log), (2, "not with --skew")),
        (("r1", "--log", log, "--admin-url", "http://h:1"), (2, "either --log or --admin-url")),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (said[0], ""), arguments
        assert said[1] in err, arguments


def test_lines_that_are_no_decisions(run: Run, tmp_path: Path) -> None:
    log = write(tmp_path / "d.jsonl", decided(1))
    log.write_bytes(log.read_bytes() + b'{"id": "cut')
    code, out, err = run("r1", "--log", log)
    assert (code, out[:3]) == (0, "r1 ")
    assert "1 lines are no decisions" in err
    assert "line 3" in err
    log.write_text("hello\n")
    assert run("r1", "--log", log)[0] == 2
    log.write_text('{"pointsman_decisions": 9}\n')
    assert "format 9; this version of pointsman reads 1" in run("r1", "--log", log)[2]


def test_skew(run: Run, tmp_path: Path) -> None:
    uneven = dealt(Session(), 400, key=lambda number, rng: f"tenant {min(3, int(rng.expovariate(1.5)))}")
    log = write(tmp_path / "d.jsonl", *uneven)
    code, out, _ = run("--skew", "--log", log)
    assert code == 0
    assert "route keys are too coarse" in out
    assert "to do (route_keys): route by something finer" in out
    document = json.loads(run("--skew", "--log", log, "--json")[1])
    assert document["models"][0]["causes"][0]["kind"] == "route_keys"
    even = write(tmp_path / "e.jsonl", *dealt(Kv(), 400))
    assert "no imbalance beyond chance" in run("--skew", "--log", even)[1]


# ---- front ends


class Rings:
    """Two front ends, each with a ring of its own; the second one may be away."""

    def __init__(self) -> None:
        self.rows = {"http://h:1": [decided(1), decided(3)], "http://h:2": [decided(2)]}
        self.gone = {"r0": "http://h:2"}
        self.away: set[str] = set()
        self.asked: list[str] = []

    def call(self, method: str, url: str, path: str, answer: type, body: object = None) -> object:
        self.asked.append(path)
        if url in self.away:
            raise NoFrontEndError(url, "refused")
        if path == "/v1/status":
            return msgspec.convert(
                {"version": "0", "policy": "kv", "policy_in_force": "kv", "models": {}, "workers": [], "engines": [],
                 "requests": {"running": 0, "waiting": 0, "finished_total": 0, "failed_total": 0, "cancelled_total": 0,
                              "retries_total": 0, "missing_usage_total": 0, "ttft_mean_ms": None,
                              "cached_share": None}},
                Status,
            )  # fmt: skip
        name, _, query = path.removeprefix("/v1/decisions").partition("?")
        if not name:
            most = int(re.search(r"limit=(\d+)", query)[1])  # type: ignore[index]
            rows = self.rows[url][::-1][:most]
            return msgspec.convert({"decisions": msgspec.to_builtins(rows)}, answer)
        for row in self.rows[url]:
            if row.id == name[1:]:
                return row
        once = f"{name[1:]} was answered here, but is no longer among the last 3"
        never = f"{name[1:]} is no id that this front end gave out"
        raise RefusedError(url + path, 404, once if self.gone.get(name[1:]) == url else never)


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> Rings:
    made = Rings()
    monkeypatch.setattr(explain_source, "call", made.call)
    monkeypatch.setattr(explain_source, "front_ends", lambda url: list(made.rows))
    return made


def test_all_front_ends_are_asked(run: Run, rings: Rings) -> None:
    document = json.loads(run("r2", "--json")[1])
    assert document["source"] == "http://h:2"
    found = json.loads(run("--last", 2, "--json")[1])["decisions"]
    assert [one["decision"]["id"] for one in found] == ["r3", "r2"]
    assert "what if: round_robin would have chosen b/0" in run("r3", "--what-if", "policy=round_robin")[1]


def test_an_id_that_nobody_has(run: Run, rings: Rings) -> None:
    code, out, err = run("r0")
    assert (code, out) == (1, "")
    assert "r0 was answered here, but is no longer among the last 3 (2 front ends were asked)" in err
    assert "r7 is no id that one of 2 front ends gave out, nor what a client calls" in run("r7")[2]


def test_a_front_end_that_does_not_answer(run: Run, rings: Rings) -> None:
    rings.away.add("http://h:2")
    code, out, err = run("--last", 5)
    assert code == 0
    assert "r3" in out
    assert "note: no front end answers at http://h:2" in err
    rings.away.add("http://h:1")
    code, _, err = run("r1")
    assert code == 2
    assert "no front end answers at http://h:1" in err


def test_nothing_was_decided(run: Run, rings: Rings) -> None:
    rings.rows = {"http://h:1": []}
    assert run("--last", 5)[::2] == (1, "pointsman: no decision that is kept matches; there may be none yet\n")
    assert run("--skew")[0] == 1


def test_ids_are_escaped(run: Run, rings: Rings) -> None:
    run("a/b?c")
    assert rings.asked[0] == "/v1/decisions/a%2Fb%3Fc?state=1"


class TestTransfers:
    @pytest.fixture
    def moved(self, tmp_path: Path) -> Path:
        rows = [ended_move(decided_move(f"r{number}"), 200.0 + 200 * number, legs=told()).row() for number in range(3)]
        fell_back = ended_move(decided_move("x"), 900.0, legs=told(fallback="connection lost: EOF")).row()
        return write(tmp_path / "m.jsonl", *rows, fell_back, ended_move(decided_move("alone", links=SLOW)).row())

    def test_are_summed_up_for_people(self, run: Run, moved: Path) -> None:
        code, out, err = run("--transfers", "--log", moved)
        assert (code, err) == (0, "")
        lines = [" ".join(line.split()) for line in out.splitlines()]
        assert lines[0].startswith("KV was to be moved for 4 of 5 requests: their first tokens came ")
        assert lines[1].startswith("by hour requests saved lost mean alone* mean with* mean observed")
        assert any(line.startswith("p → e 4 ") for line in lines)
        assert any(line.startswith("p/0 → e/0 4 ") for line in lines)
        assert "fell back, 1 time: connection lost" in lines
        assert "nobody can observe what would have been" in out

    def test_are_summed_up_for_programs_and_narrowed(self, run: Run, moved: Path) -> None:
        document = json.loads(run("--transfers", "--log", moved, "--json")[1])
        assert (document["decisions"], document["total"]["requests"], document["fallbacks"]) == (
            5, 4, {"connection lost": 1},
        )  # fmt: skip
        last = json.loads(run("--transfers", "--last", 2, "--log", moved, "--json")[1])
        assert (last["decisions"], last["total"]["fallbacks"]) == (2, 1)
        assert run("--transfers", "--prefill-worker", "q/0", "--log", moved)[0] == 1

    def test_of_front_ends_are_added(self, run: Run, rings: Rings, monkeypatch: pytest.MonkeyPatch) -> None:
        sums = TransferSums()
        sums.add(ended_move(decided_move(), legs=told()).row())
        asked: list[str] = []

        def call(method: str, url: str, path: str, answer: type) -> object:
            asked.append(path)
            return msgspec.json.decode(msgspec.json.encode(sums.report()), type=answer)

        monkeypatch.setattr(explain_source, "call", call)
        monkeypatch.setattr(explain_source, "front_ends", lambda url: ["http://h:1", "http://h:2"])
        document = json.loads(run("--transfers", "--since", "1h", "--model", "m", "--json")[1])
        assert document["total"]["requests"] == 2
        assert all(path.startswith("/v1/transfers?model=m&since=") for path in asked)
        assert len(asked) == 2

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--transfers", "--skew"), "Name one of"),
            (("--transfers", "--status", "failed"), "leave out --status"),
            (("--transfers", "--arm", "trial"), "leave out --arm"),
            (("--transfers", "--what-if", "policy=kv"), "not with --skew or --transfers"),
            (("r1", "--prefill-worker", "p/0"), "leave out --prefill-worker"),
        ],
    )
    def test_what_goes_not_together(self, run: Run, moved: Path, arguments: tuple[str, ...], said: str) -> None:
        code, out, err = run(*arguments, "--log", moved)
        assert (code, out) == (2, "")
        assert said in err

    def test_one_decision_shows_the_best_plan_of_each_kind(self, run: Run, tmp_path: Path) -> None:
        row = ended_move(decided_move(), legs=told()).row(state=True)
        log = write(tmp_path / "one.jsonl", row)
        code, out, _ = run("pm-1-1", "--log", log)
        lines = [" ".join(line.split()) for line in out.splitlines()]
        assert code == 0
        assert any(line.startswith("aggregated d/0 ") for line in lines)
        assert any(line.startswith("→ apart p/0 → e/0 ") for line in lines)
        assert any(re.match(r"transfer of KV, ms [\d.]+ 40 [+-][\d.]+$", line) for line in lines)
        assert any(line.startswith("what came of the KV: p/0 had computed the prompt after 180 ms") for line in lines)
        document = json.loads(run("pm-1-1", "--log", log, "--json")[1])
        assert document["decision"]["legs"]["transport"] == "nixl"
        assert document["came"].startswith("p/0 had computed the prompt")
        assert document["decision"]["plans"]
