"""Routes that a vLLM server has."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping

import msgspec

from pointsman.core.engine_model.engine import RequestRefusedError
from pointsman.edge.engines.sim.chat_template import render_chat
from pointsman.edge.engines.sim.errors import ApiError, bad_request
from pointsman.edge.engines.sim.faults import Faults, stream_faults
from pointsman.edge.engines.sim.generation import Generation, Outcome
from pointsman.edge.engines.sim.metrics import render_metrics
from pointsman.edge.engines.sim.openai_requests import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody, parse
from pointsman.edge.engines.sim.spec import GenerationSpec, check_model
from pointsman.edge.engines.sim.state import SimState
from pointsman.edge.engines.sim.stream_output import StreamOutput
from pointsman.edge.engines.sim.whole_output import JSON_HEADERS, WholeOutput
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder

logger = logging.getLogger("pointsman.engines.sim")

Route = Callable[[IncomingRequest, Responder], Coroutine[None, None, None]]

VERSION = "0.32.0+sim"
"""Version of vLLM whose contract this is."""
_METRICS_HEADERS = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)


class ApiRoutes:
    """OpenAI's and vLLM's own routes."""

    def __init__(self, state: SimState) -> None:
        self._state = state
        self._created = int(time.time())

    def table(self) -> Mapping[tuple[str, str], Route]:
        """Handler by method and path."""
        return {
            ("POST", "/v1/chat/completions"): self.chat,
            ("POST", "/v1/completions"): self.completions,
            ("GET", "/v1/models"): self.models,
            ("GET", "/health"): self.health,
            ("GET", "/ping"): self.health,
            ("GET", "/version"): self.version,
            ("GET", "/metrics"): self.metrics,
            ("GET", "/load"): self.load,
            ("GET", "/kv_event_sources"): self.kv_event_sources,
            ("GET", "/openapi.json"): self.openapi,
            ("POST", "/tokenize"): self.tokenize,
            ("POST", "/detokenize"): self.detokenize,
            ("POST", "/reset_prefix_cache"): self.reset_prefix_cache,
        }

    async def chat(self, request: IncomingRequest, responder: Responder) -> None:
        """`POST /v1/chat/completions`."""
        faults = await self._faults_before(responder)
        if faults is None:
            return
        body = parse(request.body, ChatBody)
        spec = self._state.specs.chat(body, _request_id(request), int(time.time()))
        await self._generate(spec, responder, faults)

    async def completions(self, request: IncomingRequest, responder: Responder) -> None:
        """`POST /v1/completions`."""
        faults = await self._faults_before(responder)
        if faults is None:
            return
        body = parse(request.body, CompletionBody)
        spec = self._state.specs.completion(body, _request_id(request), int(time.time()))
        await self._generate(spec, responder, faults)

    async def models(self, request: IncomingRequest, responder: Responder) -> None:
        """`GET /v1/models`."""
        settings, context = self._state.settings, self._state.config.max_model_len
        cards: list[dict[str, object]] = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "vllm",
                "root": name,
                "parent": None if name == settings.model else settings.model,
                "max_model_len": context if name == settings.model else None,
                "permission": [],
            }
            for name in settings.models
        ]
        send_json(responder, {"object": "list", "data": cards})

    async def health(self, request: IncomingRequest, responder: Responder) -> None:
        """`GET /health`: an empty 200, or 503 where that fault is on."""
        unready = self._state.unready or self._state.faults.active.unhealthy
        responder.send(503 if unready else 200, (), b"")

    async def version(self, request: IncomingRequest, responder: Responder) -> None:
        """`GET /version`."""
        send_json(responder, {"version": VERSION})

    async def metrics(self, request: IncomingRequest, responder: Responder) -> None:
        """`GET /metrics`."""
        state = self._state
        responder.send(
            200, _METRICS_HEADERS, render_metrics(state.settings, state.runner.engine, state.metrics, state.runner.busy)
        )

    async def load(self, request: IncomingRequest, responder: Responder) -> None:
        """`GET /load`: HTTP requests for tokens that are being served."""
        send_json(responder, {"server_load": self._state.metrics.served})

    async def kv_event_sources(self, request: IncomingRequest, responder: Responder) -> None:
        """`GET /kv_event_sources`: the event configuration by data-parallel rank."""
        publisher, settings = self._state.publisher, self._state.settings
        enabled = publisher.endpoint is not None
        source = {
            "enable_kv_cache_events": enabled,
            "publisher": "zmq" if enabled else "null",
            "endpoint": publisher.endpoint,
            "replay_endpoint": publisher.replay_endpoint,
            "buffer_steps": settings.replay_batches,
            "topic": settings.topic,
        }
        send_json(responder, {str(settings.dp_rank): source})

    async def openapi(self, request: IncomingRequest, responder: Responder) -> None:
        """`GET /openapi.json`: the paths that there are, nothing about their bodies."""
        paths: dict[str, dict[str, object]] = {}
        for method, path in self.table():
            paths.setdefault(path, {})[method.lower()] = {}
        info = {"title": "FastAPI", "version": VERSION}
        send_json(responder, {"openapi": "3.1.0", "info": info, "paths": paths})

    async def tokenize(self, request: IncomingRequest, responder: Responder) -> None:
        """`POST /tokenize` of a prompt or messages."""
        state = self._state
        body = parse(request.body, TokenizeBody)
        check_model(state.settings, body.model)
        if (body.prompt is None) == (body.messages is None):
            raise bad_request("Give either `prompt` or `messages`.", "prompt")
        if body.messages is not None:
            tokens = render_chat(state.tokenizer, body.messages, body.tools, open_answer=body.add_generation_prompt)
        else:
            tokens = state.tokenizer.encode(body.prompt or "")
        answer = {
            "count": len(tokens),
            "max_model_len": state.config.max_model_len,
            "tokens": tokens,
            "token_strs": [state.tokenizer.text_of(t) for t in tokens] if body.return_token_strs else None,
        }
        send_json(responder, answer)

    async def detokenize(self, request: IncomingRequest, responder: Responder) -> None:
        """`POST /detokenize`."""
        state = self._state
        body = parse(request.body, DetokenizeBody)
        check_model(state.settings, body.model)
        try:
            text = state.tokenizer.decode(body.tokens)
        except ValueError as error:
            raise bad_request(str(error), "tokens") from error
        send_json(responder, {"prompt": text})

    async def reset_prefix_cache(self, request: IncomingRequest, responder: Responder) -> None:
        """`POST /reset_prefix_cache`: 200 whether or not it could be done, as vLLM answers."""
        if not self._state.runner.reset_prefix_cache():
            logger.warning("prefix cache not reset: sequences hold %d blocks", self._state.runner.engine.running)
        responder.send(200, (), b"")

    async def _faults_before(self, responder: Responder) -> Faults | None:
        """Faults that hit before an answer begins; None when one of them was the answer."""
        if self._state.refusing:
            raise ApiError(503, "this engine drains and takes no new requests; ask another one")
        faults = self._state.faults.next_request()
        if faults.refuse:
            responder.abort()
            return None
        if faults.hang:
            await asyncio.get_running_loop().create_future()
        if faults.first_byte_delay_ms:
            await asyncio.sleep(faults.first_byte_delay_ms / 1000)
        if faults.error_status is not None:
            raise ApiError(faults.error_status, f"status {faults.error_status} was asked for (injected fault)")
        return faults

    async def _generate(self, spec: GenerationSpec, responder: Responder, faults: Faults) -> None:
        state, metrics = self._state, self._state.metrics
        generation = Generation(spec, state.runner, state.tokenizer, metrics)
        midway = stream_faults(faults)
        metrics.served += 1
        try:
            try:
                if spec.stream:
                    generation.start(StreamOutput(generation, responder, midway, state.json_texts))
                else:
                    generation.start(WholeOutput(generation, responder, midway))
            except RequestRefusedError as error:
                raise bad_request(str(error)) from error
            if await generation.done is Outcome.CUT:
                responder.abort()
        finally:
            metrics.served -= 1
            generation.abort()


def send_json(responder: Responder, body: object, status: int = 200) -> None:
    """A whole JSON answer."""
    responder.send(status, JSON_HEADERS, msgspec.json.encode(body))


def _request_id(request: IncomingRequest) -> str | None:
    value = request.header(b"x-request-id")
    return value.decode("latin-1") if value else None
