"""Views of fleets whose workers can pass KV on, for tests of plans."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pointsman.core.model.decision import Decision
from pointsman.core.model.outlook import Outlook
from pointsman.core.model.request import Request
from pointsman.core.model.transfer import TransferMode, TransferRules
from pointsman.core.model.view import (
    KV_GIVES,
    KV_PARTS,
    KV_TAKES,
    STAGE_DECODE,
    STAGE_PREFILL,
    Exclusion,
    FleetView,
)
from pointsman.core.policies.contract import decided
from pointsman.core.policies.cost.cost import Cost
from pointsman.core.policies.policy import Policy
from pointsman.core.timing.fleet_times import FleetTimes
from pointsman.core.timing.link_times import LinkEstimate, LinkTimes
from pointsman.core.timing.step import StepCoefficients
from pointsman.core.timing.worker_times import WorkerTimes

STEP = StepCoefficients(10.0, 0.05, 0.06, 0.05)
REQUEST = Request("r", "m", 0.0, 4_000)
STAGES = {"p": STAGE_PREFILL, "d": STAGE_DECODE, "b": STAGE_PREFILL + STAGE_DECODE}
ALL_SIDES = KV_GIVES + KV_TAKES + KV_PARTS
KNOWN = Outlook(100.0, reuse=0.0, evictions_seen=1e12)
"""Nothing that is lost is needed again, so room costs nothing."""


def fleet(roles: str, *, rules: TransferRules | None = None, outlook: Outlook = KNOWN, **columns: Any) -> FleetView:
    """Workers w0/0, w1/0, … each on a machine of its own: p for prompts only, d to decode, b for both."""
    count = len(roles)
    values: dict[str, Any] = {
        "stages": [STAGES[role] for role in roles],
        "exclusion": [int(Exclusion.ROLE) if role == "p" else 0 for role in roles],
        "kv_group": [1] * count,
        "kv_sides": [ALL_SIDES] * count,
        "kv_token_bytes": [131_072] * count,
        "node": list(range(count)),
        "kv_capacity_tokens": [400_000] * count,
        "held_tokens": [400_000] * count,
    }
    view = FleetView.of([f"w{n}/0" for n in range(count)], **(values | columns))
    return replace(view, outlook=outlook, transfer=rules or TransferRules())


def rules(mode: str = "auto", most_bytes: int = 0) -> TransferRules:
    """What the operator says."""
    return TransferRules(TransferMode(mode), most_bytes)


def link(gb_per_s: float, floor_ms: float = 0.0, spread: float = 1.0) -> LinkEstimate:
    """Of any size."""
    return LinkEstimate(floor_ms, (gb_per_s * 1e6,) * 4, spread)


def times(view: FleetView, links: LinkEstimate | LinkTimes | None = None, *steps: StepCoefficients) -> FleetTimes:
    """All alike unless told otherwise; a link is that of all pairs."""
    if isinstance(links, LinkEstimate):
        links = LinkTimes(otherwise=links)
    of_each: Sequence[StepCoefficients] = steps or [STEP] * len(view)
    known = {worker: WorkerTimes(step) for worker, step in zip(view.workers, of_each, strict=True)}
    return FleetTimes(known, links=links or LinkTimes())


def decide(
    view: FleetView, timing: FleetTimes | None = None, request: Request = REQUEST, policy: Policy | None = None
) -> Decision:
    """By `cost`, checked by the contract."""
    return decided(policy or Cost(), request, view, times(view) if timing is None else timing, 0.0, random.Random(0))


def backlog(view_roles: str, **at: int) -> dict[str, list[int]]:
    """Columns of prompts that wait: `w1=20_000` tokens at that worker."""
    tokens = [at.get(f"w{n}", 0) for n in range(len(view_roles))]
    waiting = [int(value > 0) for value in tokens]
    return {"prefill_tokens": tokens, "running": waiting, "waiting_first": waiting, "kv_tokens": tokens}
