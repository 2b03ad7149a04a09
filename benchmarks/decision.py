"""How long one decision takes, in one process: block keys, the ledger's view, the policy, the record.

First from a prompt's bytes, then with exact routing from its token ids, beside Dynamo's SelectionService: there all
step times are known and each decision's record is kept, as in the front end.

usage: scripts/bench decision [--quick]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec

from harness import exact_decisions, peer_selection, report
from harness.command import carry_out
from harness.histogram import Percentiles, median, percentiles_ms, ratio
from harness.noise import NoiseMeter
from harness.peer_spec import PeerSpec
from harness.processes import BenchmarkError
from pointsman.core.ledger.events import Admitted, Dispatched, Finished, FirstToken, HealthRead, WorkerJoined
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.blocks import salt_seed, text_block_keys
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column
from pointsman.core.model.worker import WorkerSpec, worker_id
from pointsman.core.policies.policy import NO_TIMING, Policy
from pointsman.core.policies.registry import PolicyRegistry

MODEL = "model"
BLOCK_BYTES = 128
KNOWN_SHARE = 0.9
"""Of each prompt: what an earlier request of the same session sent already."""
SESSIONS = 64
STAGES = ("keys", "view", "decide", "record", "total")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    rounds: int = 5
    requests: int = 1_000
    workers: tuple[int, ...] = (8, 64, 256)
    policies: tuple[str, ...] = ("round_robin", "least_loaded", "power_of_two", "prefix")
    exact_policies: tuple[str, ...] = ("cost", exact_decisions.MOVES, "kv")
    prompt_blocks: tuple[int, ...] = (4, 400)
    in_flight_per_worker: int = 8
    prompt_tokens: tuple[int, ...] = (90, 6_400)
    token_sessions: int = 40


@dataclass(slots=True)
class Bench:
    """One ledger with workers, sessions in its index and requests in flight."""

    policy: Policy
    ledger: Ledger
    prompts: list[bytes]
    rng: random.Random
    in_flight: deque[str] = field(default_factory=deque)
    seconds: dict[str, list[float]] = field(default_factory=lambda: {stage: [] for stage in STAGES})

    def one(self, number: int, limit: int) -> None:
        """Decide one request, and end the oldest one when more than `limit` run. Only the decision is timed."""
        now_ms = float(number)
        session = self.prompts[number % len(self.prompts)]
        tail = self.rng.randbytes(len(session))
        text = session + tail[: max(BLOCK_BYTES, int(len(session) / KNOWN_SHARE) - len(session))]
        started = time.perf_counter()
        blocks = text_block_keys(text, BLOCK_BYTES, salt_seed(MODEL.encode(), b"", b""))
        keyed = time.perf_counter()
        request = Request(f"r{number}", MODEL, now_ms, len(text) // 4, blocks)
        self.ledger.apply(Admitted(request, now_ms))
        viewing = time.perf_counter()
        view = self.ledger.view(request)
        viewed = time.perf_counter()
        decision = self.policy.decide(request, view, NO_TIMING, now_ms, self.rng)
        decided = time.perf_counter()
        worker = decision.worker
        if worker is None:
            raise BenchmarkError(f"{decision.policy} rejected a request: {decision.plan}")
        cached = int(view.table[Column.CACHED_TOKENS, view.workers.index(worker)])
        self.ledger.apply(Dispatched(request.id, worker, now_ms, cached))
        recorded = time.perf_counter()
        marks = (keyed - started, viewed - viewing, decided - viewed, recorded - decided, recorded - started)
        for stage, seconds in zip(STAGES, marks, strict=True):
            self.seconds[stage].append(seconds)
        self._end_oldest(request.id, now_ms, limit)

    def _end_oldest(self, request_id: str, now_ms: float, limit: int) -> None:
        self.ledger.apply(FirstToken(request_id, now_ms))
        self.in_flight.append(request_id)
        if len(self.in_flight) > limit:
            self.ledger.apply(Finished(self.in_flight.popleft(), now_ms, output_tokens=50))


def prepare(policy: str, workers: int, prompt_blocks: int, seed: int) -> Bench:
    """Workers that are ready, and sessions of which the prompts differ from the first byte on."""
    rng = random.Random(seed)
    ledger = Ledger(text_block_bytes=BLOCK_BYTES)
    for i in range(workers):
        name = worker_id(f"engine-{i}")
        spec = WorkerSpec(name, f"http://10.0.0.{i}:8000", "vllm", (MODEL,), kv_capacity_tokens=320_000)
        ledger.apply(WorkerJoined(spec, 0.0))
        ledger.apply(HealthRead(name, 0.0, reachable=True, ready=True, reason=""))
    known_bytes = max(BLOCK_BYTES, int(prompt_blocks * BLOCK_BYTES * KNOWN_SHARE))
    prompts = [rng.randbytes(known_bytes) for _ in range(SESSIONS)]
    return Bench(PolicyRegistry().get(policy), ledger, prompts, rng)


def measure(policy: str, workers: int, prompt_blocks: int, options: Options, seed: int) -> dict[str, Percentiles]:
    """One round of one case; the first half as many requests warm up."""
    bench = prepare(policy, workers, prompt_blocks, seed)
    warm_up = max(options.requests // 2, SESSIONS * 2)
    for number in range(warm_up + options.requests):
        if number == warm_up:
            for seconds in bench.seconds.values():
                seconds.clear()
        bench.one(number, workers * options.in_flight_per_worker)
    return {stage: percentiles_ms(seconds) for stage, seconds in bench.seconds.items()}


def run(options: Options) -> dict[str, Any]:
    """All cases, round by round. Keys: `policy/workers/blocks` (reports, exact: tokens), `workers/tokens` (peer)."""
    reports: dict[str, list[dict[str, Percentiles]]] = {}
    exact: dict[str, list[dict[str, Percentiles]]] = {}
    peer: dict[str, list[Percentiles]] = {}
    version = peer_selection.version()
    noise = NoiseMeter()
    for turn in range(options.rounds):
        for blocks in options.prompt_blocks:
            for workers in options.workers:
                for policy in options.policies:
                    case = reports.setdefault(f"{policy}/{workers}/{blocks}", [])
                    case.append(measure(policy, workers, blocks, options, seed=turn))
        _run_exact(options, turn, exact)
        if version:
            for key, one in peer_selection.measure(_peer_spec(options, turn)).items():
                peer.setdefault(key, []).append(one)
        print(f"round {turn + 1} of {options.rounds} done", flush=True)
    foreign_cores = noise.foreign_cores()
    return {"foreign_cores": foreign_cores, "reports": reports, "exact": exact, "peer": peer, "peer_version": version}


def _run_exact(options: Options, turn: int, exact: dict[str, list[dict[str, Percentiles]]]) -> None:
    for tokens in options.prompt_tokens:
        for workers in options.workers:
            for policy in options.exact_policies:
                one = exact_decisions.measure(
                    policy,
                    workers,
                    tokens,
                    requests=options.requests,
                    sessions=options.token_sessions,
                    in_flight_per_worker=options.in_flight_per_worker,
                    seed=turn,
                )
                exact.setdefault(f"{policy}/{workers}/{tokens}", []).append(one)


def _peer_spec(options: Options, turn: int) -> PeerSpec:
    return PeerSpec(
        workers=options.workers,
        tokens=options.prompt_tokens,
        requests=options.requests,
        sessions=options.token_sessions,
        in_flight_per_worker=options.in_flight_per_worker,
        seed=turn,
    )


def summary(results: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """Medians over rounds in µs: p50 of each stage, p99 of the whole. Exact ones: `policy/workers/tokens`."""
    rows = {}
    for case, rounds in results["reports"].items():
        rows[case] = _row(rounds, STAGES)
    for case, rounds in results.get("exact", {}).items():
        row = _row(rounds, exact_decisions.STAGES)
        peer = results["peer"].get(case.partition("/")[2], [])
        row["peer_p50_us"], row["peer_p99_us"] = _us([one.p50 for one in peer]), _us([one.p99 for one in peer])
        rows[case] = row
    return rows


def _row(rounds: list[dict[str, Percentiles]], stages: tuple[str, ...]) -> dict[str, float | None]:
    row = {f"{stage}_p50_us": _us([one[stage].p50 for one in rounds]) for stage in stages}
    row["total_p99_us"] = _us([one["total"].p99 for one in rounds])
    return row


def _us(values_ms: list[float | None]) -> float | None:
    middle = median(values_ms)
    return None if middle is None else middle * 1e3


def markdown(results: dict[str, Any]) -> str:
    """The tables of the page."""
    rows = summary(results)
    by_text = {case: row for case, row in rows.items() if case in results["reports"]}
    header = ["policy", "workers", "blocks", *(f"{stage} p50 µs" for stage in STAGES), "total p99 µs"]
    lines = [[*case.split("/"), *(report.number(value, 1) for value in row.values())] for case, row in by_text.items()]
    exact = _exact_table({case: row for case, row in rows.items() if case not in by_text}, results)
    return "\n\n".join((report.table(header, lines), *exact, report.noise_line(results["foreign_cores"])))


def _exact_table(rows: dict[str, dict[str, float | None]], results: dict[str, Any]) -> list[str]:
    if not rows:
        return []
    version = results.get("peer_version")
    peer = f"Dynamo {version}" if version else "Dynamo"
    stages = exact_decisions.STAGES
    header = ["policy", "tokens", "workers", *(f"{stage} p50 µs" for stage in stages), "total p99 µs"]
    header += [f"{peer} p50 µs", f"{peer} p99 µs", "ratio p50", "ratio p99"]
    lines = []
    for case, row in rows.items():
        policy, workers, tokens = case.split("/")
        ratios = ratio(row["total_p50_us"], row["peer_p50_us"]), ratio(row["total_p99_us"], row["peer_p99_us"])
        numbers = [report.number(value, 1) for value in row.values()]
        lines.append([policy, f"{int(tokens):,}", workers, *numbers, *(report.number(value, 2) for value in ratios)])
    return [report.table(header, lines)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, nothing written")
    arguments = parser.parse_args()
    options = Options(rounds=1, requests=200) if arguments.quick else Options()
    return carry_out("decision", options, lambda: run(options), markdown, summary=summary, keep=not arguments.quick)


if __name__ == "__main__":
    sys.exit(main())
