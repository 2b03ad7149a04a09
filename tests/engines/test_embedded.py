"""The embedded engine beside real vLLM, with the same model: what is asked of both gets the same answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from pointsman.edge.engines.embedded.loaded_model import load_model
from pointsman.edge.engines.embedded.server import EmbeddedServer
from pointsman.edge.engines.embedded.settings import EmbeddedSettings
from support.engine_client import Answer, Client, text_of

pytestmark = pytest.mark.engines

GREEDY = {"temperature": 0, "max_tokens": 8, "model": "tiny"}
MESSAGES = [{"role": "user", "content": "Hello there, how are you?"}]
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "token ids": {"return_token_ids": True},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "tools": {"tools": [TOOL], "tool_choice": "none"},
    "continued": {
        "messages": [*MESSAGES, {"role": "assistant", "content": "I am"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "parts": {"messages": [{"role": "user", "content": PARTS}]},
    "special tokens shown": {"logit_bias": {"1": 100}, "skip_special_tokens": False, "ignore_eos": True},
    "an end that is waited for": {"stop_token_ids": [60], "logit_bias": {"60": 100}, "min_tokens": 3},
}
TEXTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "token ids": {"return_token_ids": True},
    "logprobs": {"logprobs": 2},
    "logprobs of the token alone": {"logprobs": 0},
    "echo": {"echo": True},
    "echo with logprobs": {"echo": True, "logprobs": 2},
    "echo with the token's own": {"echo": True, "logprobs": 0, "max_tokens": 1},
    "echoes": {"echo": True, "logprobs": 1, "prompt": ["a b", "c d e"]},
    "ids as a prompt": {"prompt": [50, 60, 70, 80]},
    "several prompts": {"prompt": ["a b", "c d"]},
    "penalties": {"presence_penalty": 1.0, "frequency_penalty": 0.5, "max_tokens": 24},
    "repetition": {"repetition_penalty": 1.3, "max_tokens": 24},
    "a token that ends it": {"stop_token_ids": [50], "logit_bias": {"50": 100}},
}
BAD: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": -1},
    "top_p": {"top_p": 0},
    "top_k": {"top_k": -2},
    "min_p": {"min_p": 2},
    "presence_penalty": {"presence_penalty": 3},
    "logprobs": {"logprobs": 100},
    "logit_bias": {"logit_bias": {"999999": 1}},
    "min_tokens": {"min_tokens": 9},
    "stop_token_ids": {"stop_token_ids": [-1]},
    "n": {"n": 2},
    "context": {"max_tokens": 5000},
    "model": {"model": "other"},
}


@pytest.fixture
async def both(exact_vllm: Any, model_folder: str, session: aiohttp.ClientSession) -> AsyncIterator[list[Client]]:
    """vLLM first."""
    async with AsyncExitStack() as stack:
        server = EmbeddedServer(EmbeddedSettings(served_name="tiny", block_size=32, max_model_len=4096))
        await server.start()
        stack.push_async_callback(server.close)
        await server.load(load_model(model_folder))
        yield [Client(session, exact_vllm, GREEDY), Client(session, server, GREEDY)]


def told(answer: Answer) -> list[dict[str, Any]]:
    """What is said of each choice, logprobs apart."""
    assert answer.status == 200, answer.text
    return [
        {
            "text": choice["message"]["content"] if "message" in choice else choice["text"],
            **{name: choice[name] for name in ("finish_reason", "stop_reason", "token_ids", "index")},
        }
        for choice in answer.json["choices"]
    ]


def numbers(logprobs: Any) -> tuple[list[float], Any]:
    """Logprobs by themselves, and everything else of them."""
    found: list[float] = []

    def without(value: Any) -> Any:
        if isinstance(value, float):
            found.append(value)
            return None
        if isinstance(value, dict):
            return {name: without(member) for name, member in value.items()}
        return [without(member) for member in value] if isinstance(value, list) else value

    return found, without(logprobs)


def same(answers: list[Answer]) -> None:
    theirs, ours = answers
    assert told(ours) == told(theirs)
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert ours.json["usage"][name] == theirs.json["usage"][name]
    for our, their in zip(ours.json["choices"], theirs.json["choices"], strict=True):
        odds, names = numbers(our["logprobs"])
        assert (pytest.approx(odds, abs=1e-4), names) == numbers(their["logprobs"])


@pytest.mark.parametrize("case", CHATS)
async def test_chats(both: list[Client], case: str) -> None:
    asked = {"messages": MESSAGES, **GREEDY, **CHATS[case]}
    answers = [await client.post("/v1/chat/completions", asked) for client in both]
    same(answers)
    streams = [(await client.post("/v1/chat/completions", {**asked, "stream": True})).events for client in both]
    assert text_of(streams[1]) == text_of(streams[0])
    assert len(streams[1]) == 1 + answers[1].json["usage"]["completion_tokens"], "an event a token, after the role's"
    # vLLM puts tokens together where whoever sends them gets little time.
    assert len(streams[0]) <= len(streams[1])


@pytest.mark.parametrize("case", TEXTS)
async def test_completions(both: list[Client], case: str) -> None:
    asked = {"prompt": "Once upon a time", **GREEDY, **TEXTS[case]}
    same([await client.post("/v1/completions", asked) for client in both])
    streams = [(await client.post("/v1/completions", {**asked, "stream": True})).events for client in both]
    for index in range(len(streams[0][-1]["choices"])):
        assert text_of(streams[1], index) == text_of(streams[0], index)


@pytest.mark.parametrize("case", BAD)
async def test_both_refuse_what_can_not_be(both: list[Client], case: str) -> None:
    asked = {"prompt": "x", **GREEDY, **BAD[case]}
    theirs, ours = [await client.post("/v1/completions", asked) for client in both]
    assert ours.status == theirs.status >= 400
    assert ours.json["error"]["type"] == theirs.json["error"]["type"]
    param = theirs.json["error"]["param"]
    assert param is None or ours.json["error"]["param"] == param


async def test_tokens_of_texts_and_chats(both: list[Client]) -> None:
    for asked in ({"prompt": "Once upon a time"}, {"messages": MESSAGES}, {"messages": MESSAGES, "tools": [TOOL]}):
        theirs, ours = [(await client.post("/tokenize", {"model": "tiny", **asked})).json for client in both]
        assert ours == theirs
    asked = {"model": "tiny", "tokens": [1, 50, 60, 2]}
    theirs, ours = [(await client.post("/detokenize", asked)).json for client in both]
    assert ours == theirs
