"""The peer's decision: Dynamo's SelectionService in its own Python, from the same token ids as exact_decisions.

Runs in `.venv-dynamo`: `python -m harness.peer_decisions JSON-of-PeerSpec` prints a JSON map from `workers/tokens` to
percentiles. The service gets what workers hold by ZMQ, as from engines; a decision is `select_and_reserve`, the call
that hashes, looks up, chooses and books. Its way from Python to Rust and back is in the time: there is no other way to
it in one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import deque
from typing import Any

import msgspec
import uvloop
import zmq

from harness.histogram import Percentiles, percentiles_ms
from harness.peer_spec import PeerSpec
from harness.token_prompts import BLOCK_TOKENS, TokenPrompts

MODEL = "model"
_VISIBLE_S = 30.0


class PeerBench:
    """A selection service with workers that hold what is known."""

    def __init__(self, service: Any, context: zmq.Context[zmq.Socket[bytes]], workers: int) -> None:
        self._service = service
        self._sockets = [context.socket(zmq.PUB) for _ in range(workers)]
        self._in_flight: deque[str] = deque()
        self.seconds: list[float] = []

    async def join(self) -> None:
        """Register all workers."""
        for number, socket in enumerate(self._sockets):
            socket.set_hwm(0)
            port = socket.bind_to_random_port("tcp://127.0.0.1")
            await self._service.upsert_worker(
                {
                    "worker_id": number,
                    "model_name": MODEL,
                    "endpoint": f"http://10.0.0.{number}:8000",
                    "block_size": BLOCK_TOKENS,
                    "kv_events_endpoints": {0: f"tcp://127.0.0.1:{port}"},
                    "total_kv_blocks": 100_000,
                    "max_num_batched_tokens": 8_192,
                }
            )

    async def hold(self, prompts: TokenPrompts) -> None:
        """Announce what is known, again until the service has heard of all of it: a new subscriber misses the start."""
        holders = prompts.holders(len(self._sockets))
        deadline_s = time.monotonic() + _VISIBLE_S
        sequence = 0
        while True:
            missing = [i for i, known in enumerate(prompts.known) if await self._least_held(known, holders[i])]
            if not missing:
                return
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the service did not hear of {len(missing)} of {len(holders)} sessions")
            for session in missing:
                for worker in holders[session]:
                    self._publish(self._sockets[worker], sequence, session, prompts.known[session])
            sequence += len(missing)
            await asyncio.sleep(0.3)

    async def _least_held(self, known: list[int], holders: list[int]) -> bool:
        """Whether a holder does not hold all of it yet."""
        answer = await self._service.overlap_scores({"model_name": MODEL, "token_ids": known})
        blocks = {worker["worker_id"]: worker["device_blocks"] for worker in answer["workers"]}
        return min(blocks.get(worker, 0) for worker in holders) < len(known) // BLOCK_TOKENS

    def _publish(self, socket: zmq.Socket[bytes], sequence: int, session: int, known: list[int]) -> None:
        count = len(known) // BLOCK_TOKENS
        event = {
            "type": "BlockStored",
            "block_hashes": list(range(1 + session * count, 1 + (session + 1) * count)),
            "parent_block_hash": None,
            "token_ids": known,
            "block_size": BLOCK_TOKENS,
            "lora_id": None,
            "medium": "GPU",
        }
        payload = msgspec.msgpack.encode([time.time(), [event], 0])
        socket.send_multipart([b"", (sequence + session).to_bytes(8, "big"), payload])

    async def one(self, number: int, tokens: list[int], limit: int) -> None:
        """Decide one request, and end the oldest one when more than `limit` run. Only the decision is timed."""
        selection = f"r{number}"
        started = time.perf_counter()
        await self._service.select_and_reserve({"model_name": MODEL, "token_ids": tokens, "selection_id": selection})
        self.seconds.append(time.perf_counter() - started)
        await self._service.prefill_complete(selection)
        self._in_flight.append(selection)
        if len(self._in_flight) > limit:
            await self._service.free_reservation(self._in_flight.popleft())

    def close(self) -> None:
        """Close the sockets."""
        for socket in self._sockets:
            socket.close(0)


async def measure(spec: PeerSpec, workers: int, tokens: int) -> Percentiles:
    """One case."""
    from dynamo.llm import SelectionService  # type: ignore[import-not-found]

    prompts = TokenPrompts(spec.sessions, tokens, spec.seed)
    service = SelectionService()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    bench = PeerBench(service, context, workers)
    try:
        await bench.join()
        await bench.hold(prompts)
        warm_up = max(spec.requests // 2, spec.sessions * 2)
        for number in range(warm_up + spec.requests):
            if number == warm_up:
                bench.seconds.clear()
            await bench.one(number, prompts.prompt(number), workers * spec.in_flight_per_worker)
    finally:
        bench.close()
        context.term()
        with contextlib.suppress(Exception):
            service.shutdown()
    return percentiles_ms(bench.seconds)


async def run(spec: PeerSpec) -> dict[str, Percentiles]:
    """All cases."""
    return {
        f"{workers}/{tokens}": await measure(spec, workers, tokens)
        for tokens in spec.tokens
        for workers in spec.workers
    }


def main() -> None:
    spec = msgspec.json.decode(sys.argv[1], type=PeerSpec)
    results = uvloop.run(run(spec))
    sys.stdout.buffer.write(msgspec.json.encode(results) + b"\n")


if __name__ == "__main__":
    main()
