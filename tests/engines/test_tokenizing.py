"""Token ids made here are the ones that real engines compute with."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from pointsman.edge.prompts.conversation import Dialect
from pointsman.edge.prompts.encoder import NotEncoded, PromptEncoder
from pointsman.edge.prompts.local_prompts import LocalPrompts, load_local_prompts
from pointsman.edge.prompts.tokenizer_files import TokenizerFiles
from pointsman.edge.wire.openai import parse_chat, parse_completion

pytestmark = pytest.mark.engines

CONVERSATIONS = 60
TEMPLATE = """
{%- macro shown(content) %}{% if content is string %}{{ content }}{% else %}
{%- for part in content %}[{{ part.type }}]{{ part.text }}{% endfor %}{% endif %}{% endmacro %}
{%- if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}{{ tool.function.parameters | tojson(indent=1) }}
{% endfor %}<|end|>{% endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' and loop.previtem and loop.previtem.role == 'tool' %}{% continue %}{% endif %}
<|{{ message.role }}|>{{ message['name'] ~ ': ' if message.name else '' }}{{ shown(message.content) | trim }}
    {%- for call in message.tool_calls or [] %}<call>{{ call | tojson }}
        {%- for key, value in call.function.arguments | items %} {{ key }}={{ value }}{% endfor %}</call>
    {%- endfor %}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>
    {{- '' if enable_thinking | default(true) else '<think></think>' }}
{%- endif %}
"""
WORDS = [
    "hello",
    "Wörld",
    " the",
    "\n",
    "12345",
    "日本語",
    "🙂",
    "\t",
    "  ",
    "<|end|>",
    "<|user|>",
    "&<'\"",
    "é",
    "\r\n",
    "x",
]
ARGUMENTS = ["{}", '{"b": 1, "a": [2.50, null, "é"]}', '{"x": {"y": "<>"}}']


def text(rng: random.Random) -> str:
    return rng.choice(["", " "]).join(rng.choices(WORDS, k=rng.randint(0, 12)))


def message(rng: random.Random) -> dict[str, object]:
    role = rng.choice(["system", "user", "user", "assistant", "assistant", "tool"])
    made: dict[str, object] = {"role": role, "content": text(rng)}
    if rng.random() < 0.2:
        made["content"] = [{"type": "text", "text": text(rng)} for _ in range(rng.randint(1, 3))]
    if role == "assistant" and rng.random() < 0.5:
        function = {"name": "find", "arguments": rng.choice(ARGUMENTS)}
        made |= {"content": rng.choice([None, "", "let me see"])}
        made["tool_calls"] = [{"type": "function", "function": function, "id": "call-1"}]
    if role == "tool":
        made["tool_call_id"] = "call-1"
    return made


def chat(rng: random.Random) -> dict[str, object]:
    body: dict[str, object] = {"model": "tiny", "messages": [message(rng) for _ in range(rng.randint(1, 7))]}
    if rng.random() < 0.4:
        function = {"parameters": {"type": "object", "properties": {"a": {"minimum": 1.0}}}, "name": "find"}
        body["tools"] = [{"function": function | rng.choice([{}, {"description": "é <b>"}]), "type": "function"}]
    if rng.random() < 0.2:
        body["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.5}
    return body


@pytest.fixture(scope="module")
def vllm_url(
    start_server: Callable[..., object],
    free_port: Callable[[], int],
    engine_python: str,
    model_folder: str,
    log_folder: Path,
) -> Iterator[str]:
    """A vLLM with a template that shows all that a conversation can have."""
    template = log_folder / "template.jinja"
    template.write_text(TEMPLATE)
    port = free_port()
    command = [
        *(engine_python, "-m", "vllm.entrypoints.openai.api_server", "--model", model_folder),
        *("--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), "--chat-template", str(template)),
        *("--block-size", "32", "--num-gpu-blocks-override", "300", "--max-model-len", "4096", "--enforce-eager"),
    ]
    env = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600",
    }
    server = start_server("vLLM with a template", command, port, log_folder / "vllm-template.log", env)
    try:
        server.wait_ready("/health")
        yield server.url
    finally:
        server.stop()


async def prompts_of(folder: str, dialect: Dialect, template: str | None = None) -> LocalPrompts:
    return await load_local_prompts(TokenizerFiles(Path(folder), "given"), dialect=dialect, chat_template=template)


async def engine_tokens(session: aiohttp.ClientSession, url: str, body: dict[str, object]) -> list[int] | None:
    """None where the engine refuses the request."""
    async with session.post(url + "/tokenize", json=body) as answer:
        if answer.status == 400:
            return None
        assert answer.status == 200, await answer.text()
        tokens: list[int] = (await answer.json())["tokens"]
        return tokens


async def our_tokens(prompts: LocalPrompts, body: dict[str, object]) -> list[int] | None:
    """None where they can't be known."""
    encoder = PromptEncoder()
    encoder.register("tiny", prompts)
    try:
        parsed = parse_chat if "messages" in body else parse_completion
        prompt = await encoder.encode("tiny", parsed(json.dumps(body).encode()))
    finally:
        encoder.close()
    if isinstance(prompt, NotEncoded):
        return None
    assert prompt.complete
    return list(array("I", prompt.tokens))


async def test_chats_as_vllm_tokenizes_them(vllm_url, session, model_folder):
    prompts = await prompts_of(model_folder, Dialect.VLLM, TEMPLATE)
    rng = random.Random(1)

    known = 0
    for _ in range(CONVERSATIONS):
        body = chat(rng)
        if rng.random() < 0.2:
            body["add_generation_prompt"] = False
            body["continue_final_message"] = rng.random() < 0.7
        tokens = await our_tokens(prompts, body)
        known += tokens is not None
        assert tokens == await engine_tokens(session, vllm_url, body), body

    assert known >= 50
    assert prompts.cache.counts.hit_characters > 0


async def test_vllm_computes_with_these_tokens(vllm_url, session, model_folder):
    prompts = await prompts_of(model_folder, Dialect.VLLM, TEMPLATE)
    messages = [{"role": "developer", "content": "be brief"}, {"role": "system", "content": "and kind"}]
    messages.append({"role": "assistant", "content": "yes", "reasoning_content": "hm"})
    body = {
        "model": "tiny",
        "messages": messages,
        "max_tokens": 1,
        "return_token_ids": True,
        "reasoning_effort": "none",
    }

    async with session.post(vllm_url + "/v1/chat/completions", json=body) as answer:
        seen = (await answer.json())["prompt_token_ids"]

    assert await our_tokens(prompts, body) == seen


@pytest.mark.parametrize("special", [True, False])
async def test_completions_as_vllm_tokenizes_them(vllm_url, session, model_folder, special):
    prompts = await prompts_of(model_folder, Dialect.VLLM, TEMPLATE)
    body = {"model": "tiny", "prompt": "Ünï <|end|> code", "add_special_tokens": special}

    tokens = await our_tokens(prompts, body)

    assert tokens
    assert tokens == await engine_tokens(session, vllm_url, body)


async def test_chats_as_sglang_tokenizes_them(sglang, session, model_folder):
    prompts = await prompts_of(model_folder, Dialect.SGLANG)
    rng = random.Random(2)

    known = 0
    for _ in range(CONVERSATIONS):
        body = chat(rng)
        if rng.random() < 0.2:
            body["continue_final_message"] = True
        tokens = await our_tokens(prompts, body)
        known += tokens is not None
        assert tokens == await engine_tokens(session, sglang.url, body), body

    assert known >= 50
