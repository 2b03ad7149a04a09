"""Step times learned by the ledger, from the events that a front end gives it, in virtual time."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.engine_model.engine import EngineModel
from pointsman.core.engine_model.request import LengthRequest
from pointsman.core.ledger import events as ev
from pointsman.core.ledger import step_times, watch
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.ledger.snapshot import TimesSnapshot
from pointsman.core.ledger.step_times import class_name
from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.core.model.request import Request
from pointsman.core.model.worker import Role, WorkerId, WorkerSpec, worker_id
from pointsman.core.timing.interval import Interval
from pointsman.core.timing.step import StepCoefficients

REPORT_EVERY = 32
TRUE = StepCoefficients(20.0, 0.3, 0.4, 0.12)
CONFIG = EngineConfig(step=TRUE, num_blocks=50_000, max_num_seqs=64)


def spec(name: str, **fields: object) -> WorkerSpec:
    return WorkerSpec(worker_id(name), f"http://{name}", "vllm", ("m",), **fields)  # type: ignore[arg-type]


@dataclass
class ModelledFleet:
    """Engine models that tell a ledger what a front end would."""

    ledger: Ledger
    slow: dict[WorkerId, float]
    now_ms: float = 0.0
    engines: dict[WorkerId, EngineModel] = field(default_factory=dict)
    generated: dict[str, int] = field(default_factory=dict)
    ids: itertools.count[int] = field(default_factory=itertools.count)
    streamed: Callable[[int], bool] = lambda _: True
    heap: list[tuple[float, int, str, WorkerId]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for worker in self.slow:
            self.engines[worker] = EngineModel(CONFIG)

    def serve(self, count: int, rate_per_s: float, seed: int = 1, longest: int = 150) -> None:
        """Poisson arrivals, one worker after the other; a tick a second. Ends when all are answered."""
        rng = random.Random(seed)
        at_ms = self.now_ms
        names = list(self.slow)
        for number in range(count):
            at_ms += rng.expovariate(rate_per_s) * 1000
            self.push(at_ms, "arrival", names[number % len(names)])
        self.push(self.now_ms + 1000, "tick", names[0])
        while self.heap:
            self.now_ms, _, kind, worker = heapq.heappop(self.heap)
            if kind == "tick":
                self.ledger.apply(ev.Tick(self.now_ms))
                if self.heap:
                    self.push(self.now_ms + 1000, "tick", worker)
            elif kind == "arrival":
                self.arrives(worker, rng.randint(50, 3000), rng.randint(2, longest))
            else:
                self.step_ends(worker)

    def push(self, at_ms: float, kind: str, worker: WorkerId) -> None:
        heapq.heappush(self.heap, (at_ms, next(self.ids), kind, worker))

    def arrives(self, worker: WorkerId, prompt: int, output: int) -> None:
        number = next(self.ids)
        request = Request(f"r{number}", "m", self.now_ms, prompt, streamed=self.streamed(number))
        self.ledger.apply(ev.Admitted(request, self.now_ms))
        self.ledger.apply(ev.Dispatched(request.id, worker, self.now_ms))
        engine = self.engines[worker]
        busy = not engine.idle
        engine.add(LengthRequest(request.id, prompt, output))
        self.generated[request.id] = 0 if request.streamed else -(10**9)
        if not busy:
            self.begin(worker)

    def begin(self, worker: WorkerId) -> None:
        step = self.engines[worker].begin_step(self.now_ms, slow=self.slow[worker])
        if step is not None:
            self.push(self.now_ms + step.duration_ms, "step", worker)

    def step_ends(self, worker: WorkerId) -> None:
        engine = self.engines[worker]
        before = [s.request.id for s in engine.requests() if s.first_token_ms is not None]
        result = engine.finish_step(self.now_ms)
        for sequence in result.first:
            if self.generated[sequence.request.id] == 0:
                self.ledger.apply(ev.FirstToken(sequence.request.id, self.now_ms))
                self.generated[sequence.request.id] = 1
        for request_id in before:
            self.generated[request_id] += 1
            if self.generated[request_id] > 0 and self.generated[request_id] % REPORT_EVERY == 0:
                self.ledger.apply(ev.Progress(request_id, self.now_ms, REPORT_EVERY))
        for sequence in result.finished:
            request = sequence.request
            assert isinstance(request, LengthRequest)
            self.ledger.apply(
                ev.Finished(request.id, self.now_ms, request.prompt_tokens, 0, output_tokens=request.output_tokens)
            )
        self.begin(worker)


def fleet(slow: dict[str, float], profile: str | None = None, **priors: StepCoefficients) -> ModelledFleet:
    ledger = Ledger(step_priors=priors)
    for name in slow:
        ledger.apply(ev.WorkerJoined(spec(name, profile=profile), 0.0))
        ledger.apply(ev.HealthRead(worker_id(name), 0.0, True, True, "modelled"))
    return ModelledFleet(ledger, {worker_id(name): factor for name, factor in slow.items()})


def times(ledger: Ledger, name: str) -> TimesSnapshot:
    found = {worker.id: worker.times for worker in ledger.snapshot().workers}[worker_id(name)]
    assert found is not None
    return found


def off(learned: StepCoefficients, truth: StepCoefficients) -> float:
    """By how much steps of batches as they were seen would be mispredicted, at most."""
    batches = ((1, 1500, 0), (3, 5000, 0), (2, 4000, 2000))
    return max(abs(learned.step_ms(*batch) / truth.step_ms(*batch) - 1) for batch in batches)


class TestLearning:
    def test_from_nothing(self) -> None:
        modelled = fleet({"a": 1.0, "b": 1.0})
        assert modelled.ledger.timing == {}
        modelled.serve(300, 2.0)
        assert off(times(modelled.ledger, "a").step, TRUE) < 0.05
        timing = modelled.ledger.timing
        assert set(timing) == {"a/0", "b/0"}
        assert timing["a/0"].step == times(modelled.ledger, "a").step
        assert timing["a/0"].step_ratios[0] == pytest.approx(1.0, abs=0.03)

    def test_from_a_profile_that_is_three_times_too_fast(self) -> None:
        modelled = fleet({"a": 1.0}, "p", p=TRUE.scaled(1 / 3))
        assert off(modelled.ledger.timing["a/0"].step, TRUE) > 0.6
        modelled.serve(100, 1.0)
        assert times(modelled.ledger, "a").worker_class == "p"
        assert off(times(modelled.ledger, "a").step, TRUE) < 0.08

    def test_a_slow_worker_shows_its_factor(self) -> None:
        modelled = fleet({"a": 1.0, "b": 1.0, "c": 1.5})
        modelled.serve(500, 2.0)
        assert times(modelled.ledger, "c").factor == pytest.approx(1.5, rel=0.08)
        assert times(modelled.ledger, "a").factor == pytest.approx(1.0, rel=0.05)
        assert off(times(modelled.ledger, "c").step, TRUE.scaled(1.5)) < 0.08

    def test_first_tokens_are_predicted(self) -> None:
        modelled = fleet({"a": 1.0})
        modelled.serve(200, 0.5)
        error = times(modelled.ledger, "a").ttft_error
        assert error.samples >= 20
        assert error.mape is not None
        assert error.mape < 15

    def test_a_busy_worker_is_watched_for_a_part_of_the_time(self, monkeypatch) -> None:
        monkeypatch.setattr(step_times, "_EVENTS_A_TICK", 16)
        monkeypatch.setattr(step_times, "_LEAST_EVENTS", 16)
        modelled = fleet({"a": 1.0})
        modelled.serve(400, 2.0)
        assert off(times(modelled.ledger, "a").step, TRUE) < 0.1

    def test_no_more_is_kept_than_a_bound_when_no_tick_comes(self, monkeypatch, make_request) -> None:
        """What was not kept is not missed: the watch begins anew with what is in flight."""
        monkeypatch.setattr(watch, "MOST_KEPT", 10)
        modelled = fleet({"a": 1.0})
        for number in range(20):
            modelled.ledger.apply(ev.Admitted(make_request(f"early {number}"), 0.0))
            modelled.ledger.apply(ev.Dispatched(f"early {number}", worker_id("a"), 0.0))
        modelled.ledger.apply(ev.Tick(1.0))
        for number in range(20):
            modelled.ledger.apply(ev.Cancelled(f"early {number}", 2.0))
        modelled.ledger.apply(ev.Tick(3.0))
        modelled.now_ms = 4.0
        modelled.serve(40, 1.0)
        assert times(modelled.ledger, "a").intervals > 10

    def test_answers_that_do_not_stream_are_load_only(self) -> None:
        modelled = fleet({"a": 1.0})
        modelled.streamed = lambda number: number % 3 != 0
        modelled.serve(300, 1.0)
        assert off(times(modelled.ledger, "a").step, TRUE) < 0.15

    def test_same_events_same_times(self) -> None:
        found = []
        for _ in range(2):
            modelled = fleet({"a": 1.0, "b": 1.2})
            modelled.serve(100, 2.0)
            found.append(modelled.ledger.timing)
        assert found[0] == found[1]


class TestOthersRequests:
    def test_nothing_is_learned_where_most_are_others(self) -> None:
        modelled = fleet({"a": 1.0})
        for _ in range(2):
            modelled.ledger.apply(ev.MetricsRead(worker_id("a"), 0.0, 50, 50))
        modelled.serve(30, 1.0)
        assert modelled.ledger.snapshot().workers[0].times is None

    def test_some_are_taken_to_be_like_ours(self) -> None:
        """Two front ends share a worker: each sees half of its sequences, all of its steps."""
        intervals = [Interval(100.0, 10, 40, 40_000, 500, 2e6), Interval(100.0, 1, 0, 0, 3000, 9e6)]
        found = step_times._with_foreign(intervals, ours=4, foreign=4)
        assert found == [Interval(100.0, 10, 80, 80_000, 1000, 4e6, weight=0.25)]
        assert step_times._with_foreign(intervals, ours=4, foreign=0) == intervals


class TestWorkers:
    def test_a_worker_that_leaves_has_no_times_and_its_class_keeps_what_it_taught(self) -> None:
        modelled = fleet({"a": 1.0})
        modelled.serve(60, 1.0)
        before = times(modelled.ledger, "a").step
        modelled.ledger.apply(ev.WorkerLeft(worker_id("a"), modelled.now_ms, "test"))
        assert modelled.ledger.timing == {}
        modelled.ledger.apply(ev.WorkerJoined(spec("a"), modelled.now_ms))
        assert times(modelled.ledger, "a").step == before
        assert times(modelled.ledger, "a").step_error.samples == 0

    def test_one_that_left_before_its_class_was_known_is_no_member_of_it(self) -> None:
        modelled = fleet({"a": 1.6, "b": 1.0})
        ledger = modelled.ledger
        modelled.slow.pop(worker_id("b"))
        modelled.serve(1, 1.0, longest=20)
        assert ledger.timing == {}
        ledger.apply(ev.WorkerLeft(worker_id("a"), modelled.now_ms, "test"))
        modelled.slow = {worker_id("b"): 1.0}
        modelled.serve(60, 1.0)
        # A class of one has no factor.
        assert times(ledger, "b").factor == 1.0
        assert off(times(ledger, "b").step, TRUE) < 0.05

    def test_what_ends_after_its_worker_left_is_not_looked_at(self, make_request) -> None:
        modelled = fleet({"a": 1.0})
        ledger = modelled.ledger
        ledger.apply(ev.Admitted(make_request("r"), 0.0))
        ledger.apply(ev.Dispatched("r", worker_id("a"), 0.0))
        ledger.apply(ev.WorkerJoined(spec("a"), 1.0))
        ledger.apply(ev.FirstToken("r", 2.0))
        ledger.apply(ev.Finished("r", 3.0, output_tokens=1))
        ledger.apply(ev.Tick(1000.0))
        assert ledger.in_flight == 0

    def test_an_adapter_more_is_the_same_class(self) -> None:
        one = WorkerSpec(worker_id("a"), "http://a", "vllm", ("m",))
        other = WorkerSpec(worker_id("a"), "http://a", "vllm", ("m", "adapter"))
        assert class_name(one) == class_name(other) == "vllm m"

    def test_what_makes_another_class(self) -> None:
        names = {
            class_name(spec("a")),
            class_name(spec("a", gpu_count=4)),
            class_name(spec("a", role=Role.DECODE)),
            class_name(spec("a", profile="h100/llama-8b")),
            class_name(WorkerSpec(worker_id("a"), "http://a", "sglang", ("m",))),
        }
        assert len(names) == 5

    def test_it_does_not_learn_unless_told_to(self, make_ledger) -> None:
        ledger = make_ledger("a")
        ledger.apply(ev.Tick(1.0))
        assert ledger.timing == {}
        assert ledger.snapshot().workers[0].times is None


def test_who_answers_prompts_that_others_compute_is_thought_to_need_as_long_for_them_as_those() -> None:
    """A fleet that only splits: `both` computed no prompt, and is asked how long it would take for one."""
    kv = KvShape(HandShake.BLOCKS, 16, bytes_per_token=1000)
    ledger = Ledger(step_priors={})
    for one in (spec("p", role=Role.PREFILL, kv=kv), spec("both", kv=kv)):
        ledger.apply(ev.WorkerJoined(one, 0.0))
    rng, now_ms = random.Random(3), 0.0
    for number in range(30):
        name, prompt = f"r{number}", rng.randint(500, 4000)
        ledger.apply(ev.Admitted(Request(name, "m", now_ms, prompt), now_ms))
        ledger.apply(ev.Dispatched(name, worker_id("both"), now_ms, prefill=ev.PrefillLeg(worker_id("p"))))
        now_ms += 3 + 0.4 * prompt
        ledger.apply(ev.PrefillEnded(name, now_ms))
        now_ms += 20
        ledger.apply(ev.TransferEnded(name, now_ms))
        ledger.apply(ev.FirstToken(name, now_ms))
        for _ in range(4):
            now_ms += 5.0 * REPORT_EVERY
            ledger.apply(ev.Progress(name, now_ms, REPORT_EVERY))
        ledger.apply(ev.Finished(name, now_ms, output_tokens=1 + 4 * REPORT_EVERY))
        ledger.apply(ev.Tick(now_ms))
    times = ledger.timing
    assert times[worker_id("p")].step.step_ms(0, 0, 3000, 3000**2) == pytest.approx(1200, rel=0.15)
    assert times[worker_id("both")].step.step_ms(0, 0, 3000, 3000**2) == pytest.approx(1200, rel=0.15)
    assert times[worker_id("both")].step.step_ms(1, 3000, 0) == pytest.approx(5.0, rel=0.1)
