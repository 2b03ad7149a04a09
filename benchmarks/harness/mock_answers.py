"""The bytes that the mock engine answers with, made once."""

from __future__ import annotations

from typing import Any

import msgspec

MODEL = "mock-model"
CHAT = b"/v1/chat/completions"
TEXT_PATH = b"/v1/completions"
GENERATING = (CHAT, TEXT_PATH)
KV_SOURCES = b"/kv_event_sources"
MODELS = b"/v1/models"
PROMPT_TOKENS = 90
"""Of a request whose prompt was not looked at."""
CACHED_TOKENS = 64

_CHUNK_HEAD = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1795983439,"model":"%s",'
    b'"choices":' % MODEL.encode()
)
_TEXT_EVENT = (
    b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1795983439,"model":"%s","choices":'
    b'[{"index":0,"text":%s,"logprobs":null,"finish_reason":%s}]}\n\n'
)


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _chat_event(delta: bytes, finish: bytes) -> bytes:
    return _CHUNK_HEAD + b'[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}]}\n\n' % (delta, finish)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
ROLE = _framed(_chat_event(b'{"role":"assistant","content":""}', b"null"))
TOKEN = _framed(_chat_event(b'{"content":" token"}', b"null"))
TEXT = _framed(_TEXT_EVENT % (MODEL.encode(), b'" token"', b"null"))
_CHAT_END = _framed(_chat_event(b"{}", b'"length"'))
_TEXT_END = _framed(_TEXT_EVENT % (MODEL.encode(), b'""', b'"length"'))
DONE = _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def stream_end(chat: bool, usage_event: bytes) -> bytes:
    """The finish reason, the usage event if one was asked for, `[DONE]` and the last chunk."""
    return (_CHAT_END if chat else _TEXT_END) + usage_event + DONE


def usage_event(tokens: int) -> bytes:
    """What `stream_options.include_usage` asks for."""
    return _framed(_CHUNK_HEAD + b'[],"usage":%s}\n\n' % msgspec.json.encode(_usage(tokens)))


def whole_answer(chat: bool, tokens: int, prompt_tokens: int = PROMPT_TOKENS) -> bytes:
    """The answer to a request that does not stream."""
    text = " token" * tokens
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    kind = "chat.completion" if chat else "text_completion"
    usage = _usage(tokens, prompt_tokens)
    return json_answer(
        {"id": "cmpl-1", "object": kind, "created": 1, "model": MODEL, "choices": [choice], "usage": usage}
    )


def json_answer(value: Any, status: bytes = b"200 OK") -> bytes:
    """A whole HTTP answer with a JSON body."""
    return _answer(msgspec.json.encode(value), b"application/json", status)


def probe(path: bytes) -> bytes:
    """The answer to a GET."""
    return _PROBES.get(path) or json_answer({"error": {"message": "no such route"}}, b"404 Not Found")


def models(root: str | None = None) -> bytes:
    """The answer of `/v1/models`; `root` is the directory that the model was loaded from."""
    card = {"id": MODEL, "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": 32768, "root": root}
    return json_answer({"object": "list", "data": [card]})


def _answer(body: bytes, kind: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (status, kind, len(body), body)


def _usage(tokens: int, prompt_tokens: int = PROMPT_TOKENS) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
        "prompt_tokens_details": {"cached_tokens": min(CACHED_TOKENS, prompt_tokens - 1)},
    }


_METRICS = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="mock-model"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="mock-model"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="mock-model"} 0.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",num_gpu_blocks="20000",engine="0",enable_prefix_caching="True"} 1.0
"""
_INFO = {
    "model_path": MODEL,
    "tokenizer_path": MODEL,
    "is_generation": True,
    "served_model_name": MODEL,
    "tp_size": 1,
    "dp_size": 1,
}
_PROBES = {
    b"/health": json_answer({}),
    b"/health_generate": json_answer({}),
    MODELS: models(),
    b"/version": json_answer({"version": "0.32.0"}),
    b"/load": json_answer({"server_load": 0}),
    b"/metrics": _answer(_METRICS, b"text/plain; version=0.0.4"),
    b"/get_model_info": json_answer(_INFO),
    b"/model_info": json_answer(_INFO),
    b"/get_server_info": json_answer(_INFO),
    b"/server_info": json_answer(_INFO),
    b"/get_load": json_answer([{"num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0, "dp_rank": 0}]),
}
