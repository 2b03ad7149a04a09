"""Engines that hand KV to each other in virtual time, over a transport that does what a script says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pointsman.core.engine_model.engine import RequestRefusedError
from pointsman.core.engine_model.sequence import Sequence as Answer
from pointsman.core.engine_model.sequence import SequenceState
from pointsman.edge.engines.embedded.computed_sequence import ComputedSequence
from pointsman.edge.engines.embedded.decoder import Decoder
from pointsman.edge.engines.embedded.engine import EmbeddedEngine
from pointsman.edge.engines.embedded.handover import KvHandover
from pointsman.edge.engines.embedded.transfer_metrics import TransferMetrics
from pointsman.edge.engines.embedded.transfer_settings import TransferSettings
from pointsman.edge.engines.openai_server.sampling import SampledRequest
from pointsman.edge.transfer.blocks import BlockName, Peer, Put, TransferReport
from pointsman.edge.transfer.errors import Failure, TransferError
from support.embedded_models import embedded_engine

STEP_S = 0.01


class World:
    """All engines by name, and what happens on the way between them."""

    def __init__(self, block_s: float, breaks_after: Sequence[int | None]) -> None:
        """`block_s`: time of one block. `breaks_after`: blocks after which the n-th transfer breaks; None: never."""
        self.handovers: dict[str, KvHandover] = {}
        self.block_s = self.word_s = block_s
        """`word_s`: until a word has arrived."""
        self._breaks = iter(breaks_after)

    def alive(self, name: str) -> KvHandover | None:
        return self.handovers.get(name)

    async def read(self, peer: Peer, wanted: Sequence[BlockName], put: Put) -> TransferReport:
        breaks_after = next(self._breaks, None)
        for place, name in enumerate(wanted):
            await asyncio.sleep(self.block_s)
            source = self.handovers.get(peer.name)
            grant = None if source is None else source.leases.grant(peer.token)
            if source is None or grant is None or place == breaks_after:
                raise TransferError(Failure.BROKEN, "the script says so")
            grant.extend()
            held = grant.blocks[name.number]
            if held.hash != name.hash or held.tokens < name.tokens:
                raise TransferError(Failure.CORRUPT, "other tokens")
            put(place, source._engine.kv.block(name.number))
        return TransferReport(peer.name, "", len(wanted), 0, 0, 1.0, 0.0, "tcp", "none")

    async def renew(self, peer: Peer) -> bool:
        return await self._tell(peer, lambda grant: grant.extend())

    async def release(self, peer: Peer) -> bool:
        return await self._tell(peer, lambda grant: grant.release())

    async def _tell(self, peer: Peer, what: Callable[..., None]) -> bool:
        await asyncio.sleep(self.word_s)
        source = self.handovers.get(peer.name)
        grant = None if source is None else source.leases.grant(peer.token)
        if grant is not None:
            what(grant)
        return grant is not None


class ScriptedRunner:
    """Does what the embedded engine's runner does, in virtual time and one thread."""

    def __init__(self, world: World, engine: EmbeddedEngine, settings: TransferSettings) -> None:
        self.engine = engine
        self._between: list[Callable[[], None]] = []
        self._in_step = self._waking = False
        self._loop = asyncio.get_running_loop()
        self.told: dict[str, dict[str, Any]] = {}
        """Answers' `kv_transfer_params` by request."""
        self._done: dict[Answer, asyncio.Future[list[int]]] = {}
        self.handover = KvHandover(self, settings, world, TransferMetrics({}))
        world.handovers[self.handover.name] = self.handover

    def submit(self, request: SampledRequest) -> list[Answer]:
        if request.kv_transfer_params is not None:
            request = self.handover.prepared(request)
        try:
            sequences = list(self.engine.model.add(request))
        except RequestRefusedError:
            self.handover.refused(request)
            raise
        for sequence in sequences:
            self._done[sequence] = self._loop.create_future()
        self.wake()
        return sequences

    async def answer(self, sequence: Answer) -> list[int]:
        return await self._done[sequence]

    def abort(self, sequence: Answer) -> None:
        done = self._done.pop(sequence, None)
        if done is not None:
            done.cancel()
        if self.engine.model.abort_sequence(sequence):
            self.handover.aborted(sequence)

    def fail(self, sequence: Answer, error: Exception) -> None:
        done = self._done.get(sequence)
        if done is not None and not done.done():
            done.set_exception(error)
        self.abort(sequence)

    def between_steps(self, do: Callable[[], None]) -> None:
        if self._in_step:
            self._between.append(do)
        else:
            do()

    def wake(self) -> None:
        if not self._in_step and not self._waking:
            self._waking = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._waking = False
        work = self.engine.begin(self._loop.time() * 1000)
        self.handover.reserved(self.engine.model.take_reserved())
        if work is None:
            return
        self._in_step = True
        self.engine.compute(work)
        self._loop.call_later(STEP_S, self._finish)

    def _finish(self) -> None:
        self._in_step = False
        result = self.engine.finish(self._loop.time() * 1000)
        self.handover.finished(result.finished)
        for sequence in result.finished:
            assert isinstance(sequence, ComputedSequence)
            assert sequence.state is SequenceState.FINISHED
            params = self.handover.answer([sequence])
            done = self._done.get(sequence)
            if done is not None and not done.done():
                done.set_result(list(sequence.answer))
                self.told[sequence.request.id] = dict(params or {})
        between, self._between = self._between, []
        for do in between:
            do()
        self._begin()


def scripted_engines(
    world: World, model: Decoder, count: int, settings: TransferSettings, **sizes: int
) -> list[ScriptedRunner]:
    return [ScriptedRunner(world, embedded_engine(model, transfers=True, **sizes), settings) for _ in range(count)]
