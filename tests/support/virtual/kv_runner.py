"""A simulated engine that passes KV on: prompts computed for others, held under a lease, fetched over the network.

The hand-shake has the shape of vLLM's NixlConnector: the answer of a prefill leg says where the KV is, and the engine
that decodes reads it. What it reads are bytes that mean nothing, at a pace; that text is right shows that the right
prompt was computed, not that the bytes were.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pointsman.core.engine_model.request import EngineRequest
from pointsman.core.engine_model.sequence import Sequence, SequenceState
from pointsman.core.model.errors import EngineError
from pointsman.core.model.stage import Stage
from pointsman.edge.engines.openai_server.json_answer import send_json
from pointsman.edge.engines.openai_server.listener import Route
from pointsman.edge.engines.openai_server.requests import ChatBody, parse
from pointsman.edge.engines.openai_server.served_engine import TokenSink
from pointsman.edge.engines.sim.runner import EngineRunner
from pointsman.edge.engines.sim.state import SimState
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder

KV_PORT = 7000
BYTES_PER_TOKEN = 64
MS_PER_TOKEN = 2.0
"""So that there is a time during which KV is on its way."""
LEASE_S = 30.0
STALLED_S = 10.0
"""A fetch of which nothing came for so long has failed."""
LOOK_EVERY_S = 0.005


class KvRunner(EngineRunner):
    """`address`: where it listens for those that fetch."""

    def __init__(self, state: SimState, address: str, clock_s: Callable[[], float]) -> None:
        super().__init__(state.config, state.settings.speedup, state._publish, state.metrics, clock_s)
        self._address = address
        self._ids: dict[str, str] = {}
        """Ids of requests whose KV is for others → the name under which these know it."""
        self._leases: dict[str, asyncio.TimerHandle] = {}
        self._fetches: dict[Sequence, asyncio.Task[None]] = {}
        self._count = 0
        self.given = 0
        """Transfers that were fetched to their end."""
        self.expired = 0
        self.failed = 0
        """Fetches that came to nothing."""
        self.fetched_tokens = 0
        self.moved: dict[str, dict[str, object]] = {}
        self.held_tokens: dict[str, int] = {}
        self._holds: list[Callable[[], None]] = []

    # ---- what the server asks

    def submit(self, request: EngineRequest, sinks: list[TokenSink]) -> tuple[Sequence, ...]:
        params: Mapping[str, Any] = getattr(request, "kv_transfer_params", None) or {}
        if params.get("do_remote_decode"):
            self._count += 1
            self._ids[request.id] = f"held-{self._count}"
            return super().submit(replace(request, stage=Stage.PREFILL), sinks)
        if params.get("do_remote_prefill"):
            sequences = super().submit(replace(request, stage=Stage.DECODE), sinks)
            (sequence,) = sequences
            self._fetches[sequence] = asyncio.get_running_loop().create_task(self._fetch(sequence, sinks[0], params))
            return sequences
        return super().submit(request, sinks)

    def abort(self, sequence: Sequence) -> None:
        super().abort(sequence)
        fetch = self._fetches.pop(sequence, None)
        if fetch is not None:
            fetch.cancel()

    def transfer_answer(self, sequences: list[Sequence]) -> Mapping[str, object] | None:
        sequence = sequences[0]
        told = self.moved.pop(sequence.request.id, None)
        if told is not None:
            return {"pointsman_transfer": told}
        if sequence.request.id not in self._ids:
            return None
        return self._params(sequence.request.id, sequence.prompt_length)

    def _params(self, request_id: str, tokens: int) -> Mapping[str, object]:
        name, loop = self._ids[request_id], asyncio.get_running_loop()
        self._leases[name] = loop.call_later(LEASE_S, self._expire, name)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[1, 2, 3]],
            "remote_engine_id": self._address,
            "remote_request_id": name,
            "remote_host": self._address,
            "remote_port": KV_PORT,
            "tp_size": 1,
            "remote_num_tokens": tokens,
            "transfer_mode": "pull",
        }

    def stop(self) -> None:
        super().stop()
        for fetch in self._fetches.values():
            fetch.cancel()
        for lease in self._leases.values():
            lease.cancel()

    # ---- held for others

    @property
    def held(self) -> int:
        """Prompts whose KV is kept for somebody."""
        return self.engine.held

    async def hold(self, request: EngineRequest, most_tokens: int) -> Mapping[str, object]:
        """Keep the cached beginning of a prompt; between two steps, as the engine model wants it."""
        done: asyncio.Future[Sequence | None] = asyncio.get_running_loop().create_future()
        self._holds.append(lambda: done.set_result(self.engine.hold(request, most_tokens)))
        if not self.engine.in_step:
            self._run_holds()
        sequence = await done
        if sequence is None:
            return {"do_remote_prefill": True, "remote_num_tokens": 0}
        self._count += 1
        self._ids[request.id] = f"held-{self._count}"
        self.held_tokens[request.id] = sequence.still_computed
        return self._params(request.id, self.held_tokens[request.id])

    def _run_holds(self) -> None:
        holds, self._holds = self._holds, []
        for hold in holds:
            hold()

    def _begin(self, at_ms: float) -> bool:
        self._run_holds()
        return super()._begin(at_ms)

    def release(self, name: str) -> bool:
        """Free what is held under a name."""
        lease = self._leases.pop(name, None)
        if lease is not None:
            lease.cancel()
        for request_id, known in list(self._ids.items()):
            if known == name:
                del self._ids[request_id]
                return self.engine.release_held(request_id)
        return False

    def _expire(self, name: str) -> None:
        if self.release(name):
            self.expired += 1

    async def listen(self) -> None:
        """Be there for those that fetch."""
        await asyncio.get_running_loop().create_server(lambda: Giver(self), self._address, KV_PORT)

    # ---- fetched from others

    async def _fetch(self, sequence: Sequence, sink: TokenSink, params: Mapping[str, Any]) -> None:
        began_s = asyncio.get_running_loop().time()
        try:
            while sequence.state is not SequenceState.RESERVED:
                await asyncio.sleep(LOOK_EVERY_S)
            size = await fetched(params["remote_host"], params["remote_port"], params["remote_request_id"])
        except OSError as error:
            self.failed += 1
            self._fetches.pop(sequence, None)
            super().abort(sequence)
            sink.on_error(EngineError(f"KV load failed: {error}"))
            return
        self._fetches.pop(sequence, None)
        tokens = max(sequence.still_computed, min(sequence.prompt_length - 1, params["remote_num_tokens"]))
        self.fetched_tokens += tokens
        self.moved[sequence.request.id] = {
            "transferred_tokens": tokens,
            "transferred_bytes": size,
            "transfer_ms": 1000 * (asyncio.get_running_loop().time() - began_s),
            "transport": "memory",
        }
        if self.engine.fetched(sequence, tokens):
            self._wake()


def hold_route(state: SimState, runner: KvRunner) -> Route:
    """`POST /kv/hold` of the prompt that a body has."""

    async def hold(request: IncomingRequest, responder: Responder) -> None:
        body = json.loads(request.body)
        chat = parse(json.dumps({"model": body["model"], "messages": body["messages"]}).encode(), ChatBody)
        spec = state.specs.chat(chat, request.body, None, 0)
        wanted = EngineRequest(f"hold-{id(body):x}-{state.metrics.served}", spec.prompts[0], 1)
        send_json(responder, await runner.hold(wanted, body["max_tokens"]))

    return hold


def release_route(runner: KvRunner) -> Route:
    """`POST /kv/release`: 404 for what is not held."""

    async def release(request: IncomingRequest, responder: Responder) -> None:
        found = runner.release(json.loads(request.body)["remote_request_id"])
        send_json(responder, {"released": found}, 200 if found else 404)

    return release


class Giver(asyncio.Protocol):
    """The side that has the KV: told a name, it sends what it holds, and frees it once that was taken."""

    def __init__(self, runner: KvRunner) -> None:
        self._runner = runner
        self._name = ""
        self._left_bytes = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data == b"got it\n":
            self._runner.given += self._runner.release(self._name)
            self._transport.close()
            return
        self._name = json.loads(data)["name"]
        held = [key for key, name in self._runner._ids.items() if name == self._name]
        sequence = self._runner.engine._held.get(held[0]) if held else None
        if sequence is None:
            self._transport.abort()
            return
        tokens = self._runner.held_tokens.get(held[0], sequence.prompt_length)
        size = tokens * BYTES_PER_TOKEN
        self._transport.write(size.to_bytes(8, "big"))
        self._left_bytes = size
        self._send()

    def _send(self) -> None:
        if self._transport.is_closing() or not self._left_bytes:
            return
        self._transport.write(bytes(BYTES_PER_TOKEN))
        self._left_bytes -= BYTES_PER_TOKEN
        asyncio.get_running_loop().call_later(MS_PER_TOKEN / 1000, self._send)


class Taker(asyncio.Protocol):
    """The side that fetches."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._come = bytearray()
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(json.dumps({"name": self._name}).encode())

    @property
    def come(self) -> int:
        """Bytes so far."""
        return len(self._come)

    def data_received(self, data: bytes) -> None:
        self._come += data
        if len(self._come) >= 8 and len(self._come) - 8 >= int.from_bytes(self._come[:8], "big"):
            if not self.done.done():
                self.done.set_result(len(self._come) - 8)
            self._transport.write(b"got it\n")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionResetError("the connection ended before all had come"))
            self.done.exception()  # who waited may be gone


async def fetched(host: str, port: int, name: str) -> int:
    """Bytes that came; OSError when not all did. Cancelled it ends the connection."""
    loop = asyncio.get_running_loop()
    transport, taker = await loop.create_connection(lambda: Taker(name), host, port)
    try:
        while not taker.done.done():
            come = taker.come
            await asyncio.wait([taker.done], timeout=STALLED_S)
            if taker.come == come and not taker.done.done():
                raise TimeoutError(f"nothing came for {STALLED_S:g} s")
        return taker.done.result()
    finally:
        if not taker.done.done():
            taker.done.cancel()
            transport.abort()
