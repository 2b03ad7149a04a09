"""What moves the KV of an embedded engine behind its server: the hand-over, joined to sockets, routes and metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import msgspec
from prometheus_client.metrics_core import Metric

from pointsman.core.engine_model.engine import RequestRefusedError
from pointsman.core.model.errors import ConfigError
from pointsman.edge.engines.embedded.handover import KIND, KvHandover
from pointsman.edge.engines.embedded.link_speeds import CodecFor
from pointsman.edge.engines.embedded.state import EmbeddedState
from pointsman.edge.engines.embedded.transfer_metrics import TransferMetrics
from pointsman.edge.engines.embedded.transfer_settings import TransferSettings
from pointsman.edge.engines.openai_server.errors import ApiError, bad_request
from pointsman.edge.engines.openai_server.json_answer import send_json
from pointsman.edge.engines.openai_server.listener import Routes
from pointsman.edge.engines.openai_server.requests import ChatBody, parse
from pointsman.edge.transfer.client import TransferClient
from pointsman.edge.transfer.errors import TransferError
from pointsman.edge.transfer.host import host_id
from pointsman.edge.transfer.messages import PROTOCOL
from pointsman.edge.transfer.negotiation import AUTO, NIXL, allowed
from pointsman.edge.transfer.nixl_agent import NixlAgent, nixl_installed
from pointsman.edge.transfer.server import TransferServer
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder
from pointsman.edge.wire.listening import listen_error

_log = logging.getLogger("pointsman.engines.embedded")
_HTTP_ROUTES = (("POST", "/kv/hold"), ("POST", "/kv/release"), ("GET", "/kv/info"))


class _HoldBody(msgspec.Struct):
    token_ids: list[int] | None = None
    prompt: str | list[int] | None = None
    messages: list[dict[str, object]] | None = None
    model: str | None = None
    max_tokens: int | None = None
    """Not more of them are held; not how many to generate."""
    add_special_tokens: bool = True
    cache_salt: str | None = None


class _ReleaseBody(msgspec.Struct):
    remote_request_id: str


class EmbeddedTransfers:
    """One an engine. A `KvTransfers`."""

    def __init__(
        self,
        state: EmbeddedState,
        handover: KvHandover,
        server: TransferServer,
        nixl: NixlAgent | None,
        ways: tuple[str, ...],
    ) -> None:
        self.handover = handover
        self.server = server
        self._state = state
        self._nixl = nixl
        self._ways = ways

    def routes(self) -> Routes:
        """Routes under `/kv/`."""
        return dict(zip(_HTTP_ROUTES, (self._hold, self._release, self._info), strict=True))

    def metrics(self) -> Iterable[Metric]:
        """Beside those that every engine has."""
        return self.handover.families(self.server.strangers)

    async def close(self) -> None:
        """Move nothing more. May be called twice."""
        await self.handover.close()
        await self.server.close()
        if self._nixl is not None:
            nixl, self._nixl = self._nixl, None
            await asyncio.get_running_loop().run_in_executor(nixl.thread, nixl.close)
            nixl.thread.shutdown(wait=False)
        self._state.runner.engine.kv.memory.close()

    async def _info(self, request: IncomingRequest, responder: Responder) -> None:
        """`GET /kv/info`: what decides whether another engine's KV can be used here."""
        engine, handover = self._state.runner.engine, self.handover
        layout = engine.kv.memory.layout
        send_json(
            responder,
            {
                "kind": KIND,
                "engine_id": handover.name,
                "fingerprint": layout.fingerprint,
                "block_size": layout.block_tokens,
                "dtype": "float32",
                "bytes_per_token": layout.bytes_per_token,
                "transports": self._ways,
                "host_id": host_id(),
                "kv_host": handover.host,
                "kv_port": handover.port,
                "protocol": PROTOCOL,
                "lease_s": handover.leases.lease_s,
                "holds_parts": engine.model.config.prefix_caching,
            },
        )

    async def _hold(self, request: IncomingRequest, responder: Responder) -> None:
        """`POST /kv/hold`: keep the leading blocks of a prompt that are cached here."""
        state = self._state
        if state.refusing:
            raise ApiError(503, "this engine drains and holds nothing more; ask another one")
        body = parse(request.body, _HoldBody)
        model = state.names.check(body.model)
        if body.max_tokens is not None and body.max_tokens < 0:
            raise bad_request(f"max_tokens must not be negative, got {body.max_tokens}.", "max_tokens")
        raw = request.body
        prompt = await state.prompt_work.run(len(raw), lambda: self._tokens(body, raw))
        lora_name = model if model != state.names.model else None
        try:
            lease = await self.handover.held(prompt, body.max_tokens, lora_name, body.cache_salt)
        except RequestRefusedError as error:
            raise bad_request(str(error)) from error
        if lease is None:
            send_json(responder, {"remote_num_tokens": 0})
        else:
            send_json(responder, self.handover.params_of(lease))

    def _tokens(self, body: _HoldBody, raw: bytes) -> list[int]:
        given = [name for name in ("token_ids", "prompt", "messages") if getattr(body, name) is not None]
        if len(given) != 1:
            raise bad_request("Give exactly one of token_ids, prompt and messages.", "token_ids")
        text = self._state.text
        if body.messages is not None:
            tokens = text.chat(parse(raw, ChatBody), raw)
        elif isinstance(body.prompt, str):
            tokens = text.encode(body.prompt, add_special_tokens=body.add_special_tokens)
        else:
            tokens = body.token_ids if body.token_ids is not None else body.prompt or []
        if not tokens:
            raise bad_request("The prompt cannot be empty", given[0])
        if min(tokens) < 0 or max(tokens) >= text.vocabulary:
            wrong = min(tokens) if min(tokens) < 0 else max(tokens)
            raise bad_request(f"Token id {wrong} is out of vocabulary", given[0])
        return tokens

    async def _release(self, request: IncomingRequest, responder: Responder) -> None:
        """`POST /kv/release`: free what is held under a name, at once. Says whether anything was."""
        body = parse(request.body, _ReleaseBody)
        send_json(responder, {"released": self.handover.leases.release(body.remote_request_id)})


async def make_transfers(state: EmbeddedState, settings: TransferSettings) -> EmbeddedTransfers:
    """Listens for transfers. Raises ConfigError for what can't be had here."""
    runner, memory = state.runner, state.runner.engine.kv.memory
    ways = allowed(settings.transport, nixl=nixl_installed(), shm=memory.offer is not None)
    nixl: NixlAgent | None = None
    if NIXL in ways:
        try:
            nixl = await asyncio.to_thread(NixlAgent, memory)
        except TransferError as error:
            if settings.transport != AUTO:
                raise ConfigError(f"--kv-transport nixl: {error}") from error
            ways = tuple(way for way in ways if way != NIXL)
            _log.warning("KV is moved by %s only: %s", " or ".join(ways), error)
    codec_for = CodecFor(settings.codec)
    client = TransferClient("", memory.layout, ways, codec_for=codec_for, nixl=nixl)
    labels = {"engine": str(state.settings.dp_rank), "model_name": state.names.model}
    handover = KvHandover(runner, settings, client, TransferMetrics(labels), learned=codec_for.learned)
    client.name = handover.name
    server = TransferServer(memory, handover.leases, ways, nixl=None if nixl is None else nixl.offer)
    try:
        await server.start(settings.host, settings.port)
    except OSError as error:
        raise listen_error(settings.host, settings.port, "--kv-transfer", error) from error
    handover.port = server.port
    if _is_loopback(settings.host) and not _is_loopback(state.settings.host):
        _log.warning(
            "other hosts are told to read KV at %s, where they can't: give --kv-transfer HOST:PORT, or off",
            settings.host,
        )
    runner.transfers = handover
    return EmbeddedTransfers(state, handover, server, nixl, ways)


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"
