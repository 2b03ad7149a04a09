"""Routes of a vLLM server, with the faults that were asked for."""

from __future__ import annotations

import asyncio
from functools import partial

from pointsman.edge.engines.openai_server import api_routes
from pointsman.edge.engines.openai_server.api_routes import OutputMaker
from pointsman.edge.engines.openai_server.errors import ApiError
from pointsman.edge.engines.openai_server.generation import Generation, Output
from pointsman.edge.engines.sim.breaking_output import BreakingStream, BreakingWhole
from pointsman.edge.engines.sim.faults import NO_STREAM_FAULTS, StreamFaults, stream_faults
from pointsman.edge.engines.sim.state import SimState
from pointsman.edge.wire.http1_responder import Responder


class ApiRoutes(api_routes.ApiRoutes):
    """OpenAI's and vLLM's own routes of one simulated engine."""

    def __init__(self, state: SimState) -> None:
        super().__init__(state)
        self._sim = state

    async def admit(self, responder: Responder) -> OutputMaker | None:
        """Faults that hit before an answer begins may be the answer; others break it off later."""
        makes = await super().admit(responder)
        faults = self._sim.faults.next_request()
        if faults.refuse:
            responder.abort()
            return None
        if faults.hang:
            await asyncio.get_running_loop().create_future()
        if faults.first_byte_delay_ms:
            await asyncio.sleep(faults.first_byte_delay_ms / 1000)
        if faults.error_status is not None:
            raise ApiError(faults.error_status, f"status {faults.error_status} was asked for (injected fault)")
        midway = stream_faults(faults)
        return makes if midway is NO_STREAM_FAULTS else partial(self._breaking, midway)

    def _breaking(self, faults: StreamFaults, generation: Generation, responder: Responder) -> Output:
        if generation.spec.stream:
            return BreakingStream(generation, responder, self._sim.json_texts, faults)
        return BreakingWhole(generation, responder, faults)
