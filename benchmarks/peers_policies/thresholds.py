"""Fixed rules of peers for when the prompt is computed by another worker, by tokens that are not cached.

Who computes and who answers is the cost policy's choice in both cases, so that only the rule is compared.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import replace

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.transfer import TransferMode
from pointsman.core.model.view import Column, FleetView
from pointsman.core.policies.cost.cost import Cost
from pointsman.core.policies.policy import Timing


class _Ruled(ABC):
    makes_plans = True
    name: str

    def __init__(self) -> None:
        self._cost = Cost()

    @abstractmethod
    def apart(self, prompt: int, uncached: int) -> bool:
        """Whether a prompt of which so much is not held where it would be answered is computed elsewhere."""

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        """The best worker alone, then the rule, then the best pair."""
        made = self._of(TransferMode.OFF, request, view, timing, now_ms, rng)
        row = made.chosen_row
        if row is not None:
            uncached = request.prompt_tokens - int(view.table[Column.CACHED_TOKENS, row])
            if self.apart(request.prompt_tokens, uncached):
                made = self._of(TransferMode.ALWAYS, request, view, timing, now_ms, rng)
        return replace(made, policy=self.name, view=view)

    def _of(
        self, mode: TransferMode, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random
    ) -> Decision:
        ruled = replace(view, transfer=replace(view.transfer, mode=mode))
        return self._cost.decide(request, ruled, timing, now_ms, rng)


class UncachedTokens(_Ruled):
    """llm-d: apart from so many uncached tokens on."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.name = f"{least:,} uncached tokens"
        self._least = least

    def apart(self, prompt: int, uncached: int) -> bool:
        return uncached >= self._least


class IslBounding(_Ruled):
    """Dynamo: at the worker that decodes only if less than 2,048 tokens, and than .7 of the prompt, are uncached."""

    name = "2,048 and .7 of the prompt"

    def apart(self, prompt: int, uncached: int) -> bool:
        return not (uncached < 2_048 and uncached / prompt < 0.7)
