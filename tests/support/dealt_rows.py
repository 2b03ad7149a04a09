"""Rows of a small fleet under a real policy, with one fault at a time put in."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, Exclusion, FleetView
from pointsman.core.policies.chance import decision_chance
from pointsman.core.policies.policy import Policy
from pointsman.edge.telemetry.decision_row import DecisionRow, LoggedCandidate, pack_keys

BLOCK_TOKENS = 16
EVERY_MS = 25.0
_TOKEN_MS, _BETWEEN_MS, _OUTPUT_TOKENS = 0.05, 5.0, 40


def dealt(
    policy: Policy,
    count: int,
    *,
    workers: Sequence[str] = ("a/0", "b/0", "c/0", "d/0"),
    blocks: Callable[[int, random.Random], list[int]] = lambda number, rng: [
        1_000_000 + 100 * number + b for b in range(30)
    ],
    key: Callable[[int, random.Random], str | None] = lambda number, rng: None,
    foreign: Mapping[str, int] = {},
    slower: Mapping[str, float] = {},
    excluded: Callable[[int, str], Exclusion] = lambda number, worker: Exclusion.NONE,
) -> list[DecisionRow]:
    """`count` requests, one each 25 ms; a request takes longer the more run beside it."""
    rng = random.Random(7)
    running: dict[str, list[float]] = {worker: [] for worker in workers}
    held: dict[str, set[int]] = {worker: set() for worker in workers}
    last = dict.fromkeys(workers, 0)
    rows = []
    for number in range(count):
        now_ms = EVERY_MS * number
        keys = blocks(number, rng)
        for worker in workers:
            running[worker] = [end for end in running[worker] if end > now_ms]
        cached = {worker: BLOCK_TOKENS * _leading(keys, held[worker]) for worker in workers}
        view = FleetView.of(
            list(workers),
            running=[len(running[worker]) for worker in workers],
            foreign=[foreign.get(worker, 0) for worker in workers],
            cached_tokens=[cached[worker] for worker in workers],
            exact=[1] * len(workers),
            last_dispatch=[last[worker] for worker in workers],
            exclusion=[excluded(number, worker) for worker in workers],
        )
        prompt = BLOCK_TOKENS * len(keys) + 8
        request = Request(f"r{number}", "m", now_ms, prompt, route_key=key(number, rng))
        decision = policy.decide(request, view, {}, now_ms, decision_chance(0, request.id))
        worker = str(decision.worker)
        factor = slower.get(worker, 1.0)
        itl = factor * _BETWEEN_MS * (1 + 0.01 * len(running[worker]))
        first = factor * (10 + _TOKEN_MS * (prompt - cached[worker]))
        end = first + itl * (_OUTPUT_TOKENS - 1)
        running[worker].append(now_ms + end)
        held[worker].update(keys)
        last[worker] = number + 1
        runner = decision.runner_up()
        rows.append(
            DecisionRow(
                id=request.id, at_ms=now_ms, model="m", status="finished", http=200, prompt_tokens=prompt,
                prompt_from="tokenizer", output_tokens=_OUTPUT_TOKENS, session=request.route_key, block_unit="tokens",
                block_size=BLOCK_TOKENS, blocks=pack_keys(keys), policy=decision.policy, worker=worker,
                cached=cached[worker], exact=True, cached_reported=cached[worker], unit=decision.unit,
                runner_up=None if runner is None else runner[0], margin=None if runner is None else runner[1],
                workers=len(workers), dispatched_ms=0.0, first_token_ms=first, last_token_ms=end, ttft_ms=first,
                itl_ms=itl,
                candidates=[
                    LoggedCandidate(one.worker, one.score, one.excluded, one.cached_tokens, one.load)
                    for one in decision.candidates()
                ],
            )
        )  # fmt: skip
    assert Column.EXCLUSION == 0
    return rows


def _leading(keys: Sequence[int], held: set[int]) -> int:
    for depth, key in enumerate(keys):
        if key not in held:
            return depth
    return len(keys)
