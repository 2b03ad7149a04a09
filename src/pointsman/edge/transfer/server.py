"""TransferServer: gives an engine's blocks to whoever was granted them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Sequence

import xxhash

from pointsman.edge.transfer.acceptor import Acceptor
from pointsman.edge.transfer.blocks import Grant, KvSource
from pointsman.edge.transfer.codecs import NONE, Codec, codec, codec_names
from pointsman.edge.transfer.framing import FramingError, Wire
from pointsman.edge.transfer.memory import BlockMemory
from pointsman.edge.transfer.messages import PROTOCOL, Answer, Ask, Frame, NixlOffer
from pointsman.edge.transfer.negotiation import NIXL, SHM, TCP, best_common

_log = logging.getLogger("pointsman.transfer")
_BATCH_BYTES = 256 << 10
"""Blocks up to that size together are written with one call."""


class TransferServer:
    """One an engine. `await start()`, then `port`; `await close()`. Runs on the event loop that started it."""

    def __init__(
        self,
        memory: BlockMemory,
        source: KvSource,
        transports: Sequence[str],
        *,
        nixl: NixlOffer | None = None,
        most_connections: int = 64,
        first_word_s: float = 5.0,
        idle_s: float = 30.0,
    ) -> None:
        """`most_connections`: further ones wait. `first_word_s`: how long a stranger may say nothing.

        `idle_s`: how long a peer may say nothing, or read nothing.
        """
        self._memory = memory
        self._source = source
        self._transports = tuple(transports)
        self._nixl = nixl
        self._acceptor = Acceptor(self._serve, "KV transfer", most_connections)
        self._first_word_s = first_word_s
        self._idle_s = idle_s
        self.host = ""
        self.port = 0
        self.strangers = 0
        """Connections closed because what they said was no request with a right token."""
        self.sent_bytes = 0
        """Of blocks, over connections."""

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError when the address can't be had."""
        await self._acceptor.start(host, port)
        self.host, self.port = host, self._acceptor.port

    async def close(self) -> None:
        """Stop listening and cut what is being read. May be called twice."""
        await self._acceptor.close()

    @property
    def connections(self) -> int:
        """That are open."""
        return self._acceptor.connections

    async def _serve(self, peer: socket.socket) -> None:
        with contextlib.closing(Wire(peer)) as wire:
            known = False
            try:
                while True:
                    async with asyncio.timeout(self._idle_s if known else self._first_word_s):
                        ask = await wire.receive_message(Ask)
                    grant = self._source.grant(ask.token)
                    if grant is None:
                        self.strangers += not known
                        return
                    known = True
                    await self._do(ask, grant, wire)
            except (FramingError, TimeoutError):
                self.strangers += not known
            except (EOFError, OSError):
                pass
            except Exception:
                _log.exception("a KV transfer broke off here")

    async def _do(self, ask: Ask, grant: Grant, wire: Wire) -> None:
        if ask.protocol != PROTOCOL:
            await self._timed(wire.send_message(Answer(error=f"protocol {ask.protocol} is not known: {PROTOCOL} is")))
        elif ask.do == "release":
            grant.release()
            await self._timed(wire.send_message(Answer()))
        else:
            grant.extend()
            if ask.do == "read":
                await self._read(ask, grant, wire)
            else:
                await self._timed(wire.send_message(Answer()))

    async def _read(self, ask: Ask, grant: Grant, wire: Wire) -> None:
        transport = best_common(ask.transports, self._available())
        error = self._refusal(ask, grant, transport)
        # One that only the other side knows is no reason to move nothing: the answer says which it is.
        coding = codec(ask.codec if transport == TCP and ask.codec in codec_names() else NONE)
        if error is not None or transport is None:
            await self._timed(wire.send_message(Answer(error=error or "")))
            return
        answer = Answer(
            transport=transport,
            codec=coding.name,
            share=self._memory.offer if transport == SHM else None,
            nixl=self._nixl if transport == NIXL else None,
        )
        await self._timed(wire.send_message(answer))
        per_call = max(1, _BATCH_BYTES // self._memory.layout.block_bytes)
        for first in range(0, len(ask.blocks), per_call):
            if not grant.alive:
                return
            grant.extend()
            parts = await self._parts(ask.blocks[first : first + per_call], grant, transport, coding)
            async with wire.moving(self._idle_s, grant.extend):
                await wire.send(*parts)
            if not grant.alive:
                # What was sent last may not be what it was said to be; the reader's checksum says so.
                raise EOFError("the lease ended")

    def _encoded(self, numbers: Sequence[int], coding: Codec) -> list[memoryview]:
        return [memoryview(coding.encode(self._memory.array[number])) for number in numbers]

    async def _timed(self, sending: Awaitable[None]) -> None:
        async with asyncio.timeout(self._idle_s):
            await sending

    def _available(self) -> tuple[str, ...]:
        works: dict[str, bool] = {NIXL: self._nixl is not None, SHM: self._memory.offer is not None}
        return tuple(name for name in self._transports if works.get(name, True))

    def _refusal(self, ask: Ask, grant: Grant, transport: str | None) -> str | None:
        if ask.layout is None:
            return "layout is missing"
        mismatch = self._memory.layout.mismatch(ask.layout)
        if mismatch is not None:
            return f"the source's blocks are others: {mismatch}"
        foreign = [number for number in ask.blocks if number not in grant.blocks]
        if foreign:
            return f"block {foreign[0]} was not granted"
        if transport is None:
            return f"no common transport: {', '.join(ask.transports)} asked for, {', '.join(self._available())} here"
        return None

    async def _parts(
        self, numbers: Sequence[int], grant: Grant, transport: str, coding: Codec
    ) -> list[bytes | memoryview]:
        memory, parts = self._memory, list[bytes | memoryview]()
        plain = [memory.bytes_of(number) for number in numbers]
        over_wire = transport == TCP
        if over_wire and coding.name != NONE:
            plain = await asyncio.to_thread(self._encoded, numbers, coding)
            if not grant.alive:
                raise EOFError("the lease ended, and blocks may have changed while they were encoded")
        for number, data in zip(numbers, plain, strict=True):
            name = grant.blocks[number]
            size = len(data) if over_wire else 0
            parts.append(
                Frame(number, name.tokens, size, coding.number, name.hash, xxhash.xxh3_64_intdigest(data)).pack()
            )
            if over_wire:
                parts.append(data)
                self.sent_bytes += size
        return parts
