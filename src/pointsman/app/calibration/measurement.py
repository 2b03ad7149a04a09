"""Measurement: what one worker was asked and when it answered, as the fit takes it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pointsman.core.model.errors import CalibrationError
from pointsman.core.workload.trace import Trace, TraceRequest
from pointsman.edge.traces.loaded import LoadedTrace
from pointsman.edge.traces.observed import Observed

Floats = npt.NDArray[np.float64]
LEAST_REQUESTS = 8
"""Fewer measured requests than that say nothing that could be checked."""
_SAME_STEP = 0.3


@dataclass(frozen=True, slots=True)
class Measurement:
    """Requests of one worker in the order of arrival. Times in ms from the first arrival.

    A request whose times are not known is traffic that the others wait for.
    """

    requests: tuple[TraceRequest, ...]
    """`at_ms` is when it arrived, `output_tokens` what came."""
    first_ms: Floats
    """When each one's first token came; nan: not known."""
    last_ms: Floats
    block_tokens: int = 0
    """Tokens a block of the requests' `block_ids`; 0: they have none."""
    horizon_ms: float = math.inf
    """Up to here all traffic is known; what came later shared the engine with requests that are not here."""
    in_engine: bool = False
    """Times are the engine's own, so no network and no HTTP is in them."""

    @property
    def arrival_ms(self) -> Floats:
        """When each request came."""
        return np.array([request.at_ms for request in self.requests])

    @property
    def step_ends_ms(self) -> Floats:
        """`first_ms`, but those that came with the same step have the same time: clients read them one by one."""
        gaps = self.output_tokens - 1
        with np.errstate(invalid="ignore"):
            tpot_ms = ((self.last_ms - self.first_ms) / np.maximum(gaps, 1))[gaps > 0]
        steps_ms = tpot_ms[tpot_ms > 0]
        # A step takes at least about as long as the fastest tokens.
        apart_ms = _SAME_STEP * float(np.percentile(steps_ms, 10)) if len(steps_ms) else 0.0
        ends = self.first_ms.copy()
        order = np.argsort(ends)
        for before, after in pairwise(order.tolist()):
            if self.first_ms[after] - ends[before] < apart_ms:
                ends[after] = ends[before]
        return ends

    @property
    def output_tokens(self) -> Floats:
        """How many tokens each got."""
        return np.array([float(request.output_tokens) for request in self.requests])

    def hashes(self, number: int, block_tokens: int) -> tuple[int, ...]:
        """Ids of the full blocks of `block_tokens` tokens of a request's prompt, chained. Raises CalibrationError."""
        request = self.requests[number]
        theirs = self.block_tokens
        if not request.block_ids:
            return ()
        full = request.block_ids[: request.prompt_tokens // theirs]
        if block_tokens % theirs == 0:
            several = block_tokens // theirs
            return full[several - 1 :: several]  # chained: the last one stands for all before it
        if theirs % block_tokens:
            raise CalibrationError(
                f"KV blocks of {block_tokens} tokens do not go with the trace's of {theirs}: "
                "one must be a multiple of the other"
            )
        parts = theirs // block_tokens
        return tuple(block * parts + part for block in full for part in range(parts))

    def shared_blocks(self, block_tokens: int) -> tuple[int, ...]:
        """For each request the leading blocks of `block_tokens` tokens that another one has, too."""
        hashes = [self.hashes(number, block_tokens) for number in range(len(self))]
        owners = Counter(block for of_one in hashes for block in of_one)
        return tuple(sum(owners[block] > 1 for block in of_one) for of_one in hashes)

    @property
    def goes_on(self) -> bool:
        """Whether there were further requests, of which nothing is known."""
        return math.isfinite(self.horizon_ms)

    def __len__(self) -> int:
        return len(self.requests)


def measurements(
    loaded: LoadedTrace,
    *,
    most_requests: int | None = None,
    most_workers: int | None = None,
    more_followed: bool = False,
    prefixes: Trace | None = None,
) -> tuple[Measurement, ...]:
    """One measurement a worker; a file that names no workers is taken as one.

    `most_requests`: only the first of each worker. `most_workers`: only those with the most requests. `more_followed`:
    the file itself is only the beginning of what the workers were asked. `prefixes` has the same requests in the same
    order, with block ids.
    Raises CalibrationError for a file without times, with too few requests, or for prefixes of other requests.
    """
    name = loaded.problems.file
    if not loaded.observed:
        raise CalibrationError(
            f"{name}: holds no times of answers, so it does not say how fast the engine is; "
            "give a file of results (with times to first and last token), or probe the engine with --engine URL"
        )
    requests = _with_prefixes(loaded.trace, prefixes, name)
    block_tokens = loaded.trace.block_tokens if prefixes is None else prefixes.block_tokens
    rows: dict[str | None, list[tuple[TraceRequest, Observed]]] = {}
    for request, observed in zip(requests, loaded.observed, strict=True):
        rows.setdefault(observed.worker, []).append((request, observed))
    busiest = sorted(rows.values(), key=len, reverse=True)[:most_workers]
    found = tuple(measurement(of_worker, block_tokens, most_requests, more_followed) for of_worker in busiest)
    known = sum(int((np.isfinite(one.first_ms) & np.isfinite(one.last_ms)).sum()) for one in found)
    if known < LEAST_REQUESTS:
        raise CalibrationError(
            f"{name}: has {known} requests with times of their first and last token (answers that are not streamed "
            f"have no first one); at least {LEAST_REQUESTS} are needed, 60 are good"
        )
    return found


def measurement(
    rows: Sequence[tuple[TraceRequest, Observed]],
    block_tokens: int = 0,
    most_requests: int | None = None,
    more_followed: bool = False,
) -> Measurement:
    """The requests of one worker, in any order; at least one."""
    ordered = sorted(rows, key=lambda row: row[1].arrival_ms)
    kept = ordered if most_requests is None else ordered[:most_requests]
    start_ms = kept[0][1].arrival_ms
    requests = tuple(
        TraceRequest(
            at_ms=observed.arrival_ms - start_ms,
            prompt_tokens=observed.prompt_tokens,
            output_tokens=max(1, observed.output_tokens),
            block_ids=request.block_ids,
        )
        for request, observed in kept
    )
    # Queues are first come first served: what is not here can't have begun before the last that is here.
    cut = more_followed or len(kept) < len(ordered)
    last = kept[-1][1]
    known = (last.scheduled_ms, last.first_token_ms, last.arrival_ms)
    horizon_ms = next(time for time in known if time is not None) - start_ms if cut else math.inf
    return Measurement(
        requests=requests,
        first_ms=np.array([_time(observed.first_token_ms, start_ms) for _, observed in kept]),
        last_ms=np.array([_time(observed.last_token_ms, start_ms) for _, observed in kept]),
        block_tokens=block_tokens,
        horizon_ms=horizon_ms,
        in_engine=all(observed.scheduled_ms is not None for _, observed in kept),
    )


def _time(time_ms: float | None, start_ms: float) -> float:
    return math.nan if time_ms is None else time_ms - start_ms


def _with_prefixes(trace: Trace, prefixes: Trace | None, name: str) -> Sequence[TraceRequest]:
    if prefixes is None:
        return trace.requests
    if len(prefixes) != len(trace):
        raise CalibrationError(
            f"{name} has {len(trace)} requests and the trace {prefixes.name} {len(prefixes)}: "
            "give the trace that this run was made with"
        )
    for position, (one, other) in enumerate(zip(trace.requests, prefixes.requests, strict=True)):
        if one.prompt_tokens != other.prompt_tokens:
            raise CalibrationError(
                f"request {position} has {one.prompt_tokens} prompt tokens in {name} and {other.prompt_tokens} in the "
                f"trace {prefixes.name}: give the trace that this run was made with"
            )
    return prefixes.requests
