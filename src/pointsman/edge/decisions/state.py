"""The state of the fleet that a decision was made on, packed into one text and out of it again, exactly.

The text is base64 of zlib of MessagePack. Columns of the view, step times and what is expected are kept by *name*, so
one that was added later is taken at its usual value when an older text is read, and one that is gone is left out and
named. Prompts are not in it, nor keys of their blocks: policies see how much of a prompt is cached where.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.decision import Decision
from pointsman.core.model.errors import PointsmanError
from pointsman.core.model.outlook import Outlook
from pointsman.core.model.request import Request
from pointsman.core.model.slo import Slo
from pointsman.core.model.transfer import USUAL_RULES, TransferMode, TransferRules
from pointsman.core.model.view import NOT_ZERO, Column, FleetView
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.chance import decision_chance
from pointsman.core.policies.contract import decided
from pointsman.core.policies.policy import Policy
from pointsman.core.timing.fleet_times import FleetTimes, TimeRows
from pointsman.core.timing.link_times import NO_LINKS, LinkTimes
from pointsman.edge.decisions.packed_links import PackedLinks, pack_links, unpack_links
from pointsman.edge.decisions.plans import pull_of

STATE_VERSION = 1
_MOST_BYTES = 64 * 2**20
"""Unpacked: 4,096 workers have a few MB."""
_USUAL_COLUMN = NOT_ZERO
"""Of columns where 0 would say something."""
_USUAL_TIME = {"ttft_p50": 1.0, "ttft_p90": 1.0, "step_p50": 1.0, "step_p90": 1.0}
_KNOWN = "known"


class StateError(PointsmanError):
    """A text that is no packed state, or one of a later version."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """All that a policy was given, and by which one it was used."""

    request: Request
    """Without keys of blocks."""
    view: FleetView
    times: TimeRows
    now_ms: float
    """On the clock of the front end, as `request.arrival_ms`."""
    seed: int
    """Of the front end's random numbers."""
    policy: str
    worker: WorkerId | None
    """What was chosen."""
    ignored: tuple[str, ...] = ()
    """Names of what was recorded and this version does not know."""
    links: LinkTimes = NO_LINKS
    """Between the machines of the view."""
    prefill_worker: WorkerId | None = None
    """That was chosen to compute the prompt for `worker`."""
    pull_source: WorkerId | None = None
    """That was chosen to be fetched from."""

    @property
    def timing(self) -> FleetTimes:
        """Step times and links as policies are given them."""
        return FleetTimes.of_rows(self.view.workers, self.times, self.links)

    def decide(self, policy: Policy) -> Decision:
        """What a policy decides on it, by the same chance. Raises what the policy raises, and PolicyError."""
        chance = decision_chance(self.seed, self.request.id)
        return decided(policy, self.request, self.view, self.timing, self.now_ms, chance)


class _Asked(msgspec.Struct, omit_defaults=True):
    """Facts of a request."""

    id: str
    model: str
    arrival_ms: float
    prompt_tokens: int
    sequences: int = 1
    streamed: bool = True
    route_key: str | None = None
    tenant: str | None = None
    api: str = ""
    max_output_tokens: int | None = None
    slo: tuple[float | None, float | None, str | None] | None = None
    pinned_worker: str | None = None


class _State(msgspec.Struct, omit_defaults=True):
    version: int
    request: _Asked
    workers: list[str]
    columns: dict[str, bytes]
    """64-bit integers, little-endian; nothing = all are 0."""
    times: dict[str, bytes]
    """64-bit floats, little-endian; `known` is one byte a worker."""
    outlook: dict[str, float]
    now_ms: float
    seed: int
    policy: str
    worker: str | None = None
    guards_lifted: bool = False
    transfer: tuple[str, int, bool] | None = None
    """Mode, most bytes, whether failed moves are computed locally; None: a state of before there were any."""
    links: PackedLinks | None = None
    """None: no worker passes KV on."""
    prefill_worker: str | None = None
    pull_source: str | None = None


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_State)


def pack_state(
    request: Request,
    decision: Decision,
    times: TimeRows,
    now_ms: float,
    seed: int,
    links: LinkTimes = NO_LINKS,
) -> str:
    """The text. Costs about 0.05 ms for 8 workers and 0.5 ms for 256, so it is called beside the event loop."""
    view, pull = decision.view, pull_of(decision.plan)
    table = view.table.astype("<i8", copy=False)
    used: list[bool] = np.any(view.table != 0, axis=1).tolist()
    state = _State(
        version=STATE_VERSION,
        request=_asked(request),
        workers=list(view.workers),
        columns={column.name: table[column].tobytes() if used[column] else b"" for column in Column},
        times=_packed_times(times),
        outlook={name: float(value) for name, value in dataclasses.asdict(view.outlook).items()},
        now_ms=now_ms,
        seed=seed,
        policy=decision.policy,
        worker=decision.worker,
        guards_lifted=view.guards_lifted,
        transfer=(str(view.transfer.mode), view.transfer.most_bytes, view.transfer.fallback_to_local),
        links=pack_links(links, view.column(Column.NODE)) if used[Column.KV_GROUP] else None,
        prefill_worker=decision.prefill_worker,
        pull_source=None if pull is None else pull.source,
    )
    return base64.b64encode(zlib.compress(_ENCODER.encode(state), 6)).decode("ascii")


def unpack_state(text: str) -> Recorded:
    """The state again. Raises StateError that says what is wrong."""
    state = _decoded(text)
    if state.version != STATE_VERSION:
        raise StateError(f"a packed state of version {state.version}; this version of pointsman reads {STATE_VERSION}")
    count = len(state.workers)
    ignored: list[str] = []
    try:
        table = _table(state.columns, count, ignored)
        times = _times(state.times, count, ignored)
        transfer = _rules(state.transfer)
        links = NO_LINKS if state.links is None else unpack_links(state.links)
    except ValueError as error:
        raise StateError(f"a damaged packed state: {error}") from None
    known = {field.name for field in dataclasses.fields(Outlook)}
    ignored += [name for name in state.outlook if name not in known]
    outlook = Outlook(**{name: value for name, value in state.outlook.items() if name in known})
    workers = tuple(WorkerId(worker) for worker in state.workers)
    return Recorded(
        request=_request(state.request),
        view=FleetView(workers, table, outlook, state.guards_lifted, transfer),
        times=times,
        now_ms=state.now_ms,
        seed=state.seed,
        policy=state.policy,
        worker=None if state.worker is None else WorkerId(state.worker),
        ignored=tuple(ignored),
        links=links,
        prefill_worker=None if state.prefill_worker is None else WorkerId(state.prefill_worker),
        pull_source=None if state.pull_source is None else WorkerId(state.pull_source),
    )


def _decoded(text: str) -> _State:
    if not text:
        raise StateError("no state of the fleet was recorded with this decision")
    try:
        inflate = zlib.decompressobj()
        raw = inflate.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
        if inflate.unconsumed_tail or not inflate.eof:
            raise StateError("a damaged packed state: it is cut off, or larger than any can be")
        return _DECODER.decode(raw)
    except (binascii.Error, ValueError, zlib.error, msgspec.MsgspecError) as error:
        raise StateError(f"a damaged packed state: {error}") from None


def _rules(told: tuple[str, int, bool] | None) -> TransferRules:
    return USUAL_RULES if told is None else TransferRules(TransferMode(told[0]), told[1], told[2])


def _asked(request: Request) -> _Asked:
    slo = request.slo
    return _Asked(
        id=request.id,
        model=request.model,
        arrival_ms=request.arrival_ms,
        prompt_tokens=request.prompt_tokens,
        sequences=request.sequences,
        streamed=request.streamed,
        route_key=request.route_key,
        tenant=request.tenant,
        api=request.api,
        max_output_tokens=request.max_output_tokens,
        slo=None if slo is None else (slo.ttft_ms, slo.tpot_ms, slo.name),
        pinned_worker=request.pinned_worker,
    )


def _request(asked: _Asked) -> Request:
    facts: dict[str, Any] = msgspec.structs.asdict(asked)
    facts["slo"] = None if asked.slo is None else Slo(*asked.slo)
    return Request(**facts)


def _packed_times(times: TimeRows) -> dict[str, bytes]:
    packed = {_KNOWN: np.asarray(times.known, dtype=np.uint8).tobytes()}
    for field in dataclasses.fields(TimeRows):
        if field.name != _KNOWN:
            packed[field.name] = np.asarray(getattr(times, field.name), dtype="<f8").tobytes()
    return packed


def _table(columns: dict[str, bytes], count: int, ignored: list[str]) -> NDArray[np.int64]:
    table = np.zeros((len(Column), count), dtype=np.int64)
    for column, usual in _USUAL_COLUMN.items():
        table[column] = usual
    for name, raw in columns.items():
        if name not in Column.__members__:
            ignored.append(name)
            continue
        table[Column[name]] = _array(name, raw, "<i8", count) if raw else 0
    return table


def _times(packed: dict[str, bytes], count: int, ignored: list[str]) -> TimeRows:
    names: Sequence[str] = [field.name for field in dataclasses.fields(TimeRows)]
    ignored += [name for name in packed if name not in names]
    arrays: dict[str, Any] = {
        name: _array(name, packed[name], "<f8", count).astype(np.float64)
        if name in packed
        else np.full(count, _USUAL_TIME.get(name, 0.0))
        for name in names
        if name != _KNOWN
    }
    known = packed.get(_KNOWN)
    arrays[_KNOWN] = np.zeros(count, dtype=np.bool_) if known is None else _array(_KNOWN, known, "u1", count) != 0
    return TimeRows(**arrays)


def _array(name: str, raw: bytes, dtype: str, count: int) -> NDArray[Any]:
    found = np.frombuffer(raw, dtype=dtype)
    if len(found) != count:
        raise ValueError(f"{name}: {len(found)} values for {count} workers")
    return found
