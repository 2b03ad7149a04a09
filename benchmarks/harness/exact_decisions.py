"""One decision with exact routing from a list of token ids, stage by stage, in this process.

Step times of all workers are known and learned on, and the record of the decision is kept, as in the front end.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections import deque

from harness.histogram import Percentiles, percentiles_ms
from harness.processes import BenchmarkError
from harness.token_prompts import BLOCK_TOKENS, HOLDERS, TokenPrompts
from pointsman.core.ledger.events import (
    Admitted,
    BlocksStored,
    Dispatched,
    Finished,
    FirstToken,
    HealthRead,
    KvFeedChanged,
    KvFeedState,
    Tick,
    WorkerJoined,
)
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.chain_cache import ChainCache
from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.core.model.request import Request
from pointsman.core.model.token_keys import GPU, TOKEN_BYTES, KeySpec, pack_tokens
from pointsman.core.model.view import Column
from pointsman.core.model.worker import WorkerId, WorkerSpec, worker_id
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.profiles import profile
from pointsman.edge.decisions.ring import DecisionRing
from pointsman.edge.decisions.sampling import Sampling
from pointsman.edge.serving.clock import monotonic_ms
from pointsman.edge.serving.decision_record import DecisionRecorder
from pointsman.edge.serving.exchange import Exchange
from pointsman.edge.telemetry.traffic import Traffic

STAGES = ("pack", "keys", "view", "decide", "record", "total")
MODEL = "model"
_SPEC = KeySpec(BLOCK_TOKENS)
_CAPACITY_TOKENS = 1_600_000
_PROFILE = "h100/llama-8b"
MOVES = "cost, KV moves"
"""The policy `cost` on workers that can all pass KV on: plans that do so are scored beside each worker."""
_SHAPE = KvShape(HandShake.BLOCKS, BLOCK_TOKENS, bytes_per_token=131_072, parts=True)
_TICK_REQUESTS = 200
"""Between two ticks: as many as come in a second to a front end that is busy, but not full."""


class _Exchange(Exchange):
    """Of a request without a client or an engine."""

    def __init__(self) -> None:
        for field in dataclasses.fields(Exchange):
            if field.default_factory is not dataclasses.MISSING:
                setattr(self, field.name, field.default_factory())
            elif field.default is not dataclasses.MISSING:
                setattr(self, field.name, field.default)
        self.client_request_id = b""
        self.status = "finished"


class ExactBench:
    """A ledger with workers that say what they hold and what they computed, and requests in flight."""

    def __init__(self, policy: str, workers: int, prompts: TokenPrompts) -> None:
        self._ledger = Ledger(step_priors={_PROFILE: profile(_PROFILE).step})
        self._prompts = prompts
        self._policy = PolicyRegistry().get("cost" if policy == MOVES else policy)
        self._shape = _SHAPE if policy == MOVES else None
        self._chains = ChainCache()
        self._rng = random.Random(1)
        self._in_flight: deque[_Exchange] = deque()
        self._recorder = DecisionRecorder(DecisionRing(), None, Sampling(), Traffic(), monotonic_ms, 1)
        self.seconds: dict[str, list[float]] = {stage: [] for stage in STAGES}
        self._hashes: list[tuple[int, ...]] = []
        """For each session: the engines' own ids of the blocks that are known."""
        for number in range(workers):
            self._join(number)
        self._hold(prompts.holders(workers))

    def _join(self, number: int) -> None:
        name = worker_id(f"engine-{number}")
        url = f"http://10.0.0.{number}:8000"
        spec = WorkerSpec(
            name,
            url,
            "vllm",
            (MODEL,),
            kv_capacity_tokens=_CAPACITY_TOKENS,
            block_size_tokens=BLOCK_TOKENS,
            profile=_PROFILE,
            kv=self._shape,
        )
        for event in (
            WorkerJoined(spec, 0.0),
            HealthRead(name, 0.0, reachable=True, ready=True, reason=""),
            KvFeedChanged(name, 0.0, KvFeedState.COMPLETE, "begun at the start"),
        ):
            self._ledger.apply(event)

    def _hold(self, holders: list[list[int]]) -> None:
        first = 0
        for known, workers in zip(self._prompts.known, holders, strict=True):
            hashes = tuple(range(first, first + len(known) // BLOCK_TOKENS))
            first += len(hashes)
            self._hashes.append(hashes)
            for worker in workers:
                self._store(worker_id(f"engine-{worker}"), hashes, pack_tokens(known), 0)
            self._check_held(known)

    def _check_held(self, known: list[int]) -> None:
        held = self._ledger.held(MODEL, _SPEC, self._chains.keys(pack_tokens(known), _SPEC).keys)
        if [tiers.get(GPU) for tiers in held.values()] != [len(known)] * HOLDERS:
            raise BenchmarkError(f"{HOLDERS} workers hold {len(known)} tokens, but {held} was found: not exact routing")

    def _store(self, worker: WorkerId, hashes: tuple[int, ...], packed: bytes, first: int) -> None:
        """The worker announces the blocks of a prompt from number `first` on."""
        parent = hashes[first - 1] if first else None
        tokens = packed[first * BLOCK_TOKENS * TOKEN_BYTES : len(hashes) * BLOCK_TOKENS * TOKEN_BYTES]
        self._ledger.apply(BlocksStored(worker, 0.0, hashes[first:], parent, tokens, _SPEC))

    def one(self, number: int, limit: int) -> None:
        """Decide one request, and end the oldest one when more than `limit` run. Only the decision is timed."""
        tokens = self._prompts.prompt(number)
        exchange = _Exchange()
        now_ms, ledger = float(number), self._ledger
        clock = time.perf_counter
        started = clock()
        packed = pack_tokens(tokens)
        packed_at = clock()
        blocks = self._chains.keys(packed, _SPEC)
        keyed = clock()
        request = Request(f"r{number}", MODEL, now_ms, len(tokens), token_blocks={_SPEC: blocks})
        exchange.request = request
        ledger.apply(Admitted(request, now_ms))
        view = ledger.view(request)
        viewed = clock()
        decision = self._policy.decide(request, view, ledger.timing, now_ms, self._rng)
        decided = clock()
        if self._shape is not None and decision.plans is None:
            raise BenchmarkError("no plans that move KV were made")
        worker = decision.worker
        if worker is None:
            raise BenchmarkError(f"{decision.policy} rejected a request: {decision.plan}")
        row = view.workers.index(worker)
        cached, exact = int(view.table[Column.CACHED_TOKENS, row]), bool(view.table[Column.EXACT, row])
        ledger.apply(Dispatched(request.id, worker, now_ms, cached, exact))
        exchange.dispatched_ms = now_ms
        self._recorder.decided(exchange, decision, ledger.timing)
        recorded = clock()
        marks = (packed_at - started, keyed - packed_at, viewed - keyed, decided - viewed, recorded - decided)
        for stage, seconds in zip(STAGES, (*marks, recorded - started), strict=True):
            self.seconds[stage].append(seconds)
        known = self._hashes[number % len(self._hashes)]
        self._store(worker, (*known, *blocks.keys[len(known) :]), packed, cached // BLOCK_TOKENS)
        self._end_oldest(exchange, now_ms, limit)
        if number % _TICK_REQUESTS == 0:
            ledger.apply(Tick(now_ms))

    def _end_oldest(self, exchange: _Exchange, now_ms: float, limit: int) -> None:
        self._ledger.apply(FirstToken(exchange.request.id, now_ms))
        self._in_flight.append(exchange)
        if len(self._in_flight) > limit:
            oldest = self._in_flight.popleft()
            self._ledger.apply(Finished(oldest.request.id, now_ms, output_tokens=50))
            self._recorder.ended(oldest)


def measure(
    policy: str, workers: int, tokens: int, *, requests: int, sessions: int, in_flight_per_worker: int, seed: int
) -> dict[str, Percentiles]:
    """One round of one case. BenchmarkError: what is known was not found.

    As many requests before warm up: with many workers the ring of records is full then, and takes no more memory.
    """
    prompts = TokenPrompts(sessions, tokens, seed)
    bench = ExactBench(policy, workers, prompts)
    warm_up = max(requests, sessions * 2)
    for number in range(warm_up + requests):
        if number == warm_up:
            for seconds in bench.seconds.values():
                seconds.clear()
        bench.one(number, workers * in_flight_per_worker)
    return {stage: percentiles_ms(seconds) for stage, seconds in bench.seconds.items()}
