"""Outcomes, policies and experiments made by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from pointsman.app.experiments import runner
from pointsman.app.simulate.intervals import IntervalCounter
from pointsman.app.simulate.outcome import Outcome, Status, WorkerTotals
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.policies.policy import Policy
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.trace import Trace, TraceRequest

MakeOutcome = Callable[..., Outcome]
NAN = float("nan")


def outcome_of(
    ttft_ms: Sequence[float],
    *,
    arrival_ms: Sequence[float] | None = None,
    tpot_ms: float = 20.0,
    output_tokens: int = 11,
    asked_tokens: int | None = None,
    prompt_tokens: int = 100,
    cached_tokens: int = 40,
    busy_ms: Sequence[float] = (500.0, 1_500.0),
    status: Sequence[Status] | None = None,
) -> Outcome:
    """One entry a TTFT; nan for a request that failed at once."""
    count = len(ttft_ms)
    arrivals = np.array(range(0, 100 * count, 100) if arrival_ms is None else arrival_ms, dtype=np.float64)
    first = arrivals + np.array(ttft_ms, dtype=np.float64)
    ended = first + tpot_ms * (output_tokens - 1)
    failed = np.isnan(first)
    states = np.where(failed, Status.REJECTED, Status.DONE) if status is None else np.array(status)
    counter = IntervalCounter()
    counter.add(tpot_ms, float((output_tokens - 1) * np.count_nonzero(~failed)))
    workers = tuple(
        WorkerTotals(f"w{number}", "p", 2, busy, 2 * 4_000.0, count, 60 + 40 * (number + 1), 40, 10, number)
        for number, busy in enumerate(busy_ms)
    )
    return Outcome(
        arrival_ms=arrivals,
        dispatched_ms=arrivals,
        first_token_ms=first,
        end_ms=np.where(failed, arrivals, ended),
        prompt_tokens=np.full(count, prompt_tokens),
        output_tokens=np.where(failed, 0, output_tokens),
        asked_tokens=np.full(count, output_tokens if asked_tokens is None else asked_tokens),
        cached_tokens=np.where(failed, 0, cached_tokens),
        worker=np.zeros(count, dtype=np.int64),
        prefill_worker=np.full(count, -1),
        prefilled_ms=np.full(count, np.nan),
        kv_arrived_ms=np.full(count, np.nan),
        moved_tokens=np.zeros(count, dtype=np.int64),
        fallback=np.zeros(count, dtype=np.bool_),
        status=states.astype(np.int64),
        itl=counter.histogram(),
        workers=workers,
        started_ms=0.0,
        ended_ms=4_000.0,
    )


@pytest.fixture
def make_outcome() -> MakeOutcome:
    return outcome_of


@pytest.fixture
def setup() -> Setup:
    return Setup(groups=(WorkerGroup(profile("h100/llama-8b"), 4),))


@pytest.fixture
def trace() -> Trace:
    """Ten requests a second for twelve seconds."""
    requests = [TraceRequest(at_ms=100.0 * number, prompt_tokens=100, output_tokens=11) for number in range(120)]
    return Trace("made", requests, source="by hand")


@pytest.fixture
def fake_simulate(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The simulator is replaced: TTFT by policy, with the seed's luck for all and a little of the policy's own.

    round_robin has twice the TTFT of the others, and everybody's grows with the rate squared over the workers. The
    calls are in the list: policy, seed, workers.
    """
    calls: list[tuple[str, int, int]] = []

    def simulate(
        trace: Trace,
        setup: Setup,
        policy: Policy,
        *,
        seed: int,
        policy_seed: int,
        clients: int | None,
        on_progress: Callable[[int, int], None] | None,
    ) -> Outcome:
        calls.append((policy.name, seed, setup.workers))
        if on_progress is not None:
            on_progress(len(trace) // 2, len(trace))
        rate = len(trace) / max(trace.duration_ms, 1.0) * 1_000
        level = 400.0 * (2.0 if policy.name == "round_robin" else 1.0) * (rate / 10) ** 2 * (4 / setup.workers)
        luck, own = random.Random(seed), random.Random(policy_seed)
        level *= luck.lognormvariate(0, 0.3) * own.lognormvariate(0, 0.02)
        return outcome_of(
            [level * own.lognormvariate(0, 0.1) for _ in trace.requests],
            arrival_ms=[request.at_ms for request in trace.requests],
        )

    monkeypatch.setattr(runner, "simulate", simulate)
    return calls
