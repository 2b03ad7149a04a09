"""EtcdClient: keys, leases, transactions and watches of an etcd from version 3.4 on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from pointsman.edge.cluster.etcd.access import EtcdAccess
from pointsman.edge.cluster.etcd.errors import (
    CompactedError,
    EtcdRefusedError,
    EtcdUnreachableError,
    LeaseLostError,
)
from pointsman.edge.cluster.etcd.gateway import Gateway
from pointsman.edge.cluster.etcd.messages import (
    Event,
    KeepAliveAnswer,
    KeyValue,
    LeaseAnswer,
    Parts,
    RangeAnswer,
    TransactionAnswer,
    WatchAnswer,
    WatchLine,
    WriteAnswer,
    decode,
    selection,
)


@dataclass(frozen=True, slots=True)
class Listing:
    """What was read at one moment."""

    revision: int
    cluster_id: int
    """Another one: this etcd was made anew, and revisions begin again."""
    entries: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True)
class Lease:
    """A promise to be heard of again; keys that hang on it go when it is over."""

    id: int
    ttl_s: int
    """As etcd gave it, which may be longer than asked for."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a transaction."""

    succeeded: bool
    """The conditions held."""
    revision: int
    read: tuple[KeyValue, ...]
    """What its reading operations found."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a watch tells at once; no events: it only says how far it is."""

    revision: int
    """Up to which all changes were told."""
    events: tuple[Event, ...]


class EtcdClient:
    """One etcd cluster. Connections are opened as they are needed; use it on one event loop and close it.

    Every call raises EtcdUnreachableError when no endpoint answers or can decide, and EtcdRefusedError when it says no.
    """

    def __init__(self, access: EtcdAccess) -> None:
        self._gateway = Gateway(access)

    async def close(self) -> None:
        """Closes all connections."""
        await self._gateway.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # ---- keys

    async def read(self, key: bytes, *, prefix: bool = False) -> Listing:
        """A key, or all that begin so, as the majority of etcd's members has them."""
        answer = await self._gateway.call("/v3/kv/range", selection(key, prefix=prefix), RangeAnswer)
        return Listing(answer.header.revision, answer.header.cluster_id, answer.kvs)

    async def put(self, key: bytes, value: bytes, lease: int = 0) -> int:
        """Writes a key; the revision. Raises LeaseLostError when the lease that it should hang on is over."""
        body: dict[str, object] = {"key": key, "value": value, "lease": lease}
        try:
            return (await self._gateway.call("/v3/kv/put", body, WriteAnswer)).header.revision
        except EtcdRefusedError as error:
            raise _lease_lost(error) from None

    async def delete(self, key: bytes, *, prefix: bool = False) -> int:
        """Deletes a key, or all that begin so; how many there were."""
        answer = await self._gateway.call("/v3/kv/deleterange", selection(key, prefix=prefix), WriteAnswer)
        return answer.deleted

    async def transact(self, conditions: Parts, then: Parts, otherwise: Parts = ()) -> Outcome:
        """If all conditions hold, `then`, else `otherwise`, in one step (parts: see `messages`).

        When the answer is lost it raises EtcdUnreachableError although the step may have been made: ask before trying
        again. Raises LeaseLostError likewise to `put`.
        """
        body: dict[str, object] = {"compare": conditions, "success": then, "failure": otherwise}
        try:
            answer = await self._gateway.call("/v3/kv/txn", body, TransactionAnswer, twice=False)
        except EtcdRefusedError as error:
            raise _lease_lost(error) from None
        ranges = [part.response_range for part in answer.responses if part.response_range is not None]
        return Outcome(answer.succeeded, answer.header.revision, tuple(kv for found in ranges for kv in found.kvs))

    # ---- leases

    async def grant(self, ttl_s: int) -> Lease:
        """A new lease."""
        answer = await self._gateway.call("/v3/lease/grant", {"TTL": ttl_s}, LeaseAnswer)
        if answer.error or not answer.id:
            raise EtcdRefusedError(f"etcd gave no lease of {ttl_s} s: {answer.error or 'it named none'}")
        return Lease(answer.id, answer.ttl_s)

    async def keep_alive(self, lease: int) -> int:
        """Begins its time anew; how long it lasts now, in s. Raises LeaseLostError when it is over already."""
        answer = (await self._gateway.call("/v3/lease/keepalive", {"ID": lease}, KeepAliveAnswer)).result
        if answer.ttl_s <= 0:
            raise LeaseLostError("the lease in etcd is over")
        return answer.ttl_s

    async def revoke(self, lease: int) -> None:
        """Ends a lease, with all keys that hang on it. One that is over is no error."""
        try:
            await self._gateway.call("/v3/lease/revoke", {"ID": lease}, WriteAnswer)
        except EtcdRefusedError as error:
            if not isinstance(_lease_lost(error), LeaseLostError):
                raise

    # ---- watches

    async def watch(self, key: bytes, from_revision: int, *, prefix: bool = False) -> AsyncIterator[Changes]:
        """Every change of a key, or of all that begin so, from a revision on; for ever, or until it raises.

        First comes an item without events: from then on it watches. Raises CompactedError when changes from that
        revision on are not kept any more (list anew, then watch from there), EtcdUnreachableError when it breaks off
        (watch again from the last revision seen + 1). A connection that died in silence says nothing: read again from
        time to time.
        """
        request = {**selection(key, prefix=prefix), "start_revision": from_revision, "progress_notify": True}
        async with self._gateway.stream("/v3/watch", {"create_request": request}) as stream:
            async for line in _lines(stream):
                said = _watched(line)
                if said.compact_revision:
                    raise CompactedError(
                        f"etcd does not keep what happened from revision {from_revision} on any more",
                        said.compact_revision,
                    )
                if said.canceled:
                    raise EtcdUnreachableError(f"etcd ended the watch: {said.cancel_reason or 'it did not say why'}")
                yield Changes(_known_to(said, from_revision), said.events)
        raise EtcdUnreachableError("etcd ended the watch")


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """A line may be as long as etcd's largest change; aiohttp's own lines may not."""
    rest = bytearray()
    async for chunk in stream.iter_any():
        rest += chunk
        *lines, last = rest.split(b"\n")
        rest = last
        for line in lines:
            if line.strip():
                yield bytes(line)
    if rest.strip():
        yield bytes(rest)


def _watched(line: bytes) -> WatchLine:
    try:
        answer = decode(line, WatchAnswer)
    except msgspec.MsgspecError as error:
        raise EtcdUnreachableError(f"etcd's watch said what can't be read: {error}") from None
    if answer.result is None:
        message = "nothing" if answer.error is None else answer.error.message
        raise EtcdUnreachableError(f"etcd ended the watch: {message}")
    return answer.result


def _known_to(said: WatchLine, from_revision: int) -> int:
    """Its header says how far etcd is, which may be farther than what was told."""
    if said.events:
        return max(event.kv.mod_revision for event in said.events)
    return from_revision - 1 if said.created else said.header.revision


def _lease_lost(error: EtcdRefusedError) -> EtcdRefusedError | LeaseLostError:
    if "lease not found" in str(error):
        return LeaseLostError(str(error))
    return error
