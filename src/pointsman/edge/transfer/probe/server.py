"""ProbeServer: the side of probes that is measured. One probe at a time, for whoever has the ticket."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pointsman.core.model.errors import EngineError
from pointsman.edge.transfer.acceptor import Acceptor
from pointsman.edge.transfer.errors import TransferError
from pointsman.edge.transfer.framing import FramingError, Wire
from pointsman.edge.transfer.negotiation import NIXL, SHM, TCP, best_common
from pointsman.edge.transfer.probe.interface import interface_of
from pointsman.edge.transfer.probe.memory import ProbeMemory, Reader
from pointsman.edge.transfer.probe.messages import MOST_PROBE_BYTES, PROTOCOL, Ask, Reply

CHUNK_BYTES = 1 << 20
_MOST_CONNECTIONS = 8

_log = logging.getLogger("pointsman.node")


class BusyError(EngineError):
    """Another probe is under way."""


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """What one probe may take."""

    ticket_s: float = 10.0
    """From the ticket to the connection that shows it."""
    longest_s: float = 300.0
    idle_s: float = 30.0
    most_bytes: int = 32 << 30


class Slot:
    """One probe at a time, of which this machine may be either side."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._until_s = float("-inf")
        self._turn = 0

    @property
    def taken(self) -> bool:
        """Another one can't begin now."""
        return self._clock_s() < self._until_s

    def take(self, limit_s: float) -> int:
        """For so long at most; the number of the turn. Raises BusyError."""
        if self.taken:
            raise BusyError("another probe is under way on this machine; ask again when it has ended")
        self._until_s = self._clock_s() + limit_s
        self._turn += 1
        return self._turn

    def extend(self, turn: int, limit_s: float) -> bool:
        """That turn needs so long from now on; False: it is over."""
        if turn != self._turn or not self.taken:
            return False
        self._until_s = self._clock_s() + limit_s
        return True

    def leave(self, turn: int) -> None:
        """That turn has ended; if its time was over and another one has begun, that one goes on."""
        if turn == self._turn:
            self._until_s = float("-inf")


class ProbeServer:
    """`await start()`, then `port`; `await close()`."""

    def __init__(
        self, slot: Slot, transports: Sequence[str] = (SHM, TCP), *, host: str = "", limits: ProbeLimits | None = None
    ) -> None:
        """`host`: which host this is, for probes that may go through its memory."""
        self._slot = slot
        self._transports = tuple(transports)
        self._host = host
        self._limits = limits or ProbeLimits()
        self._ticket: tuple[str, int] | None = None
        """The last one that nobody has shown yet, and its turn."""
        self._acceptor = Acceptor(self._serve, "probe", _MOST_CONNECTIONS)
        self._bytes = memoryview(secrets.token_bytes(CHUNK_BYTES))
        """What is sent: nothing on the way can make it smaller."""
        self.port = 0
        self.strangers = 0
        """Connections without a right ticket."""
        self.served = 0
        """Probes that were answered."""

    def ticket(self) -> str:
        """For one probe, which must begin soon. Raises BusyError."""
        turn = self._slot.take(self._limits.ticket_s)
        ticket = secrets.token_hex(16)
        self._ticket = (ticket, turn)
        return ticket

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError."""
        await self._acceptor.start(host, port)
        self.port = self._acceptor.port

    async def close(self) -> None:
        """Stop listening, and cut what is under way."""
        await self._acceptor.close()

    async def _serve(self, peer: socket.socket) -> None:
        with contextlib.closing(Wire(peer)) as wire:
            address = wire.local_address
            try:
                async with asyncio.timeout(self._limits.ticket_s):
                    ask = await wire.receive_message(Ask)
            except (FramingError, TimeoutError, EOFError, OSError):
                self.strangers += 1
                return
            turn = self._turn_of(ask)
            if turn is None or not self._slot.extend(turn, self._limits.longest_s):
                self.strangers += 1
                return
            conversation = _Conversation(wire, self._bytes, self._transports, self._host, address, self._limits)
            try:
                async with asyncio.timeout(self._limits.longest_s):
                    await conversation.hold(ask)
            except (FramingError, TimeoutError, EOFError, OSError):
                pass
            except Exception:
                _log.exception("a probe broke off here")
            finally:
                self.served += 1
                self._slot.leave(turn)
                await conversation.close()

    def _turn_of(self, ask: Ask) -> int | None:
        """Of the ticket that it shows, which is good once."""
        if ask.do != "open" or self._ticket is None:
            return None
        ticket, turn = self._ticket
        if not hmac.compare_digest(ask.ticket.encode(), ticket.encode()):
            return None
        self._ticket = None
        return turn


class _Conversation:
    """With one asker that has shown its ticket."""

    def __init__(
        self,
        wire: Wire,
        data: memoryview,
        transports: tuple[str, ...],
        host: str,
        address: str,
        limits: ProbeLimits,
    ) -> None:
        self._wire = wire
        self._data = data
        self._into = memoryview(bytearray(CHUNK_BYTES))
        self._transports = transports
        self._host = host
        self._address = address
        self._limits = limits
        self._left_bytes = limits.most_bytes
        self._memory: ProbeMemory | None = None
        self._reader: Reader | None = None

    async def hold(self, ask: Ask) -> None:
        """Until the asker hangs up."""
        while True:
            reply = await self._answer(ask)
            async with asyncio.timeout(self._limits.idle_s):
                await self._wire.send_message(reply)
                if ask.do == "give" and self._memory is None and not reply.error:
                    await self.send(ask.size_bytes)
                ask = await self._wire.receive_message(Ask)

    async def close(self) -> None:
        """Let go of memory."""
        if self._memory is not None:
            memory, self._memory = self._memory, None
            await memory.close()

    async def send(self, size_bytes: int) -> None:
        """So many bytes."""
        for start in range(0, size_bytes, CHUNK_BYTES):
            await self._wire.send(self._data[: min(CHUNK_BYTES, size_bytes - start)])

    async def _answer(self, ask: Ask) -> Reply:
        match ask.do:
            case "open":
                return await self._open(ask)
            case "mine":
                return self._other(ask)
            case "ping":
                return Reply()
            case _:
                return await self._move(ask)

    async def _open(self, ask: Ask) -> Reply:
        await self.close()
        if ask.protocol != PROTOCOL:
            return Reply(error=f"probes of protocol {ask.protocol} are not known here, {PROTOCOL} is: update one side")
        same_host = bool(ask.host) and ask.host == self._host
        mine = [name for name in self._transports if name != SHM or same_host]
        transport = best_common(ask.transports, mine)
        if transport is None:
            return Reply(error=f"no common transport: {', '.join(ask.transports)} asked for, {', '.join(mine)} here")
        reply = Reply(transport=transport, interface=interface_of(self._address))
        if transport in (SHM, NIXL):
            try:
                self._memory = ProbeMemory(transport)
            except TransferError as error:
                return Reply(error=str(error), transport=transport)
            return Reply("", transport, reply.interface, self._memory.share, self._memory.nixl)
        return reply

    def _other(self, ask: Ask) -> Reply:
        if self._memory is None or (ask.share is None and ask.nixl is None):
            return Reply(error="nothing was opened that could be read")
        try:
            self._reader = self._memory.reader(ask.share, ask.nixl)
        except TransferError as error:
            return Reply(error=str(error))
        return Reply()

    async def _move(self, ask: Ask) -> Reply:
        if not 0 < ask.size_bytes <= min(MOST_PROBE_BYTES, self._left_bytes):
            if ask.do == "take" and self._memory is None:
                raise FramingError("what follows is too much to be read")
            return Reply(error=f"{ask.size_bytes} bytes are too many: this probe may move {self._left_bytes} more")
        self._left_bytes -= ask.size_bytes
        if self._memory is None:
            if ask.do == "take":
                async with asyncio.timeout(self._limits.idle_s):
                    await receive(self._wire, self._into, ask.size_bytes)
            return Reply()
        if ask.do == "take":
            if self._reader is None:
                return Reply(error="the asker's memory was not opened")
            try:
                await self._reader.read(ask.size_bytes)
            except TransferError as error:
                return Reply(error=str(error))
        return Reply()


async def receive(wire: Wire, into: memoryview, size_bytes: int) -> None:
    """So many bytes, which nobody keeps."""
    for start in range(0, size_bytes, len(into)):
        await wire.receive_into(into[: min(len(into), size_bytes - start)])
