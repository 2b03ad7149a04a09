"""Recorded sessions of coding agents (callanjfox/kv-cache-tester, re-encoded): one session a line.

`id, block_size, tool_tokens, system_tokens, requests`. A request has `t` (s from the session's start), `in`, `out`
(tokens), `keep` and `new`: how many leading blocks of the request before it it shares, and runs of ids that come after
them; `think_time`, `api_time`, `ttft` (s), `m` (model). One of type `subagent` has requests of its own instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import msgspec

from pointsman.core.workload.trace import TraceRequest
from pointsman.edge.traces.lines import decode
from pointsman.edge.traces.loaded import LoadedTrace, TraceBuilder
from pointsman.edge.traces.observed import Observed
from pointsman.edge.traces.problems import RowError
from pointsman.edge.traces.source import Format, Source

_MS = 1000.0
_SUBAGENT = "subagent"


class _Request(msgspec.Struct):
    t: float
    type: str = "n"
    in_tokens: int = msgspec.field(default=0, name="in")
    out: int = 0
    keep: int = 0
    new: list[tuple[int, int]] = []
    m: str | None = None
    think_time: float | None = None
    api_time: float | None = None
    ttft: float | None = None
    agent_id: str = ""
    tool_tokens: int = 0
    system_tokens: int = 0
    requests: list[_Request] = []


class _Session(msgspec.Struct):
    id: str
    block_size: int
    requests: list[_Request]
    tool_tokens: int = 0
    system_tokens: int = 0


_DECODER = msgspec.json.Decoder(_Session)


@dataclass(slots=True)
class _Ids:
    """Ids that are unique in the trace. Tools and instructions of the same lengths are taken for the same."""

    fresh: Iterator[int] = field(default_factory=count)
    shared: dict[tuple[int, ...], int] = field(default_factory=dict)
    unknown: int = 0
    """Requests of which nobody knows the blocks."""

    def leading(self, agent: _Agent, place: int, block_tokens: int) -> int | None:
        """The id of the first request's block at `place` if tools and instructions fill it, else None."""
        tools, system = max(0, agent.tool_tokens), max(0, agent.system_tokens)
        if place >= (tools + system) // block_tokens:
            return None
        return self._of((tools, place) if place < tools // block_tokens else (tools, system, place))

    def _of(self, key: tuple[int, ...]) -> int:
        if key not in self.shared:
            self.shared[key] = next(self.fresh)
        return self.shared[key]


@dataclass(slots=True)
class _Agent:
    """A session, or a sub-agent of one, while its requests are read."""

    name: str
    line: int
    start_s: float
    local: dict[int, int]
    """Ids of the trace by those of the session."""
    tool_tokens: int
    system_tokens: int
    blocks: tuple[int, ...] | None = ()
    """Of the request before; None where nobody knows, after one that can't be read: `keep` counts its blocks."""
    last: tuple[object, _Request, float] | None = None
    """Key, row and start of the request that the next one waits for."""
    requests: int = 0


def read_agentic(source: Source) -> LoadedTrace:
    """Read it. All sessions start at 0; sub-agents are sessions of their own that wait for the request before them."""
    builder = TraceBuilder(source.problems, any_order=True)
    ids = _Ids()
    for line, raw in source.lines():
        try:
            session = decode(raw, _DECODER)
            if session.block_size < 1:
                raise RowError(f"block_size: {session.block_size} is no size")
            builder.block_tokens = builder.block_tokens or session.block_size
            if session.block_size != builder.block_tokens:
                raise RowError(f"block_size: {session.block_size} where sessions before have {builder.block_tokens}")
        except RowError as error:
            builder.leave_out(line, str(error))
            continue
        agent = _Agent(session.id, line, 0.0, {}, session.tool_tokens, session.system_tokens)
        _add(builder, ids, agent, session.requests)
    if ids.unknown:
        source.problems.notes.append(
            f"{ids.unknown} requests share blocks with one that can't be read: nothing is known of what they share"
        )
    source.problems.notes.append("all sessions start at 0 s: start them as you like with `pointsman trace scale`")
    return builder.build(
        source.name, "agent sessions; tools and instructions of equal lengths are taken for equal; all start at 0"
    )


def _add(builder: TraceBuilder, ids: _Ids, agent: _Agent, rows: list[_Request]) -> None:
    for row in rows:
        if row.type == _SUBAGENT:
            name = f"{agent.name}/{row.agent_id or agent.requests}"
            start_s = agent.start_s + row.t
            inner = _Agent(name, agent.line, start_s, agent.local, row.tool_tokens, row.system_tokens, last=agent.last)
            _add(builder, ids, inner, row.requests)
            continue
        agent.requests += 1
        try:
            agent.blocks = _blocks(ids, agent, row, builder.block_tokens)
        except RowError as error:
            builder.leave_out(agent.line, f"{agent.name}, request {agent.requests}: {error}")
            agent.blocks = None
            continue
        added = _add_request(builder, agent, row)
        ids.unknown += added and agent.blocks is None


def _add_request(builder: TraceBuilder, agent: _Agent, row: _Request) -> bool:
    at_s = agent.start_s + row.t
    gap_s, after = 0.0, None
    if agent.last is not None:
        after, before, before_s = agent.last
        own = agent.requests > 1
        gap_s = row.think_time if own and row.think_time is not None else at_s - before_s - (before.api_time or 0.0)
    request = TraceRequest(
        at_ms=at_s * _MS,
        prompt_tokens=row.in_tokens,
        output_tokens=row.out,
        block_ids=agent.blocks or (),
        session=agent.name,
        gap_ms=max(0.0, gap_s) * _MS,
        model=row.m,
    )
    observed = Observed(
        arrival_ms=at_s * _MS,
        first_token_ms=None if row.ttft is None else (at_s + row.ttft) * _MS,
        last_token_ms=None if row.api_time is None else (at_s + row.api_time) * _MS,
        prompt_tokens=row.in_tokens,
        output_tokens=row.out,
    )
    key = (agent.line, agent.name, agent.requests)
    label = f"{agent.name}, request {agent.requests}"
    added = builder.add(agent.line, request, observed, key=key, after=after, label=label)
    if added:
        agent.last = (key, row, at_s)
    return added


def _blocks(ids: _Ids, agent: _Agent, row: _Request, block_tokens: int) -> tuple[int, ...] | None:
    before = agent.blocks if row.keep else ()
    if before is not None and not 0 <= row.keep <= len(before):
        raise RowError(f"keep: {row.keep} blocks of the {len(before)} that the request before it has")
    # Counted before they are made: a damaged count must not fill the memory.
    if any(number < 1 for _, number in row.new) or sum(number for _, number in row.new) > max(0, row.in_tokens):
        raise RowError("new: more blocks than tokens, or a run of less than one")
    fresh: list[int] = []
    for start, number in row.new:
        for block in range(start, start + number):
            known = agent.local.get(block)
            if known is None:
                if agent.requests == 1:
                    known = ids.leading(agent, len(fresh), block_tokens)
                known = agent.local[block] = next(ids.fresh) if known is None else known
            fresh.append(known)
    return None if before is None else before[: row.keep] + tuple(fresh)


FORMAT = Format(
    "agentic",
    "recorded agent sessions: one a line, with keep/new lists of blocks",
    lambda head: head.has("block_size", "requests", "id"),
    read_agentic,
)
