"""Engines that keep the documented contracts of prefill and decode apart, and no more: SGLang, TensorRT-LLM, Mooncake.

They answer over HTTP on loopback as the real ones do, refuse every body that the contract does not know, and write down
what was wrong. What they generate depends on the prompt alone, so that any path to it can be compared.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

MODEL = "m"
ROOM_WAIT_S = 20.0
"""A room that nobody else enters is given up; real engines wait for minutes."""
_OPENAI = {
    "model", "messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature",
    "seed", "stop", "n", "user", "logprobs", "top_logprobs", "tools",
}  # fmt: skip


def prompt_of(body: Mapping[str, Any]) -> str:
    """The prompt as text, however it was given."""
    return json.dumps(body["messages"] if "messages" in body else body["prompt"])


def words_of(prompt: str, count: int) -> list[str]:
    """What a model says to a prompt."""
    return [f" {hashlib.sha256(f'{prompt}{place}'.encode()).hexdigest()[:5]}" for place in range(count)]


def ids_of(prompt: str) -> list[int]:
    """Its token ids."""
    return [byte + 3 for byte in prompt.encode()]


def prompt_of_ids(ids: list[int]) -> str:
    """The way back."""
    return bytes(token - 3 for token in ids).decode()


class RefusedError(Exception):
    """The engine answers with this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class PdEngine:
    """One engine. `fails`: the status that it answers everything with that is asked of its stage."""

    name: str
    fails: int | None = None
    late_s: float = 0.0
    wrong: list[str] = field(default_factory=list)
    """What was asked against the contract."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    left: list[dict[str, Any]] = field(default_factory=list)
    """Requests whose client left before they were answered."""
    port: int = 0
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application()
        for path, answer in self.pages().items():
            app.router.add_get(path, _page(answer))
        for path in ("/v1/chat/completions", "/v1/completions"):
            app.router.add_post(path, self._asked)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def pages(self) -> dict[str, Any]:
        """What GET answers."""
        return {"/health": {}, "/ready": {}, "/v1/models": {"data": [{"id": MODEL, "owned_by": "x"}]}}

    async def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """`words`, `finish`, and members to add to the answer. Raises RefusedError."""
        raise NotImplementedError

    async def _asked(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.asked.append(body)
        chat = request.path.endswith("/chat/completions")
        try:
            try:
                await asyncio.sleep(self.late_s)
                if self.fails is not None:
                    raise RefusedError(self.fails, f"{self.name} was told to fail")
                told = await self.answer(body)
            except RefusedError as error:
                if error.status == 400:
                    self.wrong.append(str(error))
                return web.json_response({"error": {"message": str(error), "code": error.status}}, status=error.status)
            return await _stream(request, told, chat=chat) if body.get("stream") else _plain(told, chat=chat)
        except asyncio.CancelledError:
            self.left.append(body)
            raise

    def known(self, body: dict[str, Any], *more: str) -> None:
        """Raises RefusedError for a member that the schema does not have."""
        unknown = sorted(set(body) - _OPENAI - set(more))
        if unknown:
            raise RefusedError(400, f"{self.name}: unknown fields {unknown}")
        if body.get("stream_options") is not None and not body.get("stream"):
            raise RefusedError(400, f"{self.name}: stream_options without stream")


def _page(answer: Any) -> Any:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text=answer) if isinstance(answer, str) else web.json_response(answer)

    return page


def _parts(told: dict[str, Any]) -> list[dict[str, Any]]:
    """One an answer: of several prompts there are several."""
    parts: list[dict[str, Any]] = told.get("parts", [told])
    return parts


def _choice(told: dict[str, Any], index: int, *, chat: bool) -> dict[str, Any]:
    text = "".join(told["words"])
    said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return {"index": index, **said, "finish_reason": told["finish"], **told.get("choice", {})}


def _usage(told: dict[str, Any]) -> dict[str, Any]:
    prompts, words = (sum(part["prompt_tokens"] for part in _parts(told)), sum(len(p["words"]) for p in _parts(told)))
    return {"prompt_tokens": prompts, "completion_tokens": words, "total_tokens": prompts + words}


def _plain(told: dict[str, Any], *, chat: bool) -> web.Response:
    head = {"id": "x-1", "object": "chat.completion" if chat else "text_completion", "created": 1, "model": MODEL}
    more = told.get("more", {})
    choices = [_choice(part, index, chat=chat) for index, part in enumerate(_parts(told))]
    return web.json_response({**head, "choices": choices, "usage": _usage(told), **more})


async def _stream(request: web.Request, told: dict[str, Any], *, chat: bool) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    head = {"id": "x-1", "object": "chat.completion.chunk" if chat else "text_completion", "created": 1, "model": MODEL}
    for index, part in enumerate(_parts(told)):
        for place, word in enumerate(part["words"]):
            finish = part["finish"] if place == len(part["words"]) - 1 else None
            said = {"delta": {"content": word}} if chat else {"text": word}
            event = {**head, "choices": [{"index": index, **said, "finish_reason": finish}]}
            await response.write(b"data: %b\n\n" % json.dumps(event).encode())
    await response.write(b"data: %b\n\n" % json.dumps({**head, "choices": [], "usage": _usage(told)}).encode())
    await response.write(b"data: [DONE]\n\n")
    return response


def _whole(body: dict[str, Any], prompt: str) -> dict[str, Any]:
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or 16
    return {"words": words_of(prompt, limit), "finish": "length", "prompt_tokens": len(ids_of(prompt))}


# ---- SGLang


@dataclass
class Rooms:
    """Of one prefill engine's bootstrap server."""

    host: str = "127.0.0.1"
    port: int = 9123
    used: set[int] = field(default_factory=set)
    waiting: dict[int, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    """Set when the decode side is there."""
    computed: dict[int, asyncio.Future[str]] = field(default_factory=dict)

    def of(self, body: dict[str, Any], name: str) -> int:
        """The room that a body names. Raises RefusedError."""
        if "bootstrap_room" not in body:
            raise RefusedError(400, f"{name}: disaggregated request received without bootstrap room id")
        room = body["bootstrap_room"]
        if (body.get("bootstrap_host"), body.get("bootstrap_port")) != (self.host, self.port):
            raise RefusedError(400, f"{name}: no bootstrap server there: {body.get('bootstrap_host')}")
        if type(room) is not int or not 0 <= room < 2**63:
            raise RefusedError(400, f"{name}: bootstrap_room {room!r} is no 63-bit number")
        return room

    def kv(self, room: int) -> asyncio.Future[str]:
        return self.computed.setdefault(room, asyncio.get_running_loop().create_future())


class SglangPd(PdEngine):
    """`--disaggregation-mode prefill` or `decode`."""

    def __init__(self, mode: str, rooms: Rooms) -> None:
        super().__init__(f"sglang {mode}")
        self.mode = mode
        self._rooms = rooms

    def pages(self) -> dict[str, Any]:
        info = {
            "version": "0.5.23",
            "served_model_name": MODEL,
            "page_size": 16,
            "context_length": 4096,
            "max_total_num_tokens": 65536,
            "enable_cache_report": False,
            "disaggregation_mode": self.mode,
            "disaggregation_transfer_backend": "mooncake",
            "disaggregation_bootstrap_port": self._rooms.port,
        }
        loads = {"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]}
        return super().pages() | {"/server_info": info, "/v1/loads": loads}

    async def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        self.known(body, "bootstrap_host", "bootstrap_port", "bootstrap_room")
        prompts = body.get("prompt")
        if not isinstance(prompts, list) or not prompts or isinstance(prompts[0], int):
            return await self._in_room(body)
        several = [body.get(name) for name in ("bootstrap_host", "bootstrap_port", "bootstrap_room")]
        if any(not isinstance(value, list) or len(value) != len(prompts) for value in several):
            raise RefusedError(400, f"{self.name}: {len(prompts)} prompts want as many rooms: {several}")
        hosts, ports, rooms = several
        return {
            "parts": await asyncio.gather(
                *(
                    self._in_room(
                        body | {"prompt": one, "bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": room}
                    )
                    for one, host, port, room in zip(prompts, hosts, ports, rooms, strict=True)
                )
            )
        }

    async def _in_room(self, body: dict[str, Any]) -> dict[str, Any]:
        room = self._rooms.of(body, self.name)
        try:
            async with asyncio.timeout(ROOM_WAIT_S):
                return await (self._prefill(body, room) if self.mode == "prefill" else self._decode(body, room))
        except TimeoutError:
            raise RefusedError(500, f"{self.name}: nobody came to room {room}") from None

    async def _prefill(self, body: dict[str, Any], room: int) -> dict[str, Any]:
        if room in self._rooms.used:
            raise RefusedError(400, f"{self.name}: room {room} was used before")
        self._rooms.used.add(room)
        if body.get("stream"):
            raise RefusedError(400, f"{self.name}: a prompt is never streamed here")
        await self._rooms.waiting[room].wait()
        prompt = prompt_of(body)
        self._rooms.kv(room).set_result(prompt)
        return {"words": words_of(prompt, 1), "finish": "length", "prompt_tokens": len(ids_of(prompt))}

    async def _decode(self, body: dict[str, Any], room: int) -> dict[str, Any]:
        self._rooms.waiting[room].set()
        computed = await self._rooms.kv(room)
        if computed != prompt_of(body):
            raise RefusedError(400, f"{self.name}: the other leg has another prompt")
        return _whole(body, computed)


# ---- TensorRT-LLM


@dataclass
class Contexts:
    """What context servers keep for generation servers, by their ids."""

    kept: dict[tuple[int, int], str] = field(default_factory=dict)
    next_id: int = 2**62 + 1
    """Ids that doubles can't hold."""


class TrtllmPd(PdEngine):
    """`trtllm-serve` with a cache transceiver: either role. `ends`: contexts end by themselves after a token."""

    def __init__(self, name: str, contexts: Contexts) -> None:
        super().__init__(name)
        self.ends = False
        self._contexts = contexts

    def pages(self) -> dict[str, Any]:
        models = {"data": [{"id": MODEL, "owned_by": "tensorrt_llm"}]}
        info = {"disaggregated_params": {"ctx_info_endpoint": ["tcp://127.0.0.1:1"]}}
        metrics = (
            "trtllm_num_requests_running 0\ntrtllm_num_requests_waiting 0\ntrtllm_kv_cache_utilization 0\n"
            "trtllm_kv_cache_max_blocks 2000\ntrtllm_kv_cache_tokens_per_block 32\n"
        )
        told = {"/version": {"version": "1.3.0rc2"}, "/v1/models": models, "/server_info": info}
        return super().pages() | told | {"/prometheus/metrics": metrics}

    async def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        params = body.get("disaggregated_params")
        self.known(body, "disaggregated_params", "prompt_token_ids")
        if params is None:
            prompt = body.get("prompt")
            # The probe of the usage asks with token ids.
            return _whole(body, prompt_of(body) if not isinstance(prompt, list) else json.dumps(prompt))
        known = {
            "request_type", "first_gen_tokens", "ctx_request_id", "disagg_request_id", "encoded_opaque_state",
            "draft_tokens", "ctx_usage", "schedule_style",
        }  # fmt: skip
        if set(params) - known:
            raise RefusedError(400, f"{self.name}: unknown disaggregated_params {sorted(set(params) - known)}")
        if params["request_type"] == "context_only":
            return self._context(body, params)
        if params["request_type"] == "generation_only":
            return self._generation(body, params)
        raise RefusedError(400, f"{self.name}: request_type {params['request_type']!r}")

    def _context(self, body: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
        wanted = params.get("disagg_request_id")
        if type(wanted) is not int or not 2**42 <= wanted < 2**63:
            raise RefusedError(400, f"{self.name}: disagg_request_id {wanted!r} is an id of its own")
        if body.get("stream"):
            raise RefusedError(400, f"{self.name}: a context is never streamed")
        self._contexts.next_id += 2
        ctx, prompt = self._contexts.next_id, prompt_of(body)
        told = {
            "request_type": "context_only",
            "first_gen_tokens": [7],
            "ctx_request_id": ctx,
            "disagg_request_id": wanted,
            "encoded_opaque_state": "AAAA",
        }
        if not self.ends:
            self._contexts.kept[ctx, wanted] = prompt
        return {
            "words": words_of(prompt, 1),
            "finish": "stop" if self.ends else "length",
            "prompt_tokens": len(ids_of(prompt)),
            "choice": {"disaggregated_params": told},
            "more": {"prompt_token_ids": ids_of(prompt)},
        }

    def _generation(self, body: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
        prompt = self._contexts.kept.pop((params.get("ctx_request_id"), params.get("disagg_request_id")), None)
        if prompt is None:
            raise RefusedError(400, f"{self.name}: nobody keeps a context of these ids: {params}")
        ids = body.get("prompt_token_ids") if "messages" in body else body.get("prompt")
        if ids != ids_of(prompt):
            raise RefusedError(400, f"{self.name}: the prompt is not given as the context's token ids")
        if params.get("ctx_usage", {}).get("prompt_tokens") != len(ids):
            raise RefusedError(400, f"{self.name}: ctx_usage is not the context's")
        return _whole(body, prompt_of_ids(ids))


# ---- vLLM with MooncakeConnector


@dataclass
class Transfers:
    """Both sides by the id that the caller invented."""

    bootstrap_port: int = 0
    engine_id: str = "engine-of-p"
    seen: set[str] = field(default_factory=set)
    computed: dict[str, asyncio.Future[str]] = field(default_factory=dict)

    def kv(self, transfer: str) -> asyncio.Future[str]:
        return self.computed.setdefault(transfer, asyncio.get_running_loop().create_future())


class MooncakePd(PdEngine):
    """`kv_role` producer or consumer; a producer has a bootstrap server at `Transfers.bootstrap_port`."""

    def __init__(self, name: str, transfers: Transfers, *, produces: bool) -> None:
        super().__init__(name)
        self._transfers = transfers
        self._produces = produces
        self._bootstrap: web.AppRunner | None = None

    def pages(self) -> dict[str, Any]:
        metrics = (
            'vllm:num_requests_running{engine="0"} 0\nvllm:num_requests_waiting{engine="0"} 0\n'
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="4000",engine="0"} 1\n'
        )
        models = {"data": [{"id": MODEL, "owned_by": "vllm", "root": "org/m", "max_model_len": 4096}]}
        return super().pages() | {"/version": {"version": "0.32.0"}, "/v1/models": models, "/metrics": metrics}

    async def start(self) -> None:
        await super().start()
        if not self._produces:
            return
        app = web.Application()
        app.router.add_get("/query", _page({"0": {"engine_id": self._transfers.engine_id, "worker_addr": {}}}))
        self._bootstrap = web.AppRunner(app, access_log=None)
        await self._bootstrap.setup()
        await web.TCPSite(self._bootstrap, "127.0.0.1", 0).start()
        self._transfers.bootstrap_port = self._bootstrap.addresses[0][1]

    async def stop(self) -> None:
        await super().stop()
        if self._bootstrap is not None:
            await self._bootstrap.cleanup()

    async def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        params = body.get("kv_transfer_params")
        self.known(body, "kv_transfer_params", "ignore_eos", "return_token_ids")
        if params is None:
            return _whole(body, prompt_of(body))
        transfer = params.get("transfer_id")
        if not isinstance(transfer, str) or not transfer:
            raise RefusedError(400, f"{self.name}: missing transfer_id in kv_transfer_params")
        if params.get("do_remote_decode") and not params.get("do_remote_prefill") and self._produces:
            return self._produce(body, transfer)
        if params.get("do_remote_prefill") and not params.get("do_remote_decode") and not self._produces:
            return await self._consume(body, params, transfer)
        raise RefusedError(400, f"{self.name}: this leg is not for this side: {params}")

    def _produce(self, body: dict[str, Any], transfer: str) -> dict[str, Any]:
        if transfer in self._transfers.seen:
            raise RefusedError(400, f"{self.name}: transfer_id {transfer} was used before")
        self._transfers.seen.add(transfer)
        prompt = prompt_of(body)
        if body.get("ignore_eos") is not True or body.get("max_tokens") != 1 or body.get("stream"):
            raise RefusedError(400, f"{self.name}: an answer that may end by itself is kept for nobody")
        self._transfers.kv(transfer).set_result(prompt)
        return {"words": words_of(prompt, 1), "finish": "length", "prompt_tokens": len(ids_of(prompt))}

    async def _consume(self, body: dict[str, Any], params: dict[str, Any], transfer: str) -> dict[str, Any]:
        address = f"http://127.0.0.1:{self._transfers.bootstrap_port}"
        wanted = {"remote_engine_id": self._transfers.engine_id, "remote_bootstrap_addr": address}
        if {name: params.get(name) for name in wanted} != wanted:
            raise RefusedError(400, f"{self.name}: nobody is at {params}")
        async with asyncio.timeout(ROOM_WAIT_S):
            computed = await self._transfers.kv(transfer)
        if computed != prompt_of(body):
            raise RefusedError(400, f"{self.name}: the other leg has another prompt")
        return _whole(body, computed)
