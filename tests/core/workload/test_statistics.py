from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from pointsman.core.workload.generators.arrivals import Gamma
from pointsman.core.workload.generators.independent import Independent, independent
from pointsman.core.workload.statistics import Spread, statistics
from pointsman.core.workload.trace import Trace, TraceRequest
from pointsman.edge.traces.formats import read_trace
from support.recorded import recorded
from support.workloads import traces


@given(traces())
@settings(max_examples=30, deadline=None)
def test_figures_are_as_counted_one_by_one(trace: Trace) -> None:
    figures = statistics(trace)
    prompts = sorted(request.prompt_tokens for request in trace.requests)
    assert figures.requests == len(prompts)
    assert figures.total_prompt_tokens == sum(prompts)
    assert figures.prompt_tokens.mean == pytest.approx(sum(prompts) / len(prompts))
    assert figures.prompt_tokens.p50 == prompts[-(-len(prompts) // 2) - 1]
    assert figures.prompt_tokens.max == prompts[-1]
    times = [request.at_ms for request in trace.requests]
    for window, per_s in figures.arriving.peak_per_s.items():
        most = max(sum(start <= at < start + float(window) * 1000 for at in times) for start in times)
        assert per_s == most / float(window)
    sessions = {request.session for request in trace.requests} - {None}
    assert (figures.sessions.count if figures.sessions else 0) == len(sessions)
    assert figures.reuse is not None
    shares = list(figures.reuse.share_by_cache_tokens.values())
    assert shares == sorted(shares)
    assert shares[-1] == figures.reuse.share >= figures.reuse.same_session_share


def test_burstiness_and_rate() -> None:
    trace = independent(Independent(Gamma(8, 2.5), requests=20_000), np.random.default_rng(3))
    arriving = statistics(trace).arriving
    assert arriving.per_s == pytest.approx(8, rel=0.05)
    assert arriving.cv == pytest.approx(2.5, rel=0.05)
    assert statistics(trace).reuse is None
    assert statistics(trace).sessions is None


def test_one_request_and_all_at_once() -> None:
    one = statistics(Trace("n", (TraceRequest(5, 3, 2),)))
    assert (one.arriving.duration_s, one.arriving.per_s, one.arriving.cv) == (0, None, None)
    two = statistics(Trace("n", (TraceRequest(0, 5, 5), TraceRequest(500, 5, 5)))).arriving
    assert (two.per_s, two.cv) == (2, None)
    assert Spread.of([]) is None
    with pytest.raises(ValueError, match="without requests"):
        statistics(Trace("n", ()))


def test_kinds_of_requests_are_counted() -> None:
    requests = (
        TraceRequest(0, 1, 1, model="m", priority=1),
        TraceRequest(0, 1, 1, model="m", session="s"),
        TraceRequest(0, 1, 1, session="s", after=1, gap_ms=2500),
    )
    figures = statistics(Trace("n", requests))
    assert figures.models == {"m": 2, "": 1}
    assert figures.tenants == {}
    assert figures.priorities == {0: 2, 1: 1}
    assert figures.sessions is not None
    assert figures.sessions.following == 1
    assert figures.sessions.gap_s is not None
    assert figures.sessions.gap_s.p50 == 2.5


def test_the_recorded_traces() -> None:
    azure = statistics(read_trace(recorded("azure-2023/AzureLLMInferenceTrace_conv.csv")).trace)
    prompts = azure.prompt_tokens
    assert (round(prompts.mean), prompts.p50, prompts.p90) == (1155, 1020, 2735)
    assert azure.output_tokens.mean == pytest.approx(211, abs=0.5)
    assert azure.arriving.per_s == pytest.approx(5.53, abs=0.005)
    mooncake = statistics(read_trace(recorded("mooncake/conversation_trace.jsonl")).trace)
    assert mooncake.arriving.per_s == pytest.approx(3.40, abs=0.005)
