from __future__ import annotations

from dataclasses import replace

import pytest

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.trace import Trace, TraceRequest

GOOD = TraceRequest(5.0, 40, 7, (1, 2, 3))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"at_ms": 4.0}, "arrives at 4.0 ms, before the one before it"),
        ({"at_ms": float("inf")}, "arrives at inf ms"),
        ({"at_ms": float("nan")}, "arrives at nan ms"),
        ({"prompt_tokens": 0}, "its prompt has 0 tokens"),
        ({"prompt_tokens": 3_000_000_000}, "its prompt has 3000000000 tokens"),
        ({"output_tokens": 0}, "its output has 0 tokens"),
        ({"output_tokens": 3_000_000_000}, "its output has 3000000000 tokens"),
        ({"after": 1}, "waits for request 1"),
        ({"after": -1}, "waits for request -1"),
        ({"gap_ms": -1.0}, "gap_ms is -1"),
        ({"gap_ms": float("inf")}, "gap_ms is inf"),
        ({"block_ids": (1, 2, 3, 4)}, "4 block ids for 40 tokens in blocks of 16"),
    ],
)
def test_what_cannot_be_is_named(changed: dict[str, object], why: str) -> None:
    assert len(Trace("n", (GOOD, GOOD), 16)) == 2
    with pytest.raises(TraceError, match=f"trace n, request 1: .*{why}"):
        Trace("n", (GOOD, replace(GOOD, **changed)), 16)  # type: ignore[arg-type]
