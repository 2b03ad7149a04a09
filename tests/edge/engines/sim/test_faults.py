from __future__ import annotations

import math

import pytest

from pointsman.edge.engines.openai_server.errors import ApiError
from pointsman.edge.engines.sim.faults import NO_FAULTS, Faults, FaultState, StreamFaults, parse_faults, stream_faults


def test_an_empty_body_means_no_faults() -> None:
    assert parse_faults(b"") == parse_faults(b"{}") == NO_FAULTS
    assert stream_faults(NO_FAULTS) == StreamFaults(math.inf, False, False)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"hangs": true}', "unknown field `hangs`. Known faults: slow_factor, hang"),
        (b'{"slow_factor": 0}', r"`float` > 0.0 - at `\$.slow_factor`"),
        (b'{"error_status": 200}', ">= 400"),
        (b'{"events": {"drop": 1.5}}', r"<= 1.0 - at `\$.events.drop`"),
        (b'{"events": {"lose": 1}}', "unknown field `lose`"),
        (b'{"requests": 0}', ">= 1"),
        (b'{"reset_after_tokens": 1, "error_after_tokens": 1}', "exclude each other"),
        (b"nonsense", "not JSON"),
    ],
)
def test_a_bad_fault_is_named(body: bytes, message: str) -> None:
    with pytest.raises(ApiError, match=message):
        parse_faults(body)


def test_a_count_limits_which_requests_are_hit() -> None:
    state = FaultState()
    state.set(Faults(error_status=500, requests=2))
    hits = [state.next_request().error_status for _ in range(4)]
    assert hits == [500, 500, None, None]
    state.set(Faults(hang=True))
    assert [state.next_request().hang for _ in range(3)] == [True, True, True]
