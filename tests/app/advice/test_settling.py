"""Short traffic looks easier than the same traffic that goes on: it is taken longer, or told."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from pointsman.app.advice.advise import advice
from pointsman.app.advice.consult import consult
from pointsman.app.advice.excerpt import busiest
from pointsman.app.advice.fleets import of_size
from pointsman.app.advice.laboratory import Case, Laboratory
from pointsman.app.advice.settling import settling_ms
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.trace import Trace, TraceRequest
from support.known_traffic import Consult, question, traffic


def _steady(requests: int, every_ms: float, output_tokens: int = 100) -> Trace:
    rows = (TraceRequest(number * every_ms, 1_000, output_tokens) for number in range(requests))
    return Trace("steady", tuple(rows))


def test_it_takes_two_answers_of_a_full_worker_and_ten_waits() -> None:
    asked = question(_steady(10, 100.0), slo="ttft=500ms")
    step = asked.profiles.decode.step
    sequences = asked.setup.max_num_seqs
    assert asked.profiles.decode.kv_tokens > sequences * 1_050
    assert settling_ms(asked) == pytest.approx(2 * 100 * step.step_ms(sequences, sequences * 1_050, 0) + 10 * 500)
    # No slower than the SLO allows, where it says.
    assert settling_ms(question(_steady(10, 100.0), slo="tpot=5ms")) == pytest.approx(2 * 100 * 5)
    assert settling_ms(question(_steady(10, 100.0), slo="e2e=300ms")) == pytest.approx(2 * 300)


def test_long_answers_count_for_as_long_as_they_stay() -> None:
    trace = _steady(9, 100.0, 100)
    uneven = replace(trace, requests=(*trace.requests, TraceRequest(900.0, 1_000, 900)))
    assert settling_ms(question(uneven, slo="tpot=5ms")) == pytest.approx(2 * 5 * (9 * 100**2 + 900**2) / 1_800)


@pytest.mark.parametrize(("lasting_ms", "expected"), [(0.0, 100), (900.0, 100), (2_000.0, 220), (9_000.0, 600)])
def test_a_stretch_that_is_over_too_soon_is_taken_longer(lasting_ms: float, expected: int) -> None:
    excerpt = busiest(_steady(1_000, 10.0), np.ones(1_000), most_cost=100, lasting_ms=lasting_ms)
    assert len(excerpt.trace) == pytest.approx(expected, rel=0.02)
    assert excerpt.load == pytest.approx(1, rel=0.02)


def test_a_trace_that_such_a_stretch_covers_stays_whole() -> None:
    trace = _steady(150, 10.0)
    assert busiest(trace, np.ones(150), most_cost=100, lasting_ms=1_400.0).trace is trace


def test_what_fits_while_a_fleet_fills_up_does_not_fit_for_long() -> None:
    asked = question(_steady(1_200, 22.0, 400), slo="ttft=300ms")
    worker = Case("round_robin", of_size(profile("h100/llama-8b"), 1))
    shares = []
    for lasting_ms in (0.0, settling_ms(asked)):
        part = busiest(asked.trace, np.ones(1_200), 250.0, lasting_ms=lasting_ms).trace
        with Laboratory(asked, part, 1) as lab:
            lab.measure([(worker, 0)])
            metrics = lab.metrics(worker, 0)
        assert metrics is not None
        shares.append(metrics["goodput_share"])
    assert shares[0] >= 0.95
    assert shares[1] < 0.5


def test_traffic_too_short_to_tell_says_so(consulted: Consult) -> None:
    short = advice(consulted(traffic(120, 24, groups=16), "3"))
    assert any(each.startswith("What was simulated lasts 2.86 s, and a fleet takes about") for each in short.unknown)
    gpus = " ".join(short.sections[1].sentences)
    assert "before the fleet is full" in gpus
    long = advice(consulted(traffic(40, 2_000, groups=8), "3"))
    assert not any("fill up" in each for each in long.unknown)


def test_faster_is_told_in_ms_and_that_one_worker_would_do() -> None:
    asked = question(traffic(60, 1_000, groups=20, shared_blocks=24), "3", slo="ttft=2s")
    answer = advice(consult(asked))
    assert answer.worth == "some", answer.headline
    assert re.search(r"TTFT [\d.]+ % ± [\d.]+ lower \([\d.]+ m?s, not [\d.]+ m?s\)", answer.headline), answer.headline
    assert answer.headline.endswith(
        "One worker would do for this load, and with one there is nothing to choose between."
    )
