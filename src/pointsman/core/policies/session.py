"""session: requests with the same route key go to the same worker, by rendezvous hashing.

Every worker gets a hash of (route key, worker id); the highest wins. Replicas of the front end agree without talking,
and when a worker comes or goes only the keys that it wins or won move (Thaler and Ravishankar, 1998).
"""

from __future__ import annotations

import random

import numpy as np
import xxhash

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.policies.policy import Timing, decision, rejection
from pointsman.core.policies.power_of_two import PowerOfTwo

_WITHOUT_KEY = PowerOfTwo()


class Session:
    """Score: rank of the worker for this route key, 0 = the highest hash. Without a key it decides by power_of_two."""

    name = "session"

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        """The eligible worker with the highest hash."""
        if request.route_key is None:
            return self._without_key(request, view, timing, now_ms, rng)
        rows = view.eligible_rows()
        if not len(rows):
            return rejection(self.name, request, view, now_ms)
        hashes = rendezvous_hashes(request.route_key, view.workers)
        ranks = np.empty(len(view), dtype=np.float64)
        ranks[sorted(range(len(view)), key=hashes.__getitem__, reverse=True)] = np.arange(len(view))
        row = int(rows[ranks[rows].argmin()])
        return decision(self.name, request, view, now_ms, row, ranks, "rank")

    def _without_key(
        self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random
    ) -> Decision:
        made = _WITHOUT_KEY.decide(request, view, timing, now_ms, rng)
        return Decision(
            request_id=made.request_id,
            policy=self.name,
            at_ms=made.at_ms,
            plan=made.plan,
            view=view,
            unit=made.unit,
            scores=made.scores,
            terms=made.terms,
            note="no route key in the request: decided by power_of_two",
        )


def rendezvous_hashes(key: str, workers: tuple[str, ...]) -> list[int]:
    """One 64-bit hash a worker: XXH3_64(worker id, seed = XXH3_64(key))."""
    seed = xxhash.xxh3_64_intdigest(key.encode())
    return [xxhash.xxh3_64_intdigest(worker.encode(), seed) for worker in workers]
