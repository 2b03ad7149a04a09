"""Rows of the decision log for tests."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.edge.telemetry.decision_row import DecisionRow, LoggedCandidate, pack_keys

WORKERS = ("a/0", "b/0", "c/0", "d/0")


def ended(number: int, worker: str | None = "a/0", *, blocks: Sequence[int] = (), **fields: object) -> DecisionRow:
    """A chat of 1,000 prompt tokens that went as predicted: 100 ms to the first token, 10 ms between the others."""
    values: dict[str, object] = {
        "id": f"r{number}",
        "at_ms": 1_000.0 * number,
        "model": "m",
        "status": "finished",
        "http": 200,
        "prompt_tokens": 1000,
        "prompt_from": "engine",
        "output_tokens": 21,
        "block_unit": "tokens" if blocks else "",
        "block_size": 16 if blocks else 0,
        "blocks": pack_keys(list(blocks)),
        "policy": "cost",
        "worker": worker,
        "unit": "ms",
        "workers": len(WORKERS),
        "dispatched_ms": 0.0,
        "first_token_ms": 100.0,
        "last_token_ms": 300.0,
        "predicted_ttft_ms": 100.0,
        "predicted_tpot_ms": 10.0,
        "ttft_ms": 100.0,
        "itl_ms": 10.0,
    }
    row = DecisionRow(**(values | fields))  # type: ignore[arg-type]
    if not row.candidates:
        row.candidates = [candidate(one, 100.0 + (one != worker)) for one in WORKERS]
    row.candidates.sort(key=lambda one: one.worker != worker)
    return row


def candidate(worker: str, score: float = 100.0, cached: int = 0, load: int = 0) -> LoggedCandidate:
    return LoggedCandidate(worker, score, None, cached, load, {"ttft_ms": score})
