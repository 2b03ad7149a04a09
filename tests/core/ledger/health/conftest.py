"""A fleet in virtual time whose probes, streams and canaries are scripted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.health.changes import HealthChange
from pointsman.core.ledger.health.settings import HealthSettings
from pointsman.core.ledger.health.snapshot import HealthSnapshot
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.fault import Fault
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, Exclusion
from pointsman.core.model.worker import WorkerId, WorkerSpec, worker_id
from pointsman.core.timing.step import StepCoefficients

KNOWN = "known"
"""Name of a profile."""


@dataclass
class Engine:
    """How one worker behaves."""

    id: WorkerId
    itl_ms: float | None = 20.0
    """None: its streams stand still."""
    answers: bool = True
    """Its probes."""
    canary: ev.CanaryResult | None = ev.CanaryResult.PASSED
    """None: nothing comes back."""
    canary_ms: float = 40.0
    last_ms: float = 0.0
    owed: float = 0.0
    """Tokens of a stream that are not whole yet."""


@dataclass
class Scene:
    """Time goes in seconds, a tick each; probes come every heartbeat."""

    settings: HealthSettings
    ledger: Ledger
    engines: dict[str, Engine] = field(default_factory=dict)
    now_ms: float = 0.0
    changes: list[HealthChange] = field(default_factory=list)
    canaries: list[tuple[float, str]] = field(default_factory=list)
    count: int = 0

    def join(self, *names: str, kind: str = "vllm", **fields: object) -> None:
        for name in names:
            spec = WorkerSpec(worker_id(name), f"http://{name}", kind, ("m",), **fields)  # type: ignore[arg-type]
            self.engines[name] = Engine(spec.id)
            self.ledger.apply(ev.WorkerJoined(spec, self.now_ms))
            self.probe(name)

    def probe(self, name: str) -> None:
        engine = self.engines[name]
        reason = "GET /health answered 200" if engine.answers else "timed out"
        self.ledger.apply(ev.HealthRead(engine.id, self.now_ms, engine.answers, engine.answers, reason))

    def send(self, name: str, request_id: str | None = None, **fields: object) -> str:
        """A request goes there; returns its id."""
        self.count += 1
        values: dict[str, object] = {"prompt_tokens": 100, "arrival_ms": self.now_ms} | fields
        request = Request(request_id or f"r{self.count}", "m", **values)  # type: ignore[arg-type]
        self.ledger.apply(ev.Admitted(request, self.now_ms))
        self.ledger.apply(ev.Dispatched(request.id, self.engines[name].id, self.now_ms))
        return request.id

    def stream(self, name: str, streams: int = 1, **fields: object) -> list[str]:
        """Requests go there, and have their first token."""
        sent = [self.send(name, **fields) for _ in range(streams)]
        for request_id in sent:
            self.ledger.apply(ev.FirstToken(request_id, self.now_ms))
        self.engines[name].last_ms = self.now_ms
        return sent

    def finish(self, *request_ids: str) -> None:
        for request_id in request_ids:
            self.ledger.apply(ev.Finished(request_id, self.now_ms, 100, 0, 10))

    def serve(self, name: str, requests: int = 1) -> None:
        """So many requests are answered there at once."""
        self.finish(*self.stream(name, requests))

    def serve_prompt(self, name: str, prompt_tokens: int) -> None:
        """A long prompt is computed and answered there."""
        self.finish(*self.stream(name, prompt_tokens=prompt_tokens))

    def fail(self, name: str, fault: Fault, request_id: str | None = None, **fields: object) -> None:
        """A request goes there and fails for good."""
        sent = self.send(name, request_id, **fields)
        self.ledger.apply(ev.Failed(sent, self.now_ms, f"it was {fault}", fault))

    def wait(self, seconds: float) -> None:
        """Time passes, a tick a second."""
        end_ms = self.now_ms + 1000.0 * seconds
        while self.now_ms < end_ms:
            self.now_ms += 1000.0
            self._second()

    def _second(self) -> None:
        for name, engine in self.engines.items():
            if self.now_ms % self.settings.heartbeat_ms < 1.0:
                self.probe(name)
            self._read_streams(engine)
        self.ledger.apply(ev.Tick(self.now_ms))
        for due in self.ledger.canaries_due(self.now_ms):
            self._canary(due.worker)
        self.changes += self.ledger.take_health_changes()

    def _read_streams(self, engine: Engine) -> None:
        flights = self.ledger._fleet.entry(engine.id).flights.values()
        streams = sum(flight.started and flight.request.streamed for flight in flights)
        if not streams:
            if flights:
                self.ledger.apply(ev.StreamsRead(engine.id, self.now_ms, 0, 0, self.now_ms, 0.0))
            return
        tokens = 0
        if engine.itl_ms is not None:
            engine.owed += 1000.0 / engine.itl_ms
            whole = int(engine.owed)
            engine.owed -= whole
            tokens = whole * streams
            if whole:
                engine.last_ms = self.now_ms
        quiet_ms = self.now_ms - engine.last_ms
        self.ledger.apply(ev.StreamsRead(engine.id, self.now_ms, streams, tokens, engine.last_ms, quiet_ms))

    def _canary(self, worker: WorkerId) -> None:
        self.canaries.append((self.now_ms, worker))
        self.ledger.apply(ev.CanarySent(worker, self.now_ms))
        engine = self.engines[worker.rpartition("/")[0]]
        if engine.canary is not None:
            took = engine.canary_ms if engine.canary is ev.CanaryResult.PASSED else None
            sent_ms = self.now_ms
            self.ledger.apply(ev.CanaryRead(worker, self.now_ms, sent_ms, engine.canary, str(engine.canary), took))

    # ---- what came of it

    def exclusion(self, name: str) -> Exclusion:
        view = self.ledger.view(Request("asks", "m", self.now_ms, 1))
        return Exclusion(int(view.column(Column.EXCLUSION)[view.workers.index(self.engines[name].id)]))

    def usable(self) -> list[str]:
        return [name for name in self.engines if self.exclusion(name) is Exclusion.NONE]

    def health(self, name: str) -> HealthSnapshot:
        return next(w.health for w in self.ledger.snapshot().workers if w.id == self.engines[name].id)

    def facts(self, name: str) -> str:
        health = self.health(name)
        return f"{health.live.state} {health.ready.state} {health.serving.state}"

    def until_out(self, name: str, most_s: float) -> float:
        """Seconds until it is left out."""
        began_ms = self.now_ms
        while self.exclusion(name) is Exclusion.NONE:
            assert self.now_ms - began_ms < 1000.0 * most_s, f"{name} is still used: {self.health(name)}"
            self.wait(1)
        return (self.now_ms - began_ms) / 1000.0

    def until_back(self, name: str, most_s: float) -> float:
        """Seconds until it is used again."""
        began_ms = self.now_ms
        while self.exclusion(name) is not Exclusion.NONE:
            assert self.now_ms - began_ms < 1000.0 * most_s, f"{name} is still out: {self.health(name)}"
            self.wait(1)
        return (self.now_ms - began_ms) / 1000.0


MakeScene = Callable[..., Scene]


@pytest.fixture
def scene_of() -> MakeScene:
    """`scene_of("a", "b", canary=False, …)`: engines by name, and settings; `profile`: their step times are known."""

    def make(*names: str, kind: str = "vllm", profile: str | None = None, **settings: object) -> Scene:
        made = HealthSettings(**settings)  # type: ignore[arg-type]
        scene = Scene(made, Ledger(health=made, step_priors={KNOWN: StepCoefficients(15.0, 0.05, 0.05, 0.05)}))
        scene.join(*names, kind=kind, profile=profile)
        scene.wait(1)
        return scene

    return make
