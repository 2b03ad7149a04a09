"""Decisions on a small fleet that can pass KV on: a worker for prompts on a machine of its own, two that decode."""

from __future__ import annotations

from typing import Any

from pointsman.core.model.outlook import Outlook
from pointsman.core.model.request import Request
from pointsman.core.model.transfer import TransferMode, TransferRules
from pointsman.core.model.view import KV_GIVES, KV_PARTS, KV_TAKES, STAGE_DECODE, STAGE_PREFILL, Exclusion, FleetView
from pointsman.core.policies.chance import decision_chance
from pointsman.core.policies.contract import decided as by_contract
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.fleet_times import FleetTimes
from pointsman.core.timing.link_priors import USUAL_PRIORS, PlacePriors
from pointsman.core.timing.link_times import LinkEstimate, LinkTimes
from pointsman.core.timing.profiles import profile
from pointsman.core.timing.worker_times import WorkerTimes
from pointsman.edge.decisions.legs import LegsTold
from pointsman.edge.decisions.record import DecisionRecord
from support.decisions import SEED

P, D, E = "p/0", "d/0", "e/0"
STEP = profile("h100/llama-8b").step
PLACES = PlacePriors(USUAL_PRIORS, {0: ("h0", "r1"), 1: ("h1", "r1"), 2: ("h2", "r2"), 9: ("h9",)})
FAST = LinkTimes({(0, 1): LinkEstimate(0.5, (1e6, 2e6, 3e6, 4e6), 1.4, 12.0), (7, 9): LinkEstimate()}, by_place=PLACES)
SLOW = LinkTimes({pair: LinkEstimate(5.0, (5e3,) * 4, 1.4, 9.0) for pair in ((0, 1), (0, 2), (1, 2), (2, 1))})


def view_of(mode: TransferMode = TransferMode.AUTO, **columns: Any) -> FleetView:
    """Both that decode are busy; the one for prompts is idle."""
    both, decode = STAGE_PREFILL + STAGE_DECODE, STAGE_DECODE
    made = FleetView.of(
        [P, D, E],
        **{
            "stages": [STAGE_PREFILL, decode, both],
            "exclusion": [Exclusion.ROLE, 0, 0],
            "running": [0, 30, 40],
            "kv_tokens": [0, 60_000, 80_000],
            "prefill_tokens": [0, 20_000, 25_000],
            "waiting_first": [0, 4, 5],
            "kv_capacity_tokens": [400_000] * 3,
            "kv_group": [1] * 3,
            "kv_sides": [KV_GIVES + KV_TAKES + KV_PARTS] * 3,
            "kv_token_bytes": [131_072] * 3,
            "node": [0, 1, 2],
            **columns,
        },
    )
    return FleetView(made.workers, made.table, Outlook(output_tokens=100.0), False, TransferRules(mode))


def times_of(links: LinkTimes = FAST) -> FleetTimes:
    known = WorkerTimes(STEP, 1.5, (1.1, 1.7), (0.9, 2.1))
    return FleetTimes(dict.fromkeys((P, D, E), known), links=links)


def decided(
    name: str = "pm-1-1",
    policy: str = "cost",
    view: FleetView | None = None,
    links: LinkTimes = FAST,
    tokens: int = 8_000,
) -> DecisionRecord:
    """A record of a request that runs; it was decided 2 ms after it arrived."""
    asked = Request(name, "m", 100.0, tokens)
    view, times = view or view_of(), times_of(links)
    made = by_contract(PolicyRegistry().get(policy), asked, view, times, 102.0, decision_chance(SEED, name))
    return DecisionRecord(
        asked,
        1e12 + 100.0,
        SEED,
        decision=made,
        times=times.rows(view.workers),
        links=links,
        dispatched_ms=102.0,
        attempts=1,
    )


def ended(record: DecisionRecord, ttft_ms: float | None = 250.0, **fields: Any) -> DecisionRecord:
    """It ended well, 50 pieces of a stream after its first token."""
    record.status, record.http, record.events = "finished", 200, 50
    if ttft_ms is not None:
        record.first_ms = 102.0 + ttft_ms
        record.last_ms = record.first_ms + 490.0
    for name, value in fields.items():
        setattr(record, name, value)
    record.conclude()
    return record


def told(**fields: Any) -> LegsTold:
    """What came of the prefill at p for d, as it should have."""
    values: dict[str, Any] = {
        "prefill": P, "prefill_ms": 180.0, "transfer_ms": 40.0, "moved_tokens": 8_000, "moved_bytes": 1_048_576_000,
        "transport": "nixl",
    }  # fmt: skip
    return LegsTold(**(values | fields))
