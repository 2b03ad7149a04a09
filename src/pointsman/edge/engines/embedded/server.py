"""The embedded engine as an HTTP server."""

from __future__ import annotations

import logging
import time
from functools import partial

from pointsman.edge.engines.embedded.background import in_background
from pointsman.edge.engines.embedded.blas_threads import limit_blas_threads
from pointsman.edge.engines.embedded.kv_transfers import EmbeddedTransfers, make_transfers
from pointsman.edge.engines.embedded.loaded_model import LoadedModel, load_model
from pointsman.edge.engines.embedded.settings import EmbeddedSettings
from pointsman.edge.engines.embedded.state import EmbeddedState
from pointsman.edge.engines.openai_server.api_routes import ApiRoutes
from pointsman.edge.engines.openai_server.event_publisher import EventPublisher
from pointsman.edge.engines.openai_server.listener import Listener, Routes

_log = logging.getLogger("pointsman.engines.embedded")

_LOADING = "this engine loads its model; ask again soon"


class EmbeddedServer:
    """One engine that listens. `await start()`, then `await load()`; `await close()`."""

    def __init__(self, settings: EmbeddedSettings) -> None:
        self.settings = settings
        self._publisher = EventPublisher(settings.events())
        self._state: EmbeddedState | None = None
        self._transfers: EmbeddedTransfers | None = None
        self._listener = Listener(settings.host, settings.port, {})
        self._listener.unready = _LOADING

    @property
    def state(self) -> EmbeddedState:
        """Its parts. Raises RuntimeError before the model is loaded."""
        if self._state is None:
            raise RuntimeError("the model is not loaded yet")
        return self._state

    @property
    def port(self) -> int:
        """The actual port once started."""
        return self._listener.port

    @property
    def url(self) -> str:
        """Base URL, without a slash at its end."""
        return self._listener.url

    async def start(self) -> None:
        """Listen; everything is answered with 503 until the model is loaded.

        OSError when the port is taken, `EngineError` when an event endpoint is.
        """
        self._publisher.open()
        try:
            await self._listener.listen()
        except OSError:
            self._publisher.close()
            raise

    async def load(self, model: LoadedModel | None = None) -> None:
        """Read the model in a thread, then serve it. Raises ModelFileError, ConfigError. `model`: one that is read."""
        limit_blas_threads(self.settings.threads)
        began_s = time.perf_counter()
        if model is None:
            model = await in_background(partial(load_model, self.settings.model))
        transfer = self.settings.transfer
        if transfer is not None:
            # Made once, here, since it reads all weights.
            await in_background(partial(getattr, model.decoder, "fingerprint"))
        state = EmbeddedState(self.settings, model, self._publisher)
        more: Routes = {}
        if transfer is not None:
            self._transfers = await make_transfers(state, transfer)
            state.transfer_metrics = self._transfers.metrics
            more = self._transfers.routes()
        self._state = state
        self._listener.routes = {**ApiRoutes(state).table(), **more}
        self._listener.unready = None
        config = state.config
        _log.info(
            "%s is loaded from %s in %.1f s: %d layers, %d blocks of %d tokens, context %d",
            state.names.model,
            model.root,
            time.perf_counter() - began_s,
            model.config.layers,
            config.num_blocks,
            config.block_size,
            config.max_model_len,
        )

    async def close(self) -> None:
        """Stop listening, cut what is being answered, close all sockets. May be called twice."""
        await self._listener.hang_up()
        if self._state is not None:
            if self._transfers is not None:
                await self._transfers.close()
            self._state.prompt_work.close()
            await self._state.runner.stop()
        self._publisher.close()

    def unready(self) -> None:
        """`/health` says 503 from now on."""
        self.state.unready = True

    def refuse(self) -> None:
        """Requests for tokens get 503 from now on; what runs goes on."""
        self.state.refusing = True

    @property
    def in_flight(self) -> int:
        """Requests for tokens that are being answered, and those whose KV another engine is to read yet."""
        held = 0 if self._transfers is None else len(self._transfers.handover.leases)
        return self.state.metrics.served + held
