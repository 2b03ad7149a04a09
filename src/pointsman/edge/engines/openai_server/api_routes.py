"""Routes that a vLLM server has."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from pointsman.core.engine_model.engine import RequestRefusedError
from pointsman.core.model.errors import EngineError
from pointsman.edge.engines.openai_server.errors import ApiError, bad_request
from pointsman.edge.engines.openai_server.generation import Generation, Outcome, Output
from pointsman.edge.engines.openai_server.json_answer import send_json
from pointsman.edge.engines.openai_server.listener import Routes
from pointsman.edge.engines.openai_server.metrics import render_metrics
from pointsman.edge.engines.openai_server.requests import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody, parse
from pointsman.edge.engines.openai_server.served_engine import ServedEngine
from pointsman.edge.engines.openai_server.spec import GenerationSpec
from pointsman.edge.engines.openai_server.stream_output import StreamOutput
from pointsman.edge.engines.openai_server.whole_output import WholeOutput
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder

T = TypeVar("T")

logger = logging.getLogger("pointsman.engines.api")

OutputMaker = Callable[[Generation, Responder], Output]
"""How an answer is written."""

VLLM_VERSION = "0.32.0"
"""Version of vLLM whose contract this is."""
_METRICS_HEADERS = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)


class ApiRoutes:
    """OpenAI's and vLLM's own routes."""

    def __init__(self, state: ServedEngine) -> None:
        self._state = state
        self._created = int(time.time())

    def table(self) -> Routes:
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
        makes = await self.admit(responder)
        if makes is None:
            return
        with self._serving():
            body = parse(request.body, ChatBody)
            make = partial(self._state.specs.chat, body, request.body, _request_id(request), int(time.time()))
            await self._generate(await self._made(request, make), responder, makes)

    async def completions(self, request: IncomingRequest, responder: Responder) -> None:
        """`POST /v1/completions`."""
        makes = await self.admit(responder)
        if makes is None:
            return
        with self._serving():
            body = parse(request.body, CompletionBody)
            make = partial(self._state.specs.completion, body, _request_id(request), int(time.time()))
            await self._generate(await self._made(request, make), responder, makes)

    async def admit(self, responder: Responder) -> OutputMaker | None:
        """How a request for tokens is answered; None when it has been. Raises ApiError while the engine drains."""
        if self._state.refusing:
            raise ApiError(503, "this engine drains and takes no new requests; ask another one")
        return self.output

    def output(self, generation: Generation, responder: Responder) -> Output:
        """As the client asked for it: a stream, or an answer in one piece."""
        if generation.spec.stream:
            return StreamOutput(generation, responder, self._state.json_texts)
        return WholeOutput(generation, responder)

    async def models(self, request: IncomingRequest, responder: Responder) -> None:
        """`GET /v1/models`."""
        names, context = self._state.names, self._state.runner.model.config.max_model_len
        cards: list[dict[str, object]] = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "vllm",
                "root": names.root if names.root is not None and name == names.model else name,
                "parent": None if name == names.model else names.model,
                "max_model_len": context if name == names.model else None,
                "permission": [],
            }
            for name in names.all
        ]
        send_json(responder, {"object": "list", "data": cards})

    async def health(self, request: IncomingRequest, responder: Responder) -> None:
        """`GET /health`: an empty 200, or 503 while it is not ready."""
        responder.send(200 if self._state.ready else 503, (), b"")

    async def version(self, request: IncomingRequest, responder: Responder) -> None:
        """`GET /version`."""
        send_json(responder, {"version": self._state.version})

    async def metrics(self, request: IncomingRequest, responder: Responder) -> None:
        """`GET /metrics`."""
        state = self._state
        rank = state.publisher.settings.dp_rank
        page = render_metrics(state.names, rank, state.runner.model, state.metrics, state.more_metrics())
        responder.send(200, _METRICS_HEADERS, page)

    async def load(self, request: IncomingRequest, responder: Responder) -> None:
        """`GET /load`: HTTP requests for tokens that are being served."""
        send_json(responder, {"server_load": self._state.metrics.served})

    async def kv_event_sources(self, request: IncomingRequest, responder: Responder) -> None:
        """`GET /kv_event_sources`: the event configuration by data-parallel rank."""
        publisher = self._state.publisher
        settings = publisher.settings
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
        info = {"title": "FastAPI", "version": self._state.version}
        send_json(responder, {"openapi": "3.1.0", "info": info, "paths": paths})

    async def tokenize(self, request: IncomingRequest, responder: Responder) -> None:
        """`POST /tokenize` of a prompt or messages."""
        state = self._state
        body = parse(request.body, TokenizeBody)
        state.names.check(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise bad_request("Give either `prompt` or `messages`.", "prompt")

        def tokenized() -> tuple[list[int], list[str] | None]:
            if body.messages is not None:
                tokens = state.text.chat(body, request.body)
            else:
                special = body.add_special_tokens is not False
                tokens = state.text.encode(body.prompt or "", add_special_tokens=special)
            named = body.return_token_strs
            return tokens, [state.text.token_text(token) for token in tokens] if named else None

        tokens, token_strs = await self._made(request, tokenized)
        answer = {
            "count": len(tokens),
            "max_model_len": state.runner.model.config.max_model_len,
            "tokens": tokens,
            "token_strs": token_strs,
        }
        send_json(responder, answer)

    async def detokenize(self, request: IncomingRequest, responder: Responder) -> None:
        """`POST /detokenize`."""
        state = self._state
        body = parse(request.body, DetokenizeBody)
        state.names.check(body.model)
        try:
            text = await self._made(request, partial(state.text.decode, body.tokens))
        except ValueError as error:
            raise bad_request(str(error), "tokens") from error
        send_json(responder, {"prompt": text})

    async def reset_prefix_cache(self, request: IncomingRequest, responder: Responder) -> None:
        """`POST /reset_prefix_cache`: 200 whether or not it could be done, as vLLM answers."""
        if not self._state.runner.reset_prefix_cache():
            logger.warning("prefix cache not reset: sequences hold %d blocks", self._state.runner.model.running)
        responder.send(200, (), b"")

    async def _generate(self, spec: GenerationSpec, responder: Responder, makes: OutputMaker) -> None:
        state = self._state
        generation = Generation(spec, state.runner, state.text, state.metrics)
        output = makes(generation, responder)
        try:
            try:
                generation.start(output)
            except RequestRefusedError as error:
                raise bad_request(str(error)) from error
            if await generation.done is Outcome.CUT:
                responder.abort()
        except ApiError as error:
            if not responder.started:
                raise
            output.fail(error.status, error.message)
        except EngineError as error:
            output.fail(500, str(error))
        finally:
            generation.abort()

    async def _made(self, request: IncomingRequest, make: Callable[[], T]) -> T:
        """What is made of the text in a body; long ones hold nobody else up."""
        return await self._state.prompt_work.run(len(request.body), make)

    @contextmanager
    def _serving(self) -> Iterator[None]:
        """A request for tokens, from its body to the end of its answer: engines that stop wait for it."""
        metrics = self._state.metrics  # others after a restart
        metrics.served += 1
        try:
            yield
        finally:
            metrics.served -= 1


def _request_id(request: IncomingRequest) -> str | None:
    value = request.header(b"x-request-id")
    return value.decode("latin-1") if value else None
