"""ShadowTally: how a policy that decides without acting compares with the one that acts."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.model.decision import Decision


@dataclass(slots=True)
class ShadowTally:
    """Of one shadow policy beside the same acting ones."""

    decisions: int = 0
    agreed: int = 0
    """Decisions for the same workers, or of both for none."""
    failed: int = 0
    spent_ms: float = 0.0
    """In its decisions."""
    compared: int = 0
    """Decisions in which both choices have a predicted time."""
    saved_ms: float = 0.0
    """Predicted, over those: how much less its choices cost than those made; below 0: they cost more."""

    def add(self, acting: Decision, shadow: Decision, spent_ms: float) -> None:
        """One request that both decided, on the same view."""
        self.decisions += 1
        self.spent_ms += spent_ms
        nobody = acting.worker is None and shadow.worker is None
        self.agreed += nobody or acting.plan == shadow.plan
        saved_ms = predicted_saving_ms(acting, shadow)
        if saved_ms is not None:
            self.compared += 1
            self.saved_ms += saved_ms

    def merge(self, other: ShadowTally) -> None:
        """Add another one's decisions."""
        self.decisions += other.decisions
        self.agreed += other.agreed
        self.failed += other.failed
        self.spent_ms += other.spent_ms
        self.compared += other.compared
        self.saved_ms += other.saved_ms

    def fail(self, spent_ms: float) -> None:
        """It could not decide."""
        self.failed += 1
        self.spent_ms += spent_ms


def predicted_saving_ms(acting: Decision, shadow: Decision) -> float | None:
    """How much less the shadow's choice costs by the scores of whichever policy predicts times; None if neither does.

    Both predict: those of the acting one count, which were not made to favour the shadow.
    """
    if acting.worker is None or shadow.worker is None:
        return None
    judge = next((one for one in (acting, shadow) if one.unit == "ms"), None)
    if judge is None:
        return None
    done, instead = judge.score_of(acting.plan), judge.score_of(shadow.plan)
    return None if done is None or instead is None else done - instead
