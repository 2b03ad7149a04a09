from __future__ import annotations

from typing import Any

import msgspec
import pytest

import decision
import local_fleet
import relay
import streams
from harness import exact_decisions
from harness.chats import ChatPlan, Turn, run_chats
from harness.histogram import Percentiles
from harness.load_spec import LoadReport
from harness.processes import BenchmarkError
from harness.token_prompts import TokenPrompts

REPORT = LoadReport(
    duration_s=2.0,
    requests=1_000,
    errors=0,
    last_error=None,
    open_streams=0,
    waiting_arrivals=0,
    requests_per_s=500.0,
    events_per_s=26_500.0,
    events_per_request=53.0,
    reads_per_request=50.0,
    ttft_ms=Percentiles(1_000, 1.0, 2.0, 3.0, 4.0),
    itl_ms=Percentiles(50_000, 50.0, 51.0, 52.0, 60.0),
    e2e_ms=Percentiles(1_000, 30.0, 40.0, 50.0, 60.0),
    client_cpu_share=0.3,
    foreign_cores=0.02,
    watched_cpu_s=0.5,
    watched_cpu_share=0.25,
    rss_bytes=(60_000_000, 64_000_000, 62_000_000),
)


def _report(**changes: Any) -> LoadReport:
    return msgspec.structs.replace(REPORT, **changes)


def _ttft(p50: float, p99: float) -> Percentiles:
    return Percentiles(1_000, p50, p50, p99, p99)


def _relay_results() -> dict[str, Any]:
    rounds = {
        "direct": [_report(watched_cpu_s=0.0, watched_cpu_share=0.0, ttft_ms=_ttft(1.0, 2.0))] * 3,
        "pointsman prefix": [
            _report(watched_cpu_s=cpu_s, ttft_ms=_ttft(p50, 4.0)) for cpu_s, p50 in ((0.3, 1.5), (0.9, 9.0), (0.4, 1.6))
        ],
        "dynamo kv": [_report(watched_cpu_s=1.0, errors=1)] * 3,
    }
    sizes = {"direct": None, "pointsman prefix": 60_000_000, "dynamo kv": 170_000_000}
    return {
        "versions": {"pointsman prefix": "0.1.0", "dynamo kv": "1.6.1"},
        "own_engine": ["dynamo kv"],
        "idle_rss_bytes": sizes,
        "end_rss_bytes": sizes,
        "reports": {
            **dict.fromkeys(relay.SCENARIOS, rounds),
            relay.LONG: {"dynamo kv": [_report(watched_cpu_s=4.0)] * 3},
        },
    }


def test_relay_takes_medians_over_rounds_and_adds_against_the_engine() -> None:
    rows = relay.summary(_relay_results())
    assert rows["pointsman prefix"]["cpu_us"] == pytest.approx(400)
    assert rows["pointsman prefix"]["added_ttft_p50_ms"] == pytest.approx(0.6)
    assert rows["pointsman prefix"]["added_ttft_p99_ms"] == pytest.approx(2.0)
    assert rows["direct"]["cpu_us"] is None
    assert rows["dynamo kv"]["errors"] == 9
    assert rows["dynamo kv"]["long_cpu_us"] == pytest.approx(4_000)
    assert rows["pointsman prefix"]["long_cpu_us"] is None


def test_relay_never_compares_a_front_end_with_an_engine_that_it_does_not_use() -> None:
    assert "added_ttft_p50_ms" not in relay.summary(_relay_results())["dynamo kv"]
    text = relay.markdown(_relay_results())
    assert "(1.00 in all)" in next(line for line in text.splitlines() if line.startswith("| dynamo kv"))
    assert "| pointsman prefix | 0.40 |" in text


def test_relay_shows_long_prompts_only_of_those_that_were_asked() -> None:
    table = relay.markdown(_relay_results()).rpartition("\n\n")[2]
    assert table.splitlines()[2:] == ["| dynamo kv | 4,000 | 1.00 | 500 |"]


def test_each_run_of_relay_ends_its_prompts_anew_and_short_ones_stay_short() -> None:
    target = relay.Running("a", 1, "m", None)
    options = relay.Options()
    paced = relay._spec("paced", options, target, (), 5)
    assert (paced.tail_seed, paced.prefix_words, paced.max_tokens, paced.rate_per_s) == (5, 52, 50, 200.0)
    long = relay._spec(relay.LONG, options, target, (), 6)
    assert (long.prefix_words, long.tail_words, long.history_messages, long.max_tokens) == (1_800, 200, 9, 16)


def test_each_round_begins_with_another_front_end() -> None:
    running = [relay.Running(name, 1, "m", None) for name in "abc"]
    firsts = [relay._rotated(running, turn)[0].name for turn in range(4)]
    assert firsts == ["a", "b", "c", "a"]
    assert [each.name for each in relay._rotated(running, 1)] == ["b", "c", "a"]


def test_streams_are_judged_against_the_engine_before_and_after() -> None:
    base, again = (_report(itl_ms=Percentiles(1, 50.0, 51.0, p99, 60.0), watched_cpu_share=0.0) for p99 in (51.0, 55.0))
    reports = {"direct": base, "pointsman prefix": _report(), "direct, again": again}
    rows = streams.summary({"reports": reports})
    assert rows["pointsman prefix"]["added_itl_p99_ms"] == pytest.approx(-1.0)
    assert rows["direct"]["added_itl_p99_ms"] is None
    assert "60 → 62 (64)" in streams.markdown({"reports": reports})


def _turn(**changes: Any) -> Turn:
    fields: dict[str, Any] = {
        "session": 0,
        "turn": 1,
        "repeated": False,
        "prompt_tokens": 100,
        "cached_tokens": 80,
        "completion_tokens": 10,
        "new_share": 0.15,
        "ttft_s": 0.2,
        "worker": "a/0",
    }
    return Turn(**(fields | changes))


def test_local_fleet_keeps_first_and_repeated_prompts_apart() -> None:
    rounds = [
        [
            _turn(turn=0, cached_tokens=0, new_share=1.0, ttft_s=9.0),
            _turn(turn=1),
            _turn(turn=2, prompt_tokens=300, cached_tokens=100, ttft_s=0.4, worker="b/0"),
            _turn(turn=3, repeated=True, cached_tokens=99, new_share=0.0, ttft_s=0.01, worker="b/0"),
        ]
    ]
    arm = local_fleet.summarise(rounds)
    assert arm.cached_share == pytest.approx(180 / 400)
    assert arm.cached_share_first_turns == 0.0
    assert arm.ttft_mean_ms == pytest.approx(300)
    assert arm.repeated_cached_share == pytest.approx(0.99)
    assert arm.repeated_ttft_p50_ms == 10.0
    assert arm.stayed_share == pytest.approx(2 / 3)
    table = local_fleet.markdown({"foreign_cores": 0.0, "turns": {"round_robin": rounds, "prefix": rounds}})
    assert "TTFT p50 of prefix ÷ round_robin: 1.00." in table


def test_local_fleet_refuses_prompts_that_are_hardly_new() -> None:
    with pytest.raises(BenchmarkError, match=r"only 5\.0% of a prompt was new"):
        local_fleet.summarise([[_turn(new_share=0.05), _turn(turn=0), _turn(repeated=True)]])


async def test_chats_grow_and_are_repeated_once(engine: int) -> None:
    plan = ChatPlan(sessions=3, turns=2, growth=0.16, concurrency=2, system_words=5, opening_words=10)
    turns = await run_chats(f"http://127.0.0.1:{engine}", "mock-model", plan, seed=1)
    assert [(turn.session, turn.turn, turn.repeated) for turn in turns] == [
        (session, turn, turn == 2) for session in range(3) for turn in range(3)
    ]
    assert {turn.cached_tokens for turn in turns} == {64}
    assert {turn.new_share for turn in turns if turn.turn == 0} == {1.0}
    assert {turn.new_share for turn in turns if turn.turn} == {0.0}  # the mock says 90 tokens for whatever comes


def test_decisions_are_measured_stage_by_stage_and_leave_no_request_behind() -> None:
    options = decision.Options(requests=40)
    stages = decision.measure("prefix", 8, 4, options, seed=1)
    assert set(stages) == set(decision.STAGES)
    assert all(one.count == 40 for one in stages.values())
    total, parts = stages["total"].p50, [stages[stage].p50 for stage in decision.STAGES[:-1]]
    assert total is not None
    assert all(part is not None and 0 < part < total for part in parts)


def test_decision_keeps_as_many_requests_in_flight_as_it_says_and_finds_known_prompts() -> None:
    bench = decision.prepare("prefix", 4, 20, seed=1)
    for number in range(300):
        bench.one(number, limit=32)
    snapshot = bench.ledger.snapshot()
    assert (bench.ledger.in_flight, snapshot.totals.finished) == (32, 268)
    assert snapshot.text_blocks >= 64 * 18


@pytest.mark.parametrize("policy", ["cost", "kv"])
def test_exact_decisions_find_all_that_the_workers_hold(policy: str) -> None:
    options = {"requests": 60, "sessions": 4, "in_flight_per_worker": 2, "seed": 1}
    stages = exact_decisions.measure(policy, 8, 200, **options)
    assert set(stages) == set(exact_decisions.STAGES)
    assert all(one.count == 60 for one in stages.values())
    total, parts = stages["total"].p50, [stages[stage].p50 for stage in exact_decisions.STAGES[:-1]]
    assert total is not None
    assert all(part is not None and 0 < part < total for part in parts)


def test_an_exact_decision_is_no_result_when_what_is_held_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_decisions.ExactBench, "_store", lambda self, *what: None)
    with pytest.raises(BenchmarkError, match=r"2 workers hold 176 tokens, but .* was found"):
        exact_decisions.measure("cost", 4, 200, requests=10, sessions=5, in_flight_per_worker=2, seed=1)


def test_token_prompts_begin_with_what_is_known_and_end_with_something_new() -> None:
    prompts = TokenPrompts(sessions=2, tokens=90, seed=1)
    first, again, other = prompts.prompt(0), prompts.prompt(2), prompts.prompt(1)
    assert (len(first), len(prompts.known[0])) == (90, 80)
    assert first[:80] == again[:80] == prompts.known[0] != other[:80]
    assert first[80:] != again[80:]
    assert TokenPrompts(sessions=2, tokens=90, seed=1).holders(8) == TokenPrompts(
        sessions=2, tokens=90, seed=1
    ).holders(8)


def test_decisions_are_shown_beside_the_peer() -> None:
    stages = {stage: Percentiles(9, 0.1, 0.1, 0.2, 0.3) for stage in exact_decisions.STAGES}
    results = {
        "foreign_cores": 0.0,
        "reports": {},
        "exact": {"cost/8/6400": [stages]},
        "peer": {"8/6400": [Percentiles(9, 0.2, 0.2, 0.8, 0.9)]},
        "peer_version": "1.6.1",
    }
    row = decision.summary(results)["cost/8/6400"]
    assert (row["total_p50_us"], row["peer_p99_us"]) == (pytest.approx(100), pytest.approx(800))
    assert "| cost | 6,400 | 8 | 100.0 |" in decision.markdown(results)
    assert "| 0.50 | 0.25 |" in decision.markdown(results)
