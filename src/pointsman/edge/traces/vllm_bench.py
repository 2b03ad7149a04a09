"""Results of vLLM's serving benchmark: `vllm bench serve --save-result --save-detailed`, one JSON document.

Arrays with an entry a request: `input_lens, output_lens` (tokens), `start_times` (s, the client's clock), `ttfts`,
`itls` (s), `errors`; newer ones `latencies` too.
"""

from __future__ import annotations

import math

import msgspec

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.trace import TraceRequest
from pointsman.edge.traces.lines import decode, read_all
from pointsman.edge.traces.loaded import LoadedTrace, TraceBuilder
from pointsman.edge.traces.observed import Observed
from pointsman.edge.traces.problems import RowError
from pointsman.edge.traces.source import Format, Head, Source

_MS = 1000.0


class _Result(msgspec.Struct):
    input_lens: list[int] | None = None
    output_lens: list[int] | None = None
    start_times: list[float] | None = None
    ttfts: list[float] | None = None
    itls: list[list[float]] | None = None
    latencies: list[float] | None = None
    errors: list[str | None] | None = None
    model_id: str | None = None
    request_rate: float | str | None = None


_DECODER = msgspec.json.Decoder(_Result)


def read_vllm_bench(source: Source) -> LoadedTrace:
    """Read one result. Arrivals are when the client sent; rows are counted from 1 in the arrays."""
    source.problems.unit = "request"
    result = _result(source)
    input_lens = result.input_lens or []
    starts = result.start_times
    if starts is None:
        if str(result.request_rate) != "inf":
            raise TraceError(
                f"{source.path}: has no start_times, so nobody knows when its requests came; run the benchmark of a "
                "newer vLLM with --save-detailed"
            )
        source.problems.notes.append("it has no start_times; all requests are taken to come at once (rate inf)")
        starts = [0.0] * len(input_lens)
    _check_lengths(source, result, starts)
    builder = TraceBuilder(source.problems, any_order=True)
    for position in range(len(input_lens)):
        error = result.errors[position] if result.errors else ""
        if error:
            builder.leave_out(position + 1, f"it failed: {error.strip().splitlines()[-1][:200]}")
            continue
        try:
            observed = _observed(result, starts, position)
        except RowError as fault:
            builder.leave_out(position + 1, str(fault))
            continue
        request = TraceRequest(
            observed.arrival_ms, observed.prompt_tokens, observed.output_tokens, model=result.model_id
        )
        builder.add(position + 1, request, observed)
    return builder.build(source.name, "vLLM benchmark, arrivals as its client sent them; no prefixes")


def _result(source: Source) -> _Result:
    raw = read_all(source.path, source.options.on_bytes)
    try:
        result = decode(raw, _DECODER)
    except RowError as error:
        lines = len(raw.splitlines())
        several = f"; it has {lines} lines: keep one result in a file" if lines > 1 and b"\n{" in raw else ""
        raise TraceError(f"{source.path}: {error}{several}") from None
    if result.input_lens is None or result.output_lens is None:
        raise TraceError(f"{source.path}: holds means only; run the benchmark with --save-detailed")
    return result


def _check_lengths(source: Source, result: _Result, starts: list[float]) -> None:
    wanted = len(result.input_lens or [])
    arrays = {
        "output_lens": result.output_lens,
        "start_times": starts,
        "ttfts": result.ttfts,
        "itls": result.itls,
        "latencies": result.latencies,
        "errors": result.errors,
    }
    for name, array in arrays.items():
        if array and len(array) != wanted:
            raise TraceError(f"{source.path}: {name} has {len(array)} entries, input_lens {wanted}")


def _observed(result: _Result, starts: list[float], position: int) -> Observed:
    assert result.input_lens is not None
    assert result.output_lens is not None
    arrival_ms = starts[position] * _MS
    ttft_ms = result.ttfts[position] * _MS if result.ttfts else None
    itl_ms = tuple(gap * _MS for gap in result.itls[position]) if result.itls else ()
    if any(not (math.isfinite(time_ms) and time_ms >= 0) for time_ms in (ttft_ms or 0.0, *itl_ms)):
        raise RowError("ttfts or itls: a time below 0")
    first_ms = None if ttft_ms is None else arrival_ms + ttft_ms
    last_ms = None
    if result.latencies:
        last_ms = arrival_ms + result.latencies[position] * _MS
    elif first_ms is not None and result.itls:
        last_ms = first_ms + sum(itl_ms)
    return Observed(
        arrival_ms,
        first_ms,
        last_ms,
        result.input_lens[position],
        result.output_lens[position],
        itl_ms=itl_ms,
    )


def _recognise(head: Head) -> bool:
    return head.text.startswith("{") and ('"input_lens"' in head.text or '"total_input_tokens"' in head.text)


FORMAT = Format(
    "vllm-bench", "results of vLLM's serving benchmark saved with --save-detailed", _recognise, read_vllm_bench
)
