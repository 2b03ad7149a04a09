"""Our own trace file: one JSON object a line, nothing of a trace is lost. docs/traces.md describes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.trace import MOST_TOKENS, Trace, TraceRequest
from pointsman.edge.traces.block_runs import Run, common_prefix, from_runs, to_runs
from pointsman.edge.traces.lines import decode, write_lines
from pointsman.edge.traces.loaded import LoadedTrace, TraceBuilder
from pointsman.edge.traces.observed import Observed
from pointsman.edge.traces.problems import RowError
from pointsman.edge.traces.source import Format, Source

VERSION = 1
_MARK = "pointsman_trace"


class _Header(msgspec.Struct):
    pointsman_trace: int
    name: str = ""
    block_tokens: int = 0
    source: str = ""
    requests: int | None = None


class _Row(msgspec.Struct, omit_defaults=True):
    """One request. `like`: its first ids are the first ones of an earlier request: that one's position, how many."""

    at_ms: float
    prompt_tokens: int
    output_tokens: int
    like: tuple[int, int] | None = None
    blocks: list[Run] = []
    answer: list[Run] = []
    session: str | None = None
    after: int | None = None
    gap_ms: float = 0.0
    tenant: str | None = None
    model: str | None = None
    priority: int = 0
    observed: Observed | None = None


_HEADER = msgspec.json.Decoder(_Header)
_ROW = msgspec.json.Decoder(_Row)


def write_trace(trace: Trace, path: Path, observed: tuple[Observed, ...] = ()) -> None:
    """Write a trace; gzipped when the name ends in `.gz`. An old file is replaced only by a whole new one.

    Raises TraceError when the file can't be written.
    """
    if observed and len(observed) != len(trace):
        raise TraceError(f"{path}: {len(observed)} measurements for {len(trace)} requests")
    write_lines(path, _lines(trace, observed))


def _lines(trace: Trace, observed: tuple[Observed, ...]) -> Iterator[bytes]:
    encoder = msgspec.json.Encoder()
    yield encoder.encode(_Header(VERSION, trace.name, trace.block_tokens, trace.source, len(trace)))
    last_of: dict[object, int] = {}
    for position, request in enumerate(trace.requests):
        like, blocks = _shortened(trace, request, last_of)
        row = _Row(
            at_ms=request.at_ms,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            like=like,
            blocks=blocks,
            answer=to_runs(request.answer_block_ids),
            session=request.session,
            after=request.after,
            gap_ms=request.gap_ms,
            tenant=request.tenant,
            model=request.model,
            priority=request.priority,
            observed=observed[position] if observed else None,
        )
        yield encoder.encode(row)
        if request.block_ids:
            last_of[request.block_ids[0]] = position
            if request.session is not None:
                last_of[request.session] = position


def _shortened(
    trace: Trace, request: TraceRequest, last_of: dict[object, int]
) -> tuple[tuple[int, int] | None, list[Run]]:
    """Against the request that it follows, or the last of its session, or the last that begins alike."""
    if not request.block_ids:
        return None, []
    best, count = -1, 0
    for other in {request.after, last_of.get(request.session), last_of.get(request.block_ids[0])} - {None}:
        assert other is not None
        common = common_prefix(request.block_ids, trace.requests[other].block_ids)
        if common > count or (common == count and other < best):
            best, count = other, common
    if not count:
        return None, to_runs(request.block_ids)
    return (best, count), to_runs(request.block_ids[count:])


def read_canonical(source: Source) -> LoadedTrace:
    """Read it. Raises TraceError when it is of a later version or its header can't be read."""
    lines = source.lines()
    line, raw = next(lines, (1, b""))
    header = _header(source, line, raw)
    builder = TraceBuilder(source.problems, block_tokens=header.block_tokens, keep_times=True)
    ids_of: list[tuple[int, ...] | None] = []
    for line, raw in lines:
        try:
            row = decode(raw, _ROW)
            ids = _ids(row, ids_of)
        except RowError as error:
            builder.leave_out(line, str(error))
            ids_of.append(None)
            continue
        request = TraceRequest(
            at_ms=row.at_ms,
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            block_ids=ids,
            answer_block_ids=from_runs(row.answer),
            session=row.session,
            gap_ms=row.gap_ms,
            tenant=row.tenant,
            model=row.model,
            priority=row.priority,
        )
        builder.add(line, request, row.observed, key=len(ids_of), after=row.after)
        ids_of.append(ids)
    if header.requests is not None and header.requests != len(ids_of):
        what = (
            f"its header says {header.requests} requests, it holds {len(ids_of)}: it was cut off or edited; if rows "
            "were taken out of its middle, what the others share and wait for is wrong: `pointsman trace cut` and "
            "`scale` keep it right"
        )
        if source.problems.strict:
            raise TraceError(f"{source.path}: {what}")
        source.problems.notes.append(what)
    return builder.build(header.name or source.name, header.source)


def _header(source: Source, line: int, raw: bytes) -> _Header:
    try:
        header = decode(raw, _HEADER)
    except RowError as error:
        raise TraceError(f"{source.path}, line {line}: no header of a pointsman trace: {error}") from None
    if header.pointsman_trace != VERSION:
        raise TraceError(
            f"{source.path}: trace format {header.pointsman_trace}, this version reads {VERSION}; write it anew with "
            "`pointsman trace convert` of the version that made it"
        )
    if not 0 <= header.block_tokens <= MOST_TOKENS:
        raise TraceError(f"{source.path}, line {line}: block_tokens is {header.block_tokens}")
    return header


def _ids(row: _Row, ids_of: list[tuple[int, ...] | None]) -> tuple[int, ...]:
    # Counted before they are made: a damaged count must not fill the memory.
    counts = [count for _, count in (*row.blocks, *row.answer)]
    if any(count < 1 for count in counts) or sum(counts) > max(row.prompt_tokens, 0) + max(row.output_tokens, 0):
        raise RowError("blocks: more block ids than tokens, or a run of less than one")
    shared: tuple[int, ...] = ()
    if row.like is not None:
        position, count = row.like
        if not 0 <= position < len(ids_of):
            raise RowError(f"like: there is no request {position} before it")
        other = ids_of[position]
        if other is None:
            raise RowError(f"like: request {position}, whose blocks it starts with, can't be read")
        if not 0 <= count <= len(other):
            raise RowError(f"like: request {position} has {len(other)} block ids, not {count}")
        shared = other[:count]
    return shared + from_runs(row.blocks) if row.blocks else shared


FORMAT = Format("pointsman", "our own traces", lambda head: head.has(_MARK), read_canonical)
