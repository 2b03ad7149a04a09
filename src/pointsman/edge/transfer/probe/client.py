"""measure: the side of probes that asks, and times what it asks for."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median

from pointsman.core.model.errors import EngineError
from pointsman.edge.transfer.errors import Failure, TransferError
from pointsman.edge.transfer.framing import FramingError, Wire
from pointsman.edge.transfer.negotiation import NIXL, SHM, TCP
from pointsman.edge.transfer.probe.interface import interface_of
from pointsman.edge.transfer.probe.memory import ProbeMemory, Reader, blocks_of
from pointsman.edge.transfer.probe.messages import UNIT_BYTES, Ask, LinkProbe, Reply, Sample
from pointsman.edge.transfer.probe.server import CHUNK_BYTES, receive

USUAL_SIZES_BYTES = (64 << 10, 1 << 20, 16 << 20, 256 << 20)
_CONNECT_S = 5.0
_ANSWER_S = 30.0
_PINGS, _PING_S = 100, 1.0
_REPEATS = 9
"""Of one size, as long as its time lasts."""

Clock = Callable[[], float]


class ProbeError(EngineError):
    """Nothing could be measured."""


async def measure(
    host: str,
    port: int,
    ticket: str,
    *,
    sizes_bytes: Sequence[int] = USUAL_SIZES_BYTES,
    transports: Sequence[str] = (TCP,),
    own_host: str = "",
    size_s: float = 1.0,
    clock_s: Clock = time.perf_counter,
) -> LinkProbe:
    """Probe the way to a ProbeServer, in both directions. Raises ProbeError when nothing could be measured.

    Each size gets about `size_s` in each direction; what would take twice as long is cut to what fits into it. What
    breaks off in the middle gives what was measured until then, and says so.
    """
    try:
        async with asyncio.timeout(_CONNECT_S):
            connected = await Wire.connect(host, port)
    except TimeoutError:
        raise ProbeError(
            f"no connection to {host}:{port} within {_CONNECT_S:g} s, though its node answers: is that port (its "
            "--probe-port) let through between the machines?"
        ) from None
    except OSError as error:
        raise ProbeError(f"no connection to {host}:{port}: {error.strerror or error}") from None
    async with contextlib.AsyncExitStack() as stack:
        wire = stack.enter_context(contextlib.closing(connected))
        interface = interface_of(wire.local_address)
        probe = _Probe(wire, clock_s)
        stack.push_async_callback(probe.close)
        try:
            peer = await probe.open(ticket, tuple(transports), own_host)
            round_trip_ms = await probe.round_trip_ms()
        except (TransferError, EOFError, OSError, FramingError, TimeoutError) as error:
            raise ProbeError(_reason(error, host, port)) from None
        broke = ""
        forth: list[Sample] = []
        back: list[Sample] = []
        try:
            await probe.warm_up(min(sizes_bytes), size_s)
            await probe.series(probe.send, sizes_bytes, size_s, "forth", forth)
            await probe.series(probe.fetch, sizes_bytes, size_s, "back", back)
        except (TransferError, EOFError, OSError, FramingError, TimeoutError) as error:
            broke = _reason(error, host, port)
    return LinkProbe(
        probe.transport,
        round_trip_ms,
        tuple(forth),
        tuple(back),
        interface,
        peer.interface,
        tuple(probe.notes),
        broke,
    )


class _Probe:
    def __init__(self, wire: Wire, clock_s: Clock) -> None:
        self._wire = wire
        self._clock_s = clock_s
        self._data = memoryview(secrets.token_bytes(CHUNK_BYTES))
        self._into = memoryview(bytearray(CHUNK_BYTES))
        self._memory: ProbeMemory | None = None
        self._reader: Reader | None = None
        self._fits: dict[str, int] = {}
        """Bytes that fit into the time of one size, by way, as far as it was warmed up."""
        self.transport = ""
        self.notes: list[str] = []

    async def open(self, ticket: str, transports: tuple[str, ...], own_host: str) -> Reply:
        """Agree on a transport; one that does not work after all is left out, with a note."""
        while True:
            ask = Ask("open", ticket, host=own_host, transports=transports)
            reply = await self._asked(ask, refusable=True)
            self.transport = reply.transport
            error = reply.error
            if not error and self.transport in (SHM, NIXL):
                error = await self._open_memory(reply)
            if not error:
                return reply
            if self.transport not in (SHM, NIXL) or self.transport not in transports or len(transports) < 2:
                raise TransferError(Failure.REFUSED, error)
            self.notes.append(f"{self.transport} was not used: {error}")
            transports = tuple(name for name in transports if name != self.transport)

    async def round_trip_ms(self) -> float:
        """Of the smallest message: the median of what a second lasts for."""
        took_ms: list[float] = []
        began_s = self._clock_s()
        while len(took_ms) < _PINGS and (not took_ms or self._clock_s() - began_s < _PING_S):
            start_s = self._clock_s()
            await self._asked(Ask("ping"))
            took_ms.append((self._clock_s() - start_s) * 1000)
        return median(took_ms)

    async def warm_up(self, size_bytes: int, size_s: float) -> None:
        """Transfers each way that do not count, up to the smallest size: the first one over NIXL connects, which takes
        half a second, and where that size is large, smaller ones show what of it fits into its time."""
        for move, way in ((self.send, "forth"), (self.fetch, "back")):
            size = min(size_bytes, UNIT_BYTES)
            while True:
                start_s = self._clock_s()
                async with asyncio.timeout(_ANSWER_S):
                    await move(size)
                took_s = self._clock_s() - start_s
                self._fits[way] = int(size * size_s / max(took_s, 1e-6))
                if size == size_bytes or 8 * took_s > size_s:
                    break
                size = min(8 * size, size_bytes)

    async def series(
        self,
        move: Callable[[int], Awaitable[None]],
        sizes_bytes: Sequence[int],
        size_s: float,
        way: str,
        samples: list[Sample],
    ) -> None:
        """All sizes in one direction, small ones first, into `samples`."""
        for wanted in sorted(set(sizes_bytes)):
            size, before = wanted, samples[-1].size_bytes if samples else 0
            fits = int(before / samples[-1].took_ms * size_s * 1000) if samples else self._fits[way]
            if fits < wanted / 2 and (samples or wanted > UNIT_BYTES):
                size = fits if samples else max(fits, UNIT_BYTES)
                most = max(size, before)
                self.notes.append(
                    f"{way}: more than {most / 1e6:.3g} MB at once would have taken longer than {size_s:g} s"
                )
                if size < 2 * before:
                    return
            if self.transport != TCP:
                size = blocks_of(size) * UNIT_BYTES
            took_ms: list[float] = []
            began_s = self._clock_s()
            while len(took_ms) < _REPEATS:
                start_s = self._clock_s()
                async with asyncio.timeout(_ANSWER_S):
                    await move(size)
                now_s = self._clock_s()
                took_ms.append((now_s - start_s) * 1000)
                if now_s - began_s + took_ms[-1] / 1000 > size_s:
                    break
            samples.append(Sample(size, median(took_ms), len(took_ms)))
            if size < wanted:
                return

    async def send(self, size_bytes: int) -> None:
        """To the other side."""
        await self._wire.send_message(Ask("take", size_bytes=size_bytes))
        if self._memory is None:
            for start in range(0, size_bytes, CHUNK_BYTES):
                await self._wire.send(self._data[: min(CHUNK_BYTES, size_bytes - start)])
        await self._replied()

    async def fetch(self, size_bytes: int) -> None:
        """From the other side."""
        await self._asked(Ask("give", size_bytes=size_bytes))
        if self._reader is None:
            await receive(self._wire, self._into, size_bytes)
        else:
            await self._reader.read(size_bytes)

    async def close(self) -> None:
        """Let go of memory."""
        if self._memory is not None:
            memory, self._memory, self._reader = self._memory, None, None
            await memory.close()

    async def _open_memory(self, reply: Reply) -> str:
        """Each side's memory for the other one; why that can't be, or nothing."""
        try:
            self._memory = ProbeMemory(self.transport)
            self._reader = self._memory.reader(reply.share, reply.nixl)
        except TransferError as error:
            await self.close()
            return str(error)
        answer = await self._asked(Ask("mine", share=self._memory.share, nixl=self._memory.nixl), refusable=True)
        if answer.error:
            await self.close()
        return answer.error

    async def _asked(self, ask: Ask, *, refusable: bool = False) -> Reply:
        async with asyncio.timeout(_ANSWER_S):
            await self._wire.send_message(ask)
            return await self._replied(refusable=refusable)

    async def _replied(self, *, refusable: bool = False) -> Reply:
        reply = await self._wire.receive_message(Reply)
        if reply.error and not refusable:
            raise TransferError(Failure.REFUSED, reply.error)
        return reply


def _reason(error: BaseException, host: str, port: int) -> str:
    where = f"the probe of {host}:{port} broke off"
    if isinstance(error, TimeoutError):
        return f"{where}: nothing came for {_ANSWER_S:g} s"
    if isinstance(error, OSError):
        return f"{where}: {error.strerror or error}"
    return f"{where}: {error}"
