"""Our own decision log (docs/operating.md): requests as they ended, with the keys of their blocks and when they came.

Files of several front ends and older ones may be put one after the other: rows come in any order, headers anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.trace import TraceRequest
from pointsman.edge.telemetry.decision_row import MARK, VERSION, DecisionRow, Header, unpack_keys
from pointsman.edge.traces.lines import decode
from pointsman.edge.traces.loaded import LoadedTrace, TraceBuilder
from pointsman.edge.traces.observed import Observed
from pointsman.edge.traces.problems import RowError
from pointsman.edge.traces.source import Format, Source

_HEADER = msgspec.json.Decoder(Header)
_ROW = msgspec.json.Decoder(DecisionRow)
_HEADER_START = b'{"' + MARK.encode()
_ANSWERED = ("finished", "cancelled")

Cut = tuple[str, int]
"""Unit and size of blocks."""


def read_decision_log(source: Source) -> LoadedTrace:
    """Read it. Raises TraceError for a later version of the format."""
    rows: list[tuple[int, DecisionRow | RowError]] = []
    for line, raw in source.lines():
        if raw.startswith(_HEADER_START):
            _check_header(source, line, raw)
            continue
        try:
            rows.append((line, decode(raw, _ROW)))
        except RowError as error:
            rows.append((line, error))
    cut, block_tokens = _cut((row for _, row in rows if isinstance(row, DecisionRow)), source)
    builder = TraceBuilder(source.problems, block_tokens=block_tokens, any_order=True)
    ids: dict[str, int] = {}
    for line, row in rows:
        if isinstance(row, RowError):
            builder.leave_out(line, str(row))
            continue
        try:
            observed = _observed(row)
            blocks = _block_ids(row, cut, block_tokens, ids)
        except RowError as error:
            builder.leave_out(line, str(error))
            continue
        request = TraceRequest(
            at_ms=row.at_ms,
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            block_ids=blocks,
            session=row.session,
            tenant=row.tenant,
            model=row.model,
        )
        builder.add(line, request, observed)
    _note(source, [row for _, row in rows if isinstance(row, DecisionRow)])
    return builder.build(source.name, "decision log of pointsman")


def _check_header(source: Source, line: int, raw: bytes) -> None:
    try:
        header = decode(raw, _HEADER)
    except RowError as error:
        raise TraceError(f"{source.path}, line {line}: a damaged header of a decision log: {error}") from None
    if header.pointsman_decisions != VERSION:
        raise TraceError(
            f"{source.path}, line {line}: decision log of format {header.pointsman_decisions} "
            f"(pointsman {header.pointsman or 'unknown'}), this version reads {VERSION}"
        )


def _cut(rows: Iterable[DecisionRow], source: Source) -> tuple[Cut, int]:
    """How most of the rows cut their prompts, and tokens a block: a trace has blocks of one size."""
    counts: Counter[Cut] = Counter()
    tokens, length = 0, 0
    for row in rows:
        if not row.blocks or row.block_size < 1:
            continue
        counts[row.block_unit, row.block_size] += 1
        if row.block_unit == "bytes" and row.prompt_bytes > 0:
            tokens += row.prompt_tokens
            length += row.prompt_bytes
    if not counts:
        return ("", 0), 0
    cut = counts.most_common(1)[0][0]
    others = counts.total() - counts[cut]
    if others:
        source.problems.notes.append(
            f"{others} requests have blocks of another kind than most ({cut[1]} {cut[0]}); theirs are not used"
        )
    if cut[0] == "tokens":
        return cut, cut[1]
    block_tokens = max(1, round(cut[1] * tokens / length)) if length else max(1, cut[1] // 4)
    source.problems.notes.append(
        f"blocks are {cut[1]} bytes of text, taken for {block_tokens} tokens each: prompts were not tokenized"
    )
    return cut, block_tokens


def _block_ids(row: DecisionRow, cut: Cut, block_tokens: int, ids: dict[str, int]) -> tuple[int, ...]:
    if row.blocks and row.block_size < 1:
        raise RowError(f"block_size: {row.block_size} where there are blocks")
    if not row.blocks or (row.block_unit, row.block_size) != cut:
        return ()
    try:
        keys = unpack_keys(row.blocks)
    except ValueError as error:
        raise RowError(f"blocks: {error}") from None
    # Of text a block may hold fewer tokens than most do.
    most = -(-row.prompt_tokens // block_tokens)
    return tuple(ids.setdefault(key, len(ids)) for key in keys[:most])


def _observed(row: DecisionRow) -> Observed:
    if row.status not in _ANSWERED or row.output_tokens < 1:
        raise RowError(f"it has no answer: {row.status or 'no status'} ({row.http})")
    first, last = row.first_token_ms, row.last_token_ms
    for name, value in (("first_token_ms", first), ("last_token_ms", last)):
        if value is not None and not value >= 0:
            raise RowError(f"{name}: {value} is before its arrival")
    if first is not None and last is not None and last < first:
        raise RowError(f"last_token_ms: {last} is before its first token, {first}")
    return Observed(
        arrival_ms=row.at_ms,
        first_token_ms=None if first is None else row.at_ms + first,
        last_token_ms=None if last is None or row.status == "cancelled" else row.at_ms + last,
        prompt_tokens=row.prompt_tokens,
        output_tokens=row.output_tokens,
        cached_tokens=row.cached_reported,
        worker=row.worker,
    )


def _note(source: Source, rows: list[DecisionRow]) -> None:
    notes = source.problems.notes
    cancelled = sum(row.status == "cancelled" and row.output_tokens > 0 for row in rows)
    if cancelled:
        notes.append(f"{cancelled} requests were cancelled; their answers count as long as they were by then")
    estimated = sum(row.prompt_from == "estimate" for row in rows)
    if estimated:
        notes.append(f"{estimated} prompts are as long as was estimated from their text; no engine counted them")
    sampled = [row for row in rows if row.sample < 1]
    if sampled:
        notes.append(
            f"{len(sampled)} requests stand for about {sum(1 / row.sample for row in sampled if row.sample > 0):,.0f}: "
            "only a sample was written (decision-log.sample), so there is less load and less to find in caches"
        )
    several = sum(row.sequences > 1 for row in rows)
    if several:
        notes.append(
            f"{several} requests asked for several answers (n); each counts as one answer of their total length"
        )


FORMAT = Format(
    "decision-log",
    "the decision log of pointsman serve: lengths, times and prompt blocks of requests that ended",
    lambda head: head.has(MARK) or head.has("at_ms", "prompt_from", "http"),
    read_decision_log,
)
