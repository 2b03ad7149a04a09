"""Fetches: requests whose KV another engine has, from their arrival until their blocks are in place.

While one waits for blocks here, its lease there is extended. Blocks that are cached here are not fetched. What did not
come, for whatever reason, is computed here, unless the operator says that such requests shall fail.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from pointsman.core.engine_model.sequence import Sequence, SequenceState
from pointsman.edge.engines.embedded.block_names import content_hashes, filled
from pointsman.edge.engines.embedded.engine import EmbeddedEngine
from pointsman.edge.engines.embedded.transfer_metrics import TransferMetrics
from pointsman.edge.engines.embedded.transfer_params import Remote
from pointsman.edge.engines.openai_server.errors import ApiError
from pointsman.edge.engines.openai_server.sampling import SampledRequest
from pointsman.edge.transfer.blocks import BlockName, Contents, Peer, Transfer, TransferReport
from pointsman.edge.transfer.errors import Failure, TransferError

_log = logging.getLogger("pointsman.engines.embedded")


_MOST_RENEWALS = 12
"""Of one lease, while the request waits for room: two engines that are full of KV for each other must not wait for
ever."""
_FAREWELL_S = 1.0
"""What telling all sources may take that nothing more is wanted, when the engine stops."""


class _GoneError(Exception):
    """Nobody wants the blocks any more."""


@dataclass(slots=True, eq=False)
class Fetch:
    """One request."""

    request: SampledRequest
    remote: Remote
    peer: Peer
    hashes: list[int]
    """Of the prompt's blocks that the source holds as well."""
    tokens: int
    """Leading tokens of the prompt that can be fetched; its last one is always computed."""
    left: int
    """Sequences that have not gone on, and not ended."""
    reserved: list[Sequence] = field(default_factory=list)
    """Those that have blocks and wait; into those of the first one it is fetched."""
    task: asyncio.Task[None] | None = None
    over: bool = False
    report: TransferReport | None = None
    failure: str | None = None
    """Why something did not come."""
    fetched_tokens: int = 0


class GoOn(Protocol):
    """What happens to sequences is up to the engine's runner."""

    def __call__(self, sequence: Sequence, tokens: int) -> None:
        """The first `tokens` tokens of it are there."""


class Fetches:
    """All that an engine fetches. Everything happens on one event loop."""

    def __init__(
        self,
        engine: EmbeddedEngine,
        transfer: Transfer,
        metrics: TransferMetrics,
        *,
        go_on: GoOn,
        fail: Callable[[Sequence, Exception], None],
        recompute: bool,
        learned: Callable[[str, TransferReport], None] = lambda host, report: None,
    ) -> None:
        """`recompute`: what does not come is computed, else its request fails. `learned`: hears of what came."""
        self._engine = engine
        self._transfer = transfer
        self._metrics = metrics
        self._go_on = go_on
        self._fail = fail
        self._recompute = recompute
        self._learned = learned
        self._fetches: dict[str, Fetch] = {}
        self._renewals: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._releases: set[asyncio.Task[Any]] = set()
        """Sources that are being told that nothing more is wanted of them."""

    def __len__(self) -> int:
        return len(self._fetches)

    def add(self, request: SampledRequest, remote: Remote) -> None:
        """A request is about to be queued."""
        size = self._engine.model.config.block_size
        length = len(request.prompt)
        usable = remote.tokens if remote.tokens <= length else length // size * size
        tokens = array("I", request.prompt[:usable])
        peer = Peer(remote.engine, remote.host, remote.port, remote.token)
        fetch = Fetch(
            request,
            remote,
            peer,
            content_hashes(tokens, size, request.lora_name, request.cache_salt),
            min(usable, length - 1),
            request.sequences,
        )
        self._fetches[request.id] = fetch
        self._renewals[request.id] = self._start(self._renew(fetch))

    def drop(self, remote: Remote) -> None:
        """Nothing will be fetched of what a source holds: it is told so."""
        self._release(Peer(remote.engine, remote.host, remote.port, remote.token))

    def refused(self, request_id: str) -> None:
        """The engine did not take a request that was added."""
        fetch = self._fetches.pop(request_id, None)
        if fetch is not None:
            self._over(fetch)

    def reserved(self, sequence: Sequence) -> None:
        """A sequence of an added request has its blocks."""
        fetch = self._fetches.get(sequence.request.id)
        if fetch is None or fetch.over:
            # A sibling went on before, and what it fetched is in the cache.
            self._go_on(sequence, sequence.computed)
            return
        fetch.reserved.append(sequence)
        if fetch.task is None:
            fetch.task = self._start(self._fetch(fetch, sequence))

    def aborted(self, sequence: Sequence) -> None:
        """A sequence was taken out."""
        fetch = self._fetches.get(sequence.request.id)
        if fetch is None:
            return
        fetch.left -= 1
        first = bool(fetch.reserved) and fetch.reserved[0] is sequence
        if sequence in fetch.reserved:
            fetch.reserved.remove(sequence)
        if first and not fetch.over:
            if fetch.task is not None:
                fetch.task.cancel()
            fetch.task = self._start(self._fetch(fetch, fetch.reserved[0])) if fetch.reserved else None
        if fetch.left <= 0:
            del self._fetches[sequence.request.id]
            self._over(fetch)

    def finished(self, sequence: Sequence) -> None:
        """A sequence has all its tokens. What is known of its request is kept until the end of this turn."""
        fetch = self._fetches.get(sequence.request.id)
        if fetch is not None:
            fetch.left -= 1
            if fetch.left <= 0:
                asyncio.get_running_loop().call_soon(self.ended, sequence.request.id)

    def lost(self) -> None:
        """The engine ended all requests."""
        for request_id in list(self._fetches):
            self.ended(request_id)

    def ended(self, request_id: str) -> Fetch | None:
        """The answer of a request is complete: what was fetched for it; None: it fetched nothing."""
        fetch = self._fetches.pop(request_id, None)
        if fetch is not None:
            self._over(fetch)
        return fetch

    async def close(self) -> None:
        """Fetch nothing more, and tell the sources."""
        for request_id in list(self._fetches):
            self.ended(request_id)
        for task in self._tasks - self._releases:
            task.cancel()
        if self._releases:
            await asyncio.wait(list(self._releases), timeout=_FAREWELL_S)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _release(self, peer: Peer) -> None:
        task = self._start(self._transfer.release(peer))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    def _over(self, fetch: Fetch) -> None:
        """Nothing more is wanted of the source."""
        renewal = self._renewals.pop(fetch.request.id, None)
        if renewal is not None:
            renewal.cancel()
        if fetch.task is not None and not fetch.over:
            fetch.task.cancel()
        if not fetch.over:
            fetch.over = True
            self._release(fetch.peer)

    async def _renew(self, fetch: Fetch) -> None:
        waited = 0
        while waited < _MOST_RENEWALS:
            await asyncio.sleep(fetch.remote.lease_s / 3)
            waited += fetch.task is None  # one that is being read may take its time
            if not await self._transfer.renew(fetch.peer):
                self._metrics.renewals_failed += 1
        _log.warning("request %s waited too long for room: its KV at %s is let go", fetch.request.id, fetch.peer.name)
        await self._transfer.release(fetch.peer)

    async def _fetch(self, fetch: Fetch, sequence: Sequence) -> None:
        engine = self._engine
        size = engine.model.config.block_size
        first = sequence.computed // size
        last = -(-fetch.tokens // size)
        wanted = [
            BlockName(fetch.remote.blocks[number], fetch.hashes[number], filled(number, fetch.tokens, size))
            for number in range(first, last)
        ]
        places = engine.table(sequence)[first:last]
        came: set[int] = set()

        def put(place: int, contents: Contents) -> None:
            if sequence.state is not SequenceState.RESERVED:
                raise _GoneError
            engine.kv.block(places[place])[:] = contents
            came.add(place)

        error: TransferError | None = None
        tokens = max(fetch.tokens, sequence.computed)
        if wanted:
            try:
                fetch.report = await self._transfer.read(fetch.peer, wanted, put)
            except TransferError as failed:
                error = failed
            except _GoneError:
                return
            except Exception as unexpected:
                _log.exception("a KV transfer broke off here")
                error = TransferError(Failure.LOCAL, f"{type(unexpected).__name__} here; the log says more")
        if error is not None:
            leading = next((place for place in range(len(wanted)) if place not in came), len(wanted))
            tokens = max(sequence.computed, min(tokens, (first + leading) * size))
        self._done(fetch, sequence, tokens, error)

    def _done(self, fetch: Fetch, sequence: Sequence, tokens: int, error: TransferError | None) -> None:
        fetch.task = None  # this is it, and it ends by itself
        fetch.fetched_tokens = tokens - sequence.computed
        waiting, fetch.reserved = fetch.reserved, []
        if error is not None:
            self._failed(fetch, error, tokens)
        elif fetch.report is not None:
            self._metrics.came(fetch.report)
            self._learned(fetch.peer.host, fetch.report)
        self._over(fetch)
        if error is not None and not self._recompute:
            self._fail(sequence, ApiError(_status(error), f"the KV of the prompt did not come: {error}"))
            return
        for each in waiting:
            if each is not sequence:
                self._copy(sequence, each, tokens)
        for each in waiting:
            # One of those that came later may hold more of it in blocks that it found in the cache.
            self._go_on(each, max(tokens, each.computed))

    def _failed(self, fetch: Fetch, error: TransferError, tokens: int) -> None:
        self._metrics.failed(error.failure)
        fetch.failure = error.failure
        _log.warning(
            "request %s: %d of %d prompt tokens came from %s (%s); %s",
            fetch.request.id,
            fetch.fetched_tokens,
            fetch.tokens,
            fetch.peer.name,
            error,
            f"{len(fetch.request.prompt) - tokens} are computed here" if self._recompute else "it fails",
        )

    def _copy(self, source: Sequence, target: Sequence, tokens: int) -> None:
        """Another answer to the same prompt has blocks of its own."""
        engine = self._engine
        size = engine.model.config.block_size
        blocks = -(-tokens // size)
        pairs = zip(engine.table(source)[:blocks], engine.table(target)[:blocks], strict=True)
        for number, (mine, its) in enumerate(pairs):
            if mine != its and number >= target.computed // size:
                engine.kv.block(its)[:] = engine.kv.block(mine)


def _status(error: TransferError) -> int:
    return 400 if error.failure is Failure.REFUSED else 500
