"""What of a file becomes a measurement."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pointsman.app.calibration.measurement import Measurement, measurement, measurements
from pointsman.core.model.errors import CalibrationError
from pointsman.core.workload.trace import Trace, TraceRequest
from pointsman.edge.traces.loaded import LoadedTrace
from pointsman.edge.traces.observed import Observed
from pointsman.edge.traces.problems import Problems


def loaded(count: int, workers: int = 1, *, known: int | None = None) -> LoadedTrace:
    requests, seen = [], []
    for number in range(count):
        requests.append(TraceRequest(100.0 * number, 10 + number, 5))
        has_times = known is None or number < known
        seen.append(
            Observed(
                arrival_ms=100.0 * number,
                first_token_ms=100.0 * number + 30 if has_times else None,
                last_token_ms=100.0 * number + 90 if has_times else None,
                prompt_tokens=10 + number,
                output_tokens=5,
                worker=f"w{number % workers}" if workers > 1 else None,
            )
        )
    return LoadedTrace(Trace("t", tuple(requests)), Problems("file.jsonl"), tuple(seen))


def test_a_whole_file_has_no_horizon() -> None:
    (found,) = measurements(loaded(10))
    assert len(found) == 10
    assert found.horizon_ms == math.inf
    assert not found.goes_on
    assert found.first_ms[3] - found.arrival_ms[3] == 30


def test_the_first_requests_end_where_the_last_of_them_began() -> None:
    (found,) = measurements(loaded(20), most_requests=9)
    assert len(found) == 9
    assert found.horizon_ms == 830.0
    assert measurements(loaded(9), more_followed=True)[0].horizon_ms == 830.0
    assert not measurements(loaded(9), most_requests=9)[0].goes_on


def test_workers_are_measured_apart_and_each_begins_at_zero() -> None:
    one, other = measurements(loaded(20, workers=2))
    assert len(one) == len(other) == 10
    assert one.arrival_ms[0] == other.arrival_ms[0] == 0
    assert [request.prompt_tokens for request in other.requests][:2] == [11, 13]


def test_of_many_workers_those_with_the_most_requests_are_taken() -> None:
    # Of 4 workers, w0 and w1 have five requests and the others four.
    found = measurements(loaded(18, workers=4), most_workers=2)
    assert [one.requests[0].prompt_tokens for one in found] == [10, 11]
    assert [len(one) for one in found] == [5, 5]


@pytest.mark.parametrize(("known", "message"), [(0, "has 0 requests with times"), (7, "at least 8 are needed")])
def test_too_few_times_are_refused(known: int, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        measurements(loaded(20, known=known))


def test_a_trace_alone_says_nothing_of_speed() -> None:
    trace = loaded(20)
    with pytest.raises(CalibrationError, match=r"file\.jsonl: holds no times.*--engine URL"):
        measurements(LoadedTrace(trace.trace, trace.problems))


def test_prefixes_come_from_the_trace_that_the_run_was_made_with() -> None:
    run = loaded(10)
    ids = tuple(
        TraceRequest(request.at_ms, request.prompt_tokens, 5, (7, 100 + number)[: 1 + (number > 0)])
        for number, request in enumerate(run.trace.requests)
    )
    (found,) = measurements(run, prefixes=Trace("p", ids, 10))
    assert found.requests[2].block_ids == (7, 102)
    assert found.hashes(9, 10) == (7,)  # 19 tokens fill one block of 10
    assert found.hashes(9, 5) == (14, 15)
    assert found.shared_blocks(5) == (2,) * 10
    with pytest.raises(CalibrationError, match="one must be a multiple"):
        found.hashes(9, 4)
    with pytest.raises(CalibrationError, match="has 10 requests and the trace p 9"):
        measurements(run, prefixes=Trace("p", ids[:9], 10))
    other = (TraceRequest(0.0, 99, 5), *ids[1:])
    with pytest.raises(CalibrationError, match=r"request 0 has 10 prompt tokens in .* and 99 in the trace p"):
        measurements(run, prefixes=Trace("p", other, 10))


def test_requests_are_put_in_order_of_arrival() -> None:
    rows = list(zip(loaded(10).trace.requests, loaded(10).observed, strict=True))[::-1]
    found = measurement(rows)
    assert found.arrival_ms.tolist() == [100.0 * number for number in range(10)]
    assert not found.in_engine


def test_first_tokens_that_a_client_read_one_by_one_ended_one_step() -> None:
    requests = tuple(TraceRequest(0.0, 10, 11) for _ in range(4))
    first = np.array([50.0, 50.4, 75.0, np.nan])
    found = Measurement(requests, first, first + 200)  # 20 ms a token
    assert found.step_ends_ms[:3].tolist() == [50.0, 50.0, 75.0]
    assert math.isnan(found.step_ends_ms[3])
