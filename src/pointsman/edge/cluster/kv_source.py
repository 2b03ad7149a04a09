"""KvSource: where one worker's KV events are to be had, worked out from what the engine and the configuration say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from pointsman.core.model.worker import WorkerId, worker_id
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.facts import EngineFacts, KvEventSource

_WILDCARDS: Final = frozenset({"*", "0.0.0.0", "::", "[::]"})
_KINDS_WITH_EVENTS: Final = frozenset({"vllm", "sglang"})
_LOOPBACK: Final = re.compile(r"127\.\d+\.\d+\.\d+|localhost|\[?::1\]?")
_TCP: Final = re.compile(r"tcp://(.+):(\d+)")
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
SGLANG_TELLS_SALTS: Final = (0, 5, 23)
"""Looked at in this release; earlier ones may or may not."""

HOW_TO_SWITCH_ON: Final = (
    "start the engine with --kv-events-config '"
    '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", '
    '"replay_endpoint": "tcp://*:5558"}\''
)


@dataclass(frozen=True, slots=True)
class KvSource:
    """One rank's event sockets, as this process uses them."""

    worker: WorkerId
    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    bind: bool = False
    """The engine connects to us; otherwise we connect to it."""
    rank: int | None = None
    """Batches of other ranks are not this worker's; None: it has only one rank, whatever its number."""
    hint: str = ""
    """What its events do not tell, for people."""


@dataclass(frozen=True, slots=True)
class NoKvSource:
    """Why there are no events, and what to do about it."""

    worker: WorkerId
    reason: str
    expected: bool = False
    """Engines of this kind send none."""


def kv_sources(source: WorkerSource, facts: EngineFacts) -> tuple[KvSource | NoKvSource, ...]:
    """One a worker. What the configuration says wins over what the engine says."""
    told = {event_source.rank: event_source for event_source in facts.capabilities.kv_events or ()}
    return tuple(_source(source, facts, rank, told.get(rank)) for rank in facts.ranks)


def sends_kv_events(source: WorkerSource, facts: EngineFacts) -> bool:
    """Events of a rank at least are to be had, by the engine's word or the configuration's."""
    return any(isinstance(where, KvSource) for where in kv_sources(source, facts))


def _source(source: WorkerSource, facts: EngineFacts, rank: int, told: KvEventSource | None) -> KvSource | NoKvSource:
    worker = worker_id(source.name, rank)
    said = source.kv_events
    bind = said is not None and said.bind
    endpoint = _of_rank(said.endpoint, rank) if said and said.endpoint else told.endpoint if told else None
    if endpoint is None and facts.kind not in _KINDS_WITH_EVENTS:
        return NoKvSource(worker, f"engines of the kind {facts.kind} send no KV events", expected=True)
    if endpoint is None:
        known = facts.capabilities.kv_events is not None
        off = "the engine sends no KV events" if known else "the engine does not tell where it sends KV events"
        return NoKvSource(worker, f"{off}: {HOW_TO_SWITCH_ON}, or name kv_events.endpoint in execution-group.nodes")
    if told is not None and told.connects and not bind and not (said and said.endpoint):
        return NoKvSource(
            worker,
            f"the engine does not listen at {endpoint} but connects to it: give it tcp://*:PORT, or set "
            f"kv_events {{endpoint: …, bind: true}} of the engine in execution-group.nodes",
        )
    replay = _of_rank(said.replay_endpoint, rank) if said and said.replay_endpoint else None
    if replay is None and told is not None:
        replay = told.replay_endpoint
    host = urlsplit(source.url).hostname or ""
    try:
        return KvSource(
            worker=worker,
            endpoint=endpoint if bind else reachable(endpoint, host),
            replay_endpoint=reachable(replay, host) if replay else None,
            topic=said.topic if said and said.topic is not None else told.topic if told else "",
            bind=bind,
            rank=rank if len(facts.ranks) > 1 else None,
            hint=_hint(facts),
        )
    except ValueError as error:
        return NoKvSource(worker, str(error))


def reachable(endpoint: str, engine_host: str) -> str:
    """An endpoint as one connects to it: a wildcard stands for the engine's host. ValueError: nobody can."""
    if endpoint.startswith("ipc://"):
        return endpoint
    match = _TCP.fullmatch(endpoint)
    if match is None:
        raise ValueError(f"KV events at {endpoint}: use an endpoint tcp://*:PORT or ipc://PATH")
    host, port = match[1], match[2]
    bracketed = f"[{engine_host}]" if ":" in engine_host else engine_host
    if host in _WILDCARDS:
        return f"tcp://{bracketed}:{port}"
    if _LOOPBACK.fullmatch(host) and not _LOOPBACK.fullmatch(engine_host):
        raise ValueError(
            f"KV events at {endpoint} can't be reached: the engine at {engine_host} names its own loopback address; "
            f"give it tcp://*:{port}"
        )
    return endpoint


def _hint(facts: EngineFacts) -> str:
    match = _VERSION.match(facts.version or "")
    if facts.kind != "sglang" or match is None or tuple(map(int, match.groups())) >= SGLANG_TELLS_SALTS:
        return ""
    since = ".".join(map(str, SGLANG_TELLS_SALTS))
    return (
        f"events of SGLang {facts.version} may not tell cache_salt: blocks of salted prompts then count for unsalted "
        f"ones; {since} tells it"
    )


def _of_rank(endpoint: str, rank: int) -> str:
    """A rank's port is the first one's plus the rank, as engines have it."""
    match = _TCP.fullmatch(endpoint)
    return f"tcp://{match[1]}:{int(match[2]) + rank}" if match else endpoint
