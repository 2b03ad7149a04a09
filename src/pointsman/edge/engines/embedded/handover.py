"""KvHandover: an embedded engine gives its KV to others, and takes theirs, in the shape of vLLM's NixlConnector."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import uuid
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from prometheus_client.metrics_core import Metric

from pointsman.core.engine_model.request import EngineRequest
from pointsman.core.engine_model.sequence import Sequence
from pointsman.core.model.stage import Stage
from pointsman.edge.engines.embedded.block_names import content_hashes, filled
from pointsman.edge.engines.embedded.engine import EmbeddedEngine
from pointsman.edge.engines.embedded.fetches import Fetch, Fetches
from pointsman.edge.engines.embedded.leases import Lease, Leases
from pointsman.edge.engines.embedded.transfer_metrics import TransferMetrics
from pointsman.edge.engines.embedded.transfer_params import FIELD, Held, Remote, held_params, read_params
from pointsman.edge.engines.embedded.transfer_settings import TransferSettings
from pointsman.edge.engines.openai_server.errors import bad_request
from pointsman.edge.engines.openai_server.sampling import SampledRequest
from pointsman.edge.transfer.blocks import BlockName, Transfer, TransferReport

_log = logging.getLogger("pointsman.engines.embedded")

KIND = "pointsman-embedded"
_MOST_HELD = 0.5
"""Share of the blocks that `hold` may take out of use, so that the engine's own requests go on."""


class Ends(Protocol):
    """What the engine's runner lets this do."""

    engine: EmbeddedEngine

    def wake(self) -> None:
        """There may be something to compute."""

    def fail(self, sequence: Sequence, error: Exception) -> None:
        """A sequence can't go on."""

    def between_steps(self, do: Callable[[], None]) -> None:
        """Now, or when the step that is being computed has ended."""


class KvHandover:
    """One an engine. Everything happens on its event loop; what moves the bytes is handed in."""

    def __init__(
        self,
        runner: Ends,
        settings: TransferSettings,
        transfer: Transfer,
        metrics: TransferMetrics,
        *,
        learned: Callable[[str, TransferReport], None] = lambda host, report: None,
    ) -> None:
        self.name = f"embedded-{uuid.uuid4().hex}"
        """Of this engine, new with each start."""
        self.host, self.port = settings.host, settings.port
        """Where others read its blocks."""
        self.metrics = metrics
        self._runner = runner
        self._engine = runner.engine
        self._settings = settings
        self.leases = Leases(settings.lease_s, self._free)
        self.fetches = Fetches(
            runner.engine,
            transfer,
            metrics,
            go_on=self._go_on,
            fail=runner.fail,
            recompute=settings.load_failure == "recompute",
            learned=learned,
        )
        self._told: dict[str, str] = {}
        """Requests that fetch nothing although they asked for it, and why."""

    @property
    def fingerprint(self) -> str:
        """Of the model."""
        return self._engine.kv.memory.layout.fingerprint

    def prepared(self, request: SampledRequest) -> SampledRequest:
        """The request as the engine is to compute it. Raises ApiError."""
        asked = read_params(request.kv_transfer_params or {})
        if asked is True:
            return dataclasses.replace(request, stage=Stage.PREFILL)
        if not isinstance(asked, Remote):
            return request
        reason = self._mismatch(asked)
        if reason is not None:
            self._not_fetched(request, asked, reason)
            return request
        if asked.engine == self.name or len(request.prompt) < 2 or not asked.tokens:
            # It is all here, or there is nothing to be fetched: the last token is computed anyway.
            self._let_go(asked)
            return request
        self.fetches.add(request, asked)
        return dataclasses.replace(request, stage=Stage.DECODE)

    def refused(self, request: SampledRequest) -> None:
        """The engine did not take a prepared request."""
        self._told.pop(request.id, None)
        self.fetches.refused(request.id)

    def reserved(self, sequences: Iterable[Sequence]) -> None:
        """Sequences at the decode stage got their blocks."""
        for sequence in sequences:
            self.fetches.reserved(sequence)

    def finished(self, sequences: Iterable[Sequence]) -> None:
        """Sequences have all their tokens; nobody was told yet."""
        for sequence in sequences:
            if sequence.stage is Stage.PREFILL:
                if not sequence.index:
                    self._hold(sequence, sequence.prompt_length)
            elif sequence.stage is Stage.DECODE:
                self.fetches.finished(sequence)

    def aborted(self, sequence: Sequence) -> None:
        """A sequence was taken out before its end."""
        self._told.pop(sequence.request.id, None)
        self.fetches.aborted(sequence)

    def lost(self) -> None:
        """The engine failed: no block is what it should be."""
        self.leases.release_all()
        self.fetches.lost()
        self._told.clear()

    def answer(self, sequences: list[Sequence]) -> Mapping[str, object] | None:
        """`kv_transfer_params` of an answer; None where its request had none that matter."""
        told: Mapping[str, object] | None = None
        for request_id in dict.fromkeys(sequence.request.id for sequence in sequences):
            lease = self.leases.of(request_id)
            if lease is not None and told is None:
                told = self.params_of(lease)
            elif lease is not None:
                lease.release()  # one answer can tell of one prompt
            fetch = self.fetches.ended(request_id)
            reason = self._told.pop(request_id, None)
            if told is None and fetch is not None:
                told = {"pointsman_transfer": _report(fetch)}
            elif told is None and reason is not None:
                told = {"pointsman_transfer": _NOTHING | {"failure": reason}}
        return told

    def hold(self, prompt: list[int], most_tokens: int | None, lora_name: str | None, salt: str | None) -> Lease | None:
        """Keep the leading full blocks of a prompt that are cached; None: none is, or too much is kept already.

        Between two steps only.
        """
        model = self._engine.model
        size = model.config.block_size
        room = int(_MOST_HELD * model.config.num_blocks) - self.leases.blocks
        most = min(len(prompt), room * size, len(prompt) if most_tokens is None else most_tokens)
        if most < size or len(prompt) >= model.config.max_model_len:
            return None
        name = f"hold-{uuid.uuid4().hex}"
        request = EngineRequest(name, prompt, 1, lora_name=lora_name, cache_salt=salt, stage=Stage.PREFILL)
        sequence = model.hold(request, most)
        return None if sequence is None else self._hold(sequence, sequence.computed)

    async def held(
        self, prompt: list[int], most_tokens: int | None, lora_name: str | None, salt: str | None
    ) -> Lease | None:
        """As `hold`, as soon as no step is being computed."""
        done: asyncio.Future[Lease | None] = asyncio.get_running_loop().create_future()

        def now() -> None:
            if done.done():
                return
            try:
                done.set_result(self.hold(prompt, most_tokens, lora_name, salt))
            except Exception as error:  # the caller's, and nothing that the next step should wait for
                done.set_exception(error)

        self._runner.between_steps(now)
        return await done

    def params_of(self, lease: Lease) -> dict[str, object]:
        """What whoever is to read the blocks of a lease has to be told."""
        held = Held(lease.name, lease.token, lease.numbers, lease.tokens)
        size = self._engine.model.config.block_size
        return held_params(held, self.name, self.host, self.port, size, self.fingerprint, self.leases.lease_s)

    def families(self, strangers: int) -> Iterable[Metric]:
        """All metrics of KV that moves."""
        return self.metrics.families(
            leases=len(self.leases),
            held_blocks=self.leases.blocks,
            expired=self.leases.expired,
            fetching=len(self.fetches),
            strangers=strangers,
        )

    async def close(self) -> None:
        """Give and take nothing more."""
        await self.fetches.close()
        self.leases.release_all()

    def _hold(self, sequence: Sequence, tokens: int) -> Lease:
        request = sequence.request
        assert isinstance(request, EngineRequest)
        size = self._engine.model.config.block_size
        prompt = array("I", request.prompt[:tokens])
        hashes = content_hashes(prompt, size, request.lora_name, request.cache_salt)
        table = self._engine.table(sequence)
        blocks = [
            BlockName(number, content, filled(place, tokens, size))
            for place, (number, content) in enumerate(zip(table, hashes, strict=False))
        ]
        return self.leases.begin(request.id, tokens, blocks)

    def _free(self, name: str) -> None:
        if self._engine.model.release_held(name):
            self._runner.wake()

    def _go_on(self, sequence: Sequence, tokens: int) -> None:
        self._engine.model.fetched(sequence, tokens)
        self._runner.wake()

    def _mismatch(self, remote: Remote) -> str | None:
        size = self._engine.model.config.block_size
        if remote.fingerprint != self.fingerprint:
            return "fingerprint: the KV is of another model, or of other weights"
        if remote.block_size != size:
            return f"block_size: its blocks have {remote.block_size} tokens, those here {size}"
        if remote.tp_size != 1:
            return f"tp_size: its blocks are parts of {remote.tp_size} GPUs, those here are whole"
        return None

    def _not_fetched(self, request: SampledRequest, remote: Remote, reason: str) -> None:
        self.metrics.mismatched += 1
        self.fetches.drop(remote)
        if self._settings.load_failure == "fail":
            raise bad_request(f"{FIELD}: KV of {remote.engine} can't be used here: {reason}", FIELD)
        _log.warning("request %s is computed here: KV of %s can't be used: %s", request.id, remote.engine, reason)
        self._told[request.id] = "mismatch"

    def _let_go(self, remote: Remote) -> None:
        if remote.engine == self.name:
            self.leases.release(remote.request)
        else:
            self.fetches.drop(remote)


_NOTHING: dict[str, object] = {
    "transferred_tokens": 0,
    "transferred_bytes": 0,
    "transfer_ms": 0.0,
    "transport": None,
}


def _report(fetch: Fetch) -> dict[str, object]:
    told = dict(_NOTHING)
    told["transferred_tokens"] = fetch.fetched_tokens
    report = fetch.report
    if report is not None:
        told.update(
            transferred_bytes=report.bytes,
            wire_bytes=report.wire_bytes,
            transfer_ms=round(report.ms, 3),
            floor_ms=round(report.first_byte_ms, 3),
            transport=report.transport,
            codec=report.codec,
            resumed=report.resumed,
            source=report.source,
        )
    if fetch.failure is not None:
        told["failure"] = fetch.failure
    return told
