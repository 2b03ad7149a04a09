"""Routes under `/sim/`: what is really in the engine, and faults."""

from __future__ import annotations

from collections.abc import Callable

from pointsman.edge.engines.openai_server.json_answer import send_json
from pointsman.edge.engines.openai_server.listener import Routes
from pointsman.edge.engines.sim.faults import NO_FAULTS, parse_faults
from pointsman.edge.engines.sim.state import SimState
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder


class AdminRoutes:
    """Truth and faults of one simulated engine."""

    def __init__(self, state: SimState, restart: Callable[[float], None]) -> None:
        self._state = state
        self._restart = restart

    def table(self) -> Routes:
        """Handler by method and path."""
        return {
            ("GET", "/sim/blocks"): self.blocks,
            ("GET", "/sim/requests"): self.requests,
            ("GET", "/sim/faults"): self.faults,
            ("POST", "/sim/faults"): self.set_faults,
            ("DELETE", "/sim/faults"): self.clear_faults,
        }

    async def blocks(self, request: IncomingRequest, responder: Responder) -> None:
        """`GET /sim/blocks`: hashes of all blocks that a request could reuse, per medium."""
        engine = self._state.runner.engine
        hashes = engine.cached_hashes()
        size = engine.config.block_size
        gpu = {"blocks": len(hashes), "tokens": len(hashes) * size, "hashes": hashes}
        answer = {
            "block_size": size,
            "num_blocks": engine.config.num_blocks,
            "next_seq": self._state.publisher.next_seq,
            "media": {"GPU": gpu},
        }
        send_json(responder, answer)

    async def requests(self, request: IncomingRequest, responder: Responder) -> None:
        """`GET /sim/requests`: sequences in the engine, oldest running one first."""
        runner = self._state.runner
        engine = runner.engine
        rows = [
            {
                "id": sequence.request.id,
                "index": sequence.index,
                "state": sequence.state.name.lower(),
                "prompt_tokens": sequence.prompt_length,
                "generated_tokens": sequence.generated,
                "computed_tokens": sequence.computed,
                "cached_tokens": sequence.cached_tokens,
                "blocks": sequence.blocks,
                "preemptions": sequence.preemptions,
            }
            for sequence in engine.requests()
        ]
        totals = {
            "running": engine.running,
            "waiting": engine.waiting,
            "kv_use": engine.kv_use,
            "behind_ms": runner.behind_ms,
            "served": self._state.metrics.served,
        }
        send_json(responder, {**totals, "requests": rows})

    async def faults(self, request: IncomingRequest, responder: Responder) -> None:
        """`GET /sim/faults`: the active ones."""
        send_json(responder, self._state.faults.active)

    async def set_faults(self, request: IncomingRequest, responder: Responder) -> None:
        """`POST /sim/faults`: replaces the active ones; `{}` clears them."""
        faults = parse_faults(request.body)
        if faults.restart:
            # The rest of a restart order is not kept: a new process has no faults.
            self._state.set_faults(NO_FAULTS)
            responder.keep_alive = False
            send_json(responder, {"restarting": True}, 202)
            self._restart(faults.down_ms / 1000)
            return
        self._state.set_faults(faults)
        send_json(responder, faults)

    async def clear_faults(self, request: IncomingRequest, responder: Responder) -> None:
        """`DELETE /sim/faults`."""
        self._state.set_faults(NO_FAULTS)
        send_json(responder, NO_FAULTS)
