"""LoadedTrace: what came out of a file: the trace, what was measured, what was wrong; and how it is put together."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.trace import MOST_TOKENS, Trace, TraceRequest
from pointsman.edge.traces.lines import decode
from pointsman.edge.traces.observed import Observed
from pointsman.edge.traces.problems import Problems, RowError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadedTrace:
    """What was read from one file or folder."""

    trace: Trace
    problems: Problems
    observed: tuple[Observed, ...] = ()
    """One for each request of the trace, in its order; empty where the file holds no measured times of any."""
    format: str = ""


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    request: TraceRequest
    observed: Observed | None
    key: Hashable
    after: Hashable


class TraceBuilder:
    """Takes rows as a file has them; makes a trace in the order of time that starts at 0 unless `keep_times`."""

    def __init__(
        self, problems: Problems, *, block_tokens: int = 0, keep_times: bool = False, any_order: bool = False
    ) -> None:
        """`any_order`: rows are written when requests end, so their order says nothing."""
        self.problems = problems
        self.block_tokens = block_tokens
        """Can be set until rows with block ids are added."""
        self._keep_times = keep_times
        self._any_order = any_order
        self._rows: list[_Row] = []
        self._before_ms = -math.inf

    def add(
        self,
        line: int,
        request: TraceRequest,
        observed: Observed | None = None,
        *,
        key: Hashable = None,
        after: Hashable = None,
        label: str = "",
    ) -> bool:
        """One row; False: it can't be a request and is left out.

        `after` is the `key` of the row whose answer it waits for, `label` says which of a line's rows it is.
        """
        self.problems.rows += 1
        fault = self._fault(request)
        if fault:
            self.problems.leave_out(line, f"{label}: {fault}" if label else fault)
            return False
        if request.at_ms < self._before_ms and not self._any_order:
            self.problems.move(line, self._before_ms - request.at_ms)
        self._before_ms = request.at_ms
        self._rows.append(_Row(line, request, observed, key, after))
        return True

    def decoded(self, lines: Iterable[tuple[int, bytes]], kind: msgspec.json.Decoder[T]) -> Iterator[tuple[int, T]]:
        """Lines of JSON as rows, with their numbers; those that are none are left out."""
        for line, raw in lines:
            try:
                row = decode(raw, kind)
            except RowError as error:
                self.leave_out(line, str(error))
            else:
                yield line, row

    def leave_out(self, line: int, text: str) -> None:
        """A row that isn't even a request."""
        self.problems.rows += 1
        self.problems.leave_out(line, text)

    def build(self, name: str, source: str = "") -> LoadedTrace:
        """The trace. Raises TraceError when no row is left."""
        problems = self.problems
        if not self._rows:
            reason = f"; {problems.unit} {problems.named[0].line}: {problems.named[0].text}" if problems.named else ""
            raise TraceError(f"{problems.file}: none of its {problems.rows} rows is a request{reason}")
        rows = sorted(self._rows, key=lambda row: row.request.at_ms)
        start_ms = None if self._keep_times else rows[0].request.at_ms
        positions = {row.key: position for position, row in enumerate(rows) if row.key is not None}
        requests = tuple(self._placed(row, position, positions, start_ms) for position, row in enumerate(rows))
        observed: tuple[Observed, ...] = ()
        if any(row.observed is not None for row in rows):
            observed = tuple(_shifted(row.observed or _unobserved(row.request), start_ms) for row in rows)
        blocks = self.block_tokens if any(request.block_ids for request in requests) else 0
        return LoadedTrace(Trace(name, requests, blocks, source), problems, observed)

    def _fault(self, request: TraceRequest) -> str:
        if not math.isfinite(request.at_ms) or (self._keep_times and request.at_ms < 0):
            return f"its time is {request.at_ms:g} ms; times count from the start of the trace"
        for name, tokens in (("prompt", request.prompt_tokens), ("output", request.output_tokens)):
            if not 1 <= tokens <= MOST_TOKENS:
                return f"its {name} has {tokens} tokens; at least 1 and at most {MOST_TOKENS} are expected"
        if not (math.isfinite(request.gap_ms) and request.gap_ms >= 0):
            return f"the time between the answer before it and it is {request.gap_ms:g} ms"
        if not request.block_ids:
            return ""
        blocks = len(request.block_ids)
        if self.block_tokens < 1 or blocks > -(-request.prompt_tokens // self.block_tokens):
            return f"it has {blocks} block ids for {request.prompt_tokens} tokens in blocks of {self.block_tokens}"
        return ""

    def _placed(self, row: _Row, position: int, positions: dict[Hashable, int], start_ms: float | None) -> TraceRequest:
        request = row.request
        if start_ms is not None:
            request = replace(request, at_ms=_since(start_ms, request.at_ms))
        if row.after is None:
            return request
        before = positions.get(row.after)
        if before is None or before >= position:
            why = "is not in the trace" if before is None else "does not arrive before it"
            self.problems.notes.append(
                f"{self.problems.unit} {row.line}: the request that it waits for {why}; it comes at its own time"
            )
            return replace(request, after=None, gap_ms=0.0)
        return replace(request, after=before)


def _since(start_ms: float, at_ms: float) -> float:
    # Whole µs: seconds since 1970 as a float are not more exact, and digits that mean nothing fill files.
    return round(at_ms - start_ms, 3)


def _unobserved(request: TraceRequest) -> Observed:
    return Observed(request.at_ms, None, None, request.prompt_tokens, request.output_tokens)


def _shifted(observed: Observed, start_ms: float | None) -> Observed:
    if start_ms is None:
        return observed
    first, last, scheduled = observed.first_token_ms, observed.last_token_ms, observed.scheduled_ms
    return replace(
        observed,
        arrival_ms=_since(start_ms, observed.arrival_ms),
        first_token_ms=None if first is None else _since(start_ms, first),
        last_token_ms=None if last is None else _since(start_ms, last),
        scheduled_ms=None if scheduled is None else _since(start_ms, scheduled),
    )
