"""ArmResults: a simulated rollout compared arm by arm, as a live front end does it."""

from __future__ import annotations

import math

from pointsman.app.simulate.outcome import Outcome, Status
from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.trials.arms import Place
from pointsman.core.trials.comparison import Comparison, Sums
from pointsman.core.trials.rollout import Rollout
from pointsman.core.trials.tally import End, Result


class ArmResults:
    """Give it to `simulate` as `on_decision`, and the rollout as its policy; then ask for the sums."""

    def __init__(self, rollout: Rollout) -> None:
        self._split = rollout.split
        self._places: dict[str, Place] = {}

    def __call__(self, request: Request, decision: Decision) -> None:
        """A request is decided; the first time counts."""
        if request.id not in self._places:
            self._places[request.id] = self._split.place(request)

    def sums(self, outcome: Outcome) -> Sums:
        """Of all requests in the order in which they ended. Those that were never decided are in no arm."""
        comparison = Comparison()
        for position in outcome.end_ms.argsort(kind="stable").tolist():
            place = self._places.get(f"r{position}")
            if place is not None:
                comparison.add(place, _result(outcome, position))
        return comparison.sums


def _result(outcome: Outcome, position: int) -> Result:
    arrival_ms, end_ms = float(outcome.arrival_ms[position]), float(outcome.end_ms[position])
    first_ms = float(outcome.first_token_ms[position])
    tokens, prompt_tokens = int(outcome.output_tokens[position]), int(outcome.prompt_tokens[position])
    if outcome.status[position] != Status.DONE:
        return Result(end=End.FAILED, at_ms=end_ms, prompt_tokens=prompt_tokens)
    return Result(
        end=End.FINISHED,
        at_ms=end_ms,
        prompt_tokens=prompt_tokens,
        cached_tokens=int(outcome.cached_tokens[position]),
        ttft_ms=None if math.isnan(first_ms) else first_ms - arrival_ms,
        itl_ms=(end_ms - first_ms) / (tokens - 1) if tokens > 1 else None,
        pace_ms=(end_ms - arrival_ms) / tokens if tokens else None,
    )
