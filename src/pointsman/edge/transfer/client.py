"""TransferClient: reads blocks of other engines, each checked before it is handed on.

A block is right when its checksum is, and its chained hash is that of the tokens it is wanted for. So a lease that
ended, memory that was written to meanwhile, or a source that mixes something up can cost time, and never put another
prompt's KV into an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
import xxhash

from pointsman.edge.transfer.blocks import BlockName, Peer, Put, TransferReport
from pointsman.edge.transfer.codecs import NONE, codec, most_bytes
from pointsman.edge.transfer.errors import Failure, TransferError
from pointsman.edge.transfer.framing import FramingError, Wire
from pointsman.edge.transfer.layout import BlockLayout
from pointsman.edge.transfer.memory import Neighbour
from pointsman.edge.transfer.messages import FRAME_BYTES, Answer, Ask, Frame
from pointsman.edge.transfer.negotiation import NIXL, SHM, TCP
from pointsman.edge.transfer.nixl_agent import NixlAgent

_log = logging.getLogger("pointsman.transfer")
_TURN_BYTES = 4 << 20
_MOST_SAID = 1000
_NIXL_AGAIN_S = 60.0
"""After it failed: each try may take as long as its time-out."""


class _Read:
    """One transfer on its way."""

    def __init__(self, peer: Peer, wanted: Sequence[BlockName], put: Put, transports: Sequence[str]) -> None:
        self.peer = peer
        self.wanted = wanted
        self.put = put
        self.transports = tuple(transports)
        self.missing = dict.fromkeys(range(len(wanted)))
        """Places of blocks that have not come, in order."""
        self.wire_bytes = 0
        self.resumed = 0
        self.repeated = 0
        self.first_s: float | None = None
        self.transport = ""
        self.codec = NONE

    @property
    def asked(self) -> tuple[int, ...]:
        return tuple(self.wanted[place].number for place in self.missing)


class TransferClient:
    """One an engine. A `Transfer`."""

    def __init__(
        self,
        name: str,
        layout: BlockLayout,
        transports: Sequence[str],
        *,
        codec_for: Callable[[Peer, int], str] = lambda peer, size: NONE,
        nixl: NixlAgent | None = None,
        most_at_once: int = 8,
        connect_s: float = 5.0,
        idle_s: float = 10.0,
        most_resumed: int = 2,
        most_repeated: int = 2,
        pause_s: float = 0.05,
    ) -> None:
        """`codec_for`: which codec a transfer of so many bytes shall use over TCP. `idle_s`: how long nothing may come.

        `most_at_once`: transfers from one engine; further ones wait, and those from others don't, since an engine that
        stands still keeps its own for as long as nothing may come. `most_resumed`: new connections for one transfer;
        `most_repeated`: how often blocks with a wrong checksum are asked for again; `pause_s`: before the first new
        connection, twice as long before each further one.
        """
        self.name = name
        self._layout = layout
        self._transports = tuple(transports)
        self._codec_for = codec_for
        self._nixl = nixl
        self._nixl_free = asyncio.Lock()
        self._said: set[tuple[str, str]] = set()
        self._without_nixl: dict[str, float] = {}
        """Engines to which it did not work, and until when they are read another way, on the event loop's clock."""
        self._most_at_once = most_at_once
        self._places: dict[str, asyncio.Semaphore] = {}
        """Of engines from which something is read just now."""
        self._readers: Counter[str] = Counter()
        """Transfers from each of these, with those that wait."""
        self._connect_s = connect_s
        self._idle_s = idle_s
        self._most_resumed = most_resumed
        self._most_repeated = most_repeated
        self._pause_s = pause_s
        self._most_block_bytes = most_bytes(layout)

    async def read(self, peer: Peer, wanted: Sequence[BlockName], put: Put) -> TransferReport:
        """See `Transfer`."""
        if not self._transports:
            raise TransferError(Failure.LOCAL, "no transport is allowed here")
        async with self._place(peer.name):
            began_s = time.perf_counter()
            read = _Read(peer, wanted, put, self._ways_to(peer))
            while read.missing:
                await self._attempt(read)
            ended_s = time.perf_counter()
        return TransferReport(
            source=peer.name,
            target=self.name,
            blocks=len(wanted),
            bytes=len(wanted) * self._layout.block_bytes,
            wire_bytes=read.wire_bytes,
            ms=(ended_s - began_s) * 1000,
            first_byte_ms=((read.first_s or ended_s) - began_s) * 1000,
            transport=read.transport,
            codec=read.codec,
            resumed=read.resumed,
            repeated=read.repeated,
        )

    @contextlib.asynccontextmanager
    async def _place(self, source: str) -> AsyncIterator[None]:
        self._readers[source] += 1
        try:
            async with self._places.setdefault(source, asyncio.Semaphore(self._most_at_once)):
                yield
        finally:
            self._readers[source] -= 1
            if not self._readers[source]:
                del self._readers[source], self._places[source]

    def _ways_to(self, peer: Peer) -> tuple[str, ...]:
        now_s, failed = asyncio.get_running_loop().time(), self._without_nixl
        for name in [name for name, until_s in failed.items() if until_s <= now_s]:
            del failed[name]
        others = tuple(way for way in self._transports if way != NIXL)
        return others if others and peer.name in failed else self._transports

    async def renew(self, peer: Peer) -> bool:
        """See `Transfer`."""
        return await self._tell(peer, Ask(peer.token, "renew"))

    async def release(self, peer: Peer) -> bool:
        """See `Transfer`."""
        return await self._tell(peer, Ask(peer.token, "release"))

    async def _tell(self, peer: Peer, ask: Ask) -> bool:
        try:
            async with asyncio.timeout(self._connect_s):
                with contextlib.closing(await Wire.connect(peer.host, peer.port)) as wire:
                    await wire.send_message(ask)
                    return not (await wire.receive_message(Answer)).error
        except (OSError, EOFError, FramingError, TimeoutError):
            return False

    async def _attempt(self, read: _Read) -> None:
        """Over one connection; returns when all has come or it is worth another one."""
        try:
            wire = await self._connected(read.peer)
        except (OSError, TimeoutError) as error:
            await self._again(
                read, Failure.UNREACHABLE, f"no connection to {read.peer.name}: {str(error) or 'timed out'}"
            )
            return
        with contextlib.closing(wire):
            try:
                for _ in range(1 + self._most_repeated):
                    await self._ask(read, wire)
                    if not read.missing:
                        return
                    read.repeated += len(read.missing)
                raise TransferError(
                    Failure.CORRUPT,
                    f"{len(read.missing)} blocks of {read.peer.name} came {1 + self._most_repeated} times with a wrong "
                    "checksum",
                )
            except TransferError as error:
                if error.failure is not Failure.LOCAL:
                    raise
                self._without(read, error)
            except TimeoutError:
                message = f"{read.peer.name} sent nothing for {self._idle_s:g} s"
                await self._again(read, Failure.TIMED_OUT, message)
            except FramingError as error:
                raise TransferError(Failure.CORRUPT, f"{read.peer.name}: {error}") from None
            except (OSError, EOFError) as error:
                await self._again(read, Failure.BROKEN, f"the connection to {read.peer.name} broke off: {error}")

    async def _connected(self, peer: Peer) -> Wire:
        async with asyncio.timeout(self._connect_s):
            return await Wire.connect(peer.host, peer.port)

    async def _again(self, read: _Read, failure: Failure, message: str) -> None:
        if read.resumed >= self._most_resumed:
            raise TransferError(failure, f"{message}; {read.resumed} further tries ended alike")
        await asyncio.sleep(self._pause_s * 2**read.resumed)
        read.resumed += 1

    def _without(self, read: _Read, error: TransferError) -> None:
        """A transport that was chosen does not work after all: the next best one."""
        if len(read.transports) < 2:
            raise error
        self._say(read.peer, f"goes another way than {read.transport}: {error}")
        read.transports = tuple(name for name in read.transports if name != read.transport)

    def _say(self, peer: Peer, what: str) -> None:
        """Once of each peer."""
        if (peer.name, what) not in self._said and len(self._said) < _MOST_SAID:
            self._said.add((peer.name, what))
            _log.warning("KV from %s %s", peer.name, what)

    async def _ask(self, read: _Read, wire: Wire) -> None:
        size = len(read.missing) * self._layout.block_bytes
        asked = read.asked
        ask = Ask(
            read.peer.token,
            "read",
            layout=self._layout,
            blocks=asked,
            transports=read.transports,
            codec=self._codec_for(read.peer, size),
        )
        async with asyncio.timeout(self._idle_s):
            await wire.send_message(ask)
            answer = await wire.receive_message(Answer)
        if answer.error:
            raise TransferError(Failure.REFUSED, f"{read.peer.name} refuses: {answer.error}")
        if read.first_s is None:
            read.first_s = time.perf_counter()
        read.transport, read.codec = answer.transport, answer.codec
        if answer.transport == TCP and answer.codec != ask.codec:
            self._say(read.peer, f"comes with codec {answer.codec}: {ask.codec} is not known there")
        places = list(read.missing)
        if answer.transport == TCP:
            await self._over_tcp(read, places, wire)
        elif answer.transport == SHM and answer.share is not None:
            with Neighbour(answer.share, self._layout) as neighbour:
                await self._over_memory(read, places, wire, neighbour)
        elif answer.transport == NIXL and answer.nixl is not None and self._nixl is not None:
            await self._over_nixl(read, places, wire, answer)
        else:
            raise TransferError(Failure.REFUSED, f"{read.peer.name} answers with transport {answer.transport!r}")

    async def _over_tcp(self, read: _Read, places: Sequence[int], wire: Wire) -> None:
        coding = codec(read.codec)
        staging = memoryview(bytearray(self._most_block_bytes))
        async with wire.moving(self._idle_s):
            for place in places:
                frame = await self._frame(read, place, wire)
                if frame.wire_bytes > self._most_block_bytes or frame.codec != coding.number:
                    raise FramingError("a block's frame says what can't be")
                data = staging[: frame.wire_bytes]
                await wire.receive_into(data)
                read.wire_bytes += len(data)
                if xxhash.xxh3_64_intdigest(data) == frame.checksum:
                    if coding.name == NONE:
                        contents = coding.decoded(data, self._layout)
                    else:
                        contents = await asyncio.to_thread(coding.decoded, data, self._layout)
                    self._hand_on(read, place, contents)

    async def _over_memory(self, read: _Read, places: Sequence[int], wire: Wire, neighbour: Neighbour) -> None:
        staging = memoryview(bytearray(self._layout.block_bytes))
        copied = 0
        async with wire.moving(self._idle_s) as moved:
            for place in places:
                frame = await self._frame(read, place, wire)
                neighbour.copy_block(frame.number, staging)
                self._check(read, place, frame, staging)
                copied += len(staging)
                if copied > _TURN_BYTES:
                    copied = 0
                    await asyncio.sleep(0)
                moved()

    async def _over_nixl(self, read: _Read, places: Sequence[int], wire: Wire, answer: Answer) -> None:
        agent, offer = self._nixl, answer.nixl
        assert agent is not None
        assert offer is not None
        loop = asyncio.get_running_loop()
        for first in range(0, len(places), agent.blocks_a_read):
            some = places[first : first + agent.blocks_a_read]
            async with asyncio.timeout(self._idle_s):
                frames = [await self._frame(read, place, wire) for place in some]
            numbers = [frame.number for frame in frames]
            async with self._nixl_free:
                reading = loop.run_in_executor(agent.thread, agent.read, offer, numbers, self._idle_s)
                try:
                    await asyncio.shield(reading)
                except TransferError as error:
                    self._without_nixl[read.peer.name] = loop.time() + _NIXL_AGAIN_S
                    if len(read.transports) < 2:
                        raise
                    raise TransferError(Failure.LOCAL, str(error)) from None
                except asyncio.CancelledError:
                    # The staging area must not be used again before that has ended.
                    await asyncio.wait([reading])
                    raise
                for at, (place, frame) in enumerate(zip(some, frames, strict=True)):
                    self._check(read, place, frame, agent.staged(at))

    async def _frame(self, read: _Read, place: int, wire: Wire) -> Frame:
        head = bytearray(FRAME_BYTES)
        await wire.receive_into(memoryview(head))
        frame = Frame.unpack(bytes(head))
        name = read.wanted[place]
        if frame.number != name.number:
            raise FramingError("blocks come in another order than asked for")
        if frame.hash != name.hash or frame.tokens < name.tokens:
            raise TransferError(
                Failure.CORRUPT, f"block {frame.number} of {read.peer.name} holds other tokens than those asked for"
            )
        return frame

    def _check(self, read: _Read, place: int, frame: Frame, data: memoryview) -> None:
        read.wire_bytes += len(data)
        if xxhash.xxh3_64_intdigest(data) == frame.checksum:
            contents: np.ndarray[Any, Any] = np.frombuffer(data, self._layout.dtype).reshape(self._layout.shape)
            self._hand_on(read, place, contents)

    def _hand_on(self, read: _Read, place: int, contents: np.ndarray[Any, Any]) -> None:
        read.put(place, contents)
        del read.missing[place]
