"""Exact KV routing through `pointsman serve` before real engines that send KV events."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

pytestmark = pytest.mark.engines

STEP_LIMIT_S = 60.0
JOIN_LIMIT_S = 300.0
"""A check that the machine held up is made again after a minute, and then after two."""
CHECKED = "KV events checked: its tokens and blocks are those of the router"
CONFIGURATION = """\
control-plane: {{listen_port: {port}, admin_port: {admin_port}, heartbeat_interval: 2s, debug_headers: true,
  health: {{outliers: false, canary_limit: 60s}}, timeouts: {{connect: 60s}}}}
{routing}
execution-group:
  nodes:
"""
TOOLS = [
    {
        "type": "function",
        "function": {"name": "find", "description": "Finds.", "parameters": {"type": "object", "properties": {}}},
    }
]
Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Answer:
    """What a chat through the front end came to, with its decision."""

    worker: str
    prompt_tokens: int
    cached_tokens: int
    text: str
    decision: dict[str, object]

    @property
    def predicted_tokens(self) -> int:
        """Cached tokens that the chosen worker was thought to hold."""
        return next(c.get("cached_tokens", 0) for c in self.decision["candidates"] if c["worker"] == self.worker)


class FrontEnd:
    """A running `pointsman serve`, asked over HTTP."""

    def __init__(self, server, engines: dict[str, object], session: aiohttp.ClientSession) -> None:
        self.server = server
        self.engines = engines
        self.session = session

    async def chat(self, messages: Messages, *, pin: str | None = None, **fields: object) -> Answer:
        headers = {"x-pointsman-explain": "1"} | ({"x-pointsman-worker": f"{pin}/0"} if pin else {})
        body = {"model": "tiny", "messages": messages, "max_tokens": 1, "temperature": 0} | fields
        return await self._ask("/v1/chat/completions", body, headers)

    async def complete(self, prompt: list[int], **fields: object) -> tuple[Answer, list[int]]:
        """Also the tokens that were generated."""
        body = {"model": "tiny", "prompt": prompt, "temperature": 0, "return_token_ids": True} | fields
        answer = await self._ask("/v1/completions", body, {"x-pointsman-explain": "1"})
        return answer, json.loads(answer.text)["token_ids"]

    async def _ask(self, path: str, body: dict[str, object], headers: dict[str, str]) -> Answer:
        async with self.session.post(self.server.url + path, json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            answer = await response.json()
            decision = json.loads(response.headers["x-pointsman-explain"])
            worker = response.headers["x-pointsman-worker"]
        usage = answer["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        choice = answer["choices"][0]
        text = choice["message"]["content"] if "message" in choice else json.dumps(choice)
        return Answer(worker, usage["prompt_tokens"], cached, text, decision)

    async def direct(self, name: str, messages: Messages, **fields: object) -> None:
        """The same chat, sent to the engine without pointsman."""
        body = {"model": "tiny", "messages": messages, "max_tokens": 1, "temperature": 0} | fields
        await self.post(name, "/v1/chat/completions", body)

    async def post(self, name: str, path: str, body: dict[str, object] | None = None) -> dict[str, object]:
        """A call to the engine itself."""
        engine = self.engines[name]
        headers = {"Authorization": f"Bearer {engine.key}"} if engine.key else {}
        async with self.session.post(engine.url + path, json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            text = await response.text()
        return json.loads(text) if text.startswith("{") else {}

    async def status(self) -> dict[str, object]:
        async with self.session.get(self.server.admin_url + "/v1/status") as response:
            return await response.json()

    async def worker(self, name: str) -> dict[str, object]:
        workers = (await self.status())["workers"]
        return next((worker for worker in workers if worker["id"] == f"{name}/0"), {"kv": {}, "state": "absent"})

    async def told(self, name: str, messages: Messages, **fields: object) -> None:
        """Waits until events have told all full blocks of a chat."""
        body = {"model": "tiny", "messages": messages, "add_generation_prompt": True} | fields
        body.pop("cache_salt", None)
        tokens = (await self.post(name, "/tokenize", body))["tokens"]
        await self.held(name, tokens, cache_salt=fields.get("cache_salt"))

    async def held(self, name: str, tokens: list[int], *, cache_salt: object = None) -> None:
        size = (await self.worker(name))["kv"]["block_size_tokens"]
        wanted = len(tokens) // size * size
        query = {"model": "tiny", "block_size": size, "token_ids": tokens, "cache_salt": cache_salt}

        async def there() -> bool:
            async with self.session.post(self.server.admin_url + "/query", json=query) as response:
                assert response.status == 200, await response.text()
                engines = (await response.json())["default"]
            return bool(engines.get(name, {}).get("longest_matched", 0) >= wanted)

        await until(there, STEP_LIMIT_S, f"{name} announces {wanted} tokens")

    async def at_rest(self, name: str) -> dict[str, object]:
        """Its status once no request is under way: an answer ends for its client before it is counted."""
        seen: dict[str, object] = {}

        async def resting() -> bool:
            seen.update(await self.worker(name))
            return seen["running"] == 0

        await until(resting, STEP_LIMIT_S, f"no request is under way at {name}")
        return seen

    async def complete_view(self, name: str, limit_s: float = JOIN_LIMIT_S) -> None:
        """Waits until the engine's own word is used."""

        async def is_complete() -> bool:
            worker = await self.worker(name)
            return worker["state"] == "ready" and worker["kv"]["confidence"] == 1.0

        await until(is_complete, limit_s, f"the view of {name} is complete")

    async def checked(self, name: str, times: int = 1) -> None:
        """Waits until the log tells of so many checks that the engine agreed in; fails where it tells of more."""

        async def said() -> bool:
            return self.checks(name) >= times

        await until(said, JOIN_LIMIT_S, f"{name} is checked {times} times")
        assert self.checks(name) == times

    def checks(self, name: str) -> int:
        """How many checks of the engine the log tells of in which it agreed."""
        return self.server.log.read_text(errors="replace").count(f" {name}: {CHECKED}")

    async def logged(self, line: str) -> None:
        """Waits until the log has it."""

        async def there() -> bool:
            return line in self.server.log.read_text(errors="replace")

        await until(there, JOIN_LIMIT_S, line)


async def until(holds: Callable[[], Awaitable[bool]], limit_s: float, what: str) -> None:
    try:
        async with asyncio.timeout(limit_s):
            while not await holds():
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"not within {limit_s} s: {what}")


@pytest.fixture(scope="module")
def serve(start_server, free_port, log_folder: Path) -> Callable[..., object]:
    """Starts `pointsman serve` before engines by their names."""

    @contextmanager
    def started(name: str, engines: dict[str, object], tokenizers: dict[str, str] | None = None) -> Iterator[object]:
        port, admin_port = free_port(), free_port()
        routing = f"routing: {{tokenizers: {json.dumps(tokenizers)}}}" if tokenizers else ""
        text = CONFIGURATION.format(port=port, admin_port=admin_port, routing=routing)
        env = {}
        for engine_name, engine in engines.items():
            key = f", api_key_env: KEY_OF_{engine_name.upper()}" if engine.key else ""
            env |= {f"KEY_OF_{engine_name.upper()}": engine.key} if engine.key else {}
            text += f'    - {{name: {engine_name}, url: "{engine.url}", gpu_count: 0{key}}}\n'
        file = log_folder / f"{name}.yaml"
        file.write_text(text)
        command = [sys.executable, "-m", "pointsman.app.cli.main", "serve", "--config", str(file)]
        server = start_server(name, command, port, log_folder / f"{name}.log", env)
        server.admin_url = f"http://127.0.0.1:{admin_port}"
        try:
            server.wait_ready("/ready")
            yield server
        finally:
            server.stop()

    return started


@pytest.fixture(scope="module", autouse=True)
def all_started_at_once(second_vllm, second_sglang) -> None:
    """Side by side, as each takes half a minute."""


@pytest.fixture(scope="module")
def sglangs(sglang, second_sglang) -> dict[str, object]:
    """Only `told` sends events."""
    second_sglang.wait_ready("/health")
    return {"told": second_sglang, "silent": sglang}


@pytest.fixture(scope="module")
def vllm_server(serve, vllms) -> Iterator[object]:
    for engine in vllms.values():
        engine.empty_cache()
    with serve("pointsman-vllm", vllms) as server:
        yield server


@pytest.fixture(scope="module")
def sglang_server(serve, sglangs) -> Iterator[object]:
    with serve("pointsman-sglang", sglangs) as server:
        yield server


@pytest.fixture
async def fleet(vllm_server, vllms, session) -> AsyncIterator[FrontEnd]:
    """Two vLLMs."""
    front_end = FrontEnd(vllm_server, vllms, session)
    for name in vllms:
        await front_end.complete_view(name)
    return front_end


@pytest.fixture
async def sglang_fleet(sglang_server, sglangs, session) -> AsyncIterator[FrontEnd]:
    """An SGLang with events and one without."""
    front_end = FrontEnd(sglang_server, sglangs, session)
    await front_end.complete_view("told")

    async def joined() -> bool:
        return (await front_end.worker("silent"))["state"] == "ready"

    await until(joined, JOIN_LIMIT_S, "the engine without events is ready")
    return front_end


def story(who: str, words: int = 160) -> Messages:
    """No two stories have a block in common."""
    return [{"role": "user", "content": " ".join(f"{who} tells part {i} of a tale" for i in range(words // 7))}]


def turn(messages: Messages, answer: Answer, question: str) -> Messages:
    return [*messages, {"role": "assistant", "content": answer.text}, {"role": "user", "content": question}]


async def test_each_vllm_is_checked_when_it_joins(fleet: FrontEnd):
    for name in fleet.engines:
        await fleet.checked(name)
        kv = (await fleet.worker(name))["kv"]
        assert (kv["state"], kv["confidence"], kv["block_size_tokens"]) == ("complete", 1.0, 32)
        assert kv["blocks"]["gpu"] >= 3
    assert (await fleet.status())["policy_in_force"] == "cost"


async def test_the_second_turn_goes_where_the_first_was(fleet: FrontEnd):
    for who, name in {"Ada": "one", "Grace": "two", "Edsger": "two", "Barbara": "one"}.items():
        first = await fleet.chat(story(who), pin=name)
        await fleet.told(name, story(who))
        second = await fleet.chat(turn(story(who), first, "And then?"))
        assert second.worker == first.worker
        assert second.decision["policy"] == "cost"
        assert second.cached_tokens == second.predicted_tokens >= first.prompt_tokens // 32 * 32 > 200


@pytest.mark.parametrize("name", ["one", "two"])
async def test_a_prompt_is_found_that_was_sent_past_the_router(fleet: FrontEnd, name):
    told = story(f"Stranger of {name}")
    await fleet.direct(name, told)
    await fleet.told(name, told)

    answer = await fleet.chat(told)

    assert answer.worker == f"{name}/0"
    assert answer.cached_tokens == answer.predicted_tokens > 200


async def test_vllm_reports_what_was_predicted(fleet: FrontEnd):
    before = {name: await fleet.at_rest(name) for name in fleet.engines}
    system = [{"role": "system", "content": "You are brief, and you count parts of tales with care. " * 4}]
    chats = {who: [*system, *story(who, 60)] for who in ("Alan", "Kurt", "Emmy", "Sofia")}
    fields = {
        "Alan": {"tools": TOOLS, "tool_choice": "none"},
        "Kurt": {"chat_template_kwargs": {"any": True}},
        "Emmy": {},
        "Sofia": {"cache_salt": "hers"},
    }
    seen = []
    for number in range(3):
        for who, messages in chats.items():
            answer = await fleet.chat(messages, **fields[who])
            assert answer.cached_tokens == answer.predicted_tokens, (who, number)
            await fleet.told(answer.worker.partition("/")[0], messages, **fields[who])
            seen.append(answer)
            chats[who] = turn(messages, answer, f"{who} asks what part {number} means, and why it was told so early.")
    assert sum(answer.cached_tokens for answer in seen[4:]) > 0.5 * sum(answer.prompt_tokens for answer in seen[4:])
    for name, was in before.items():
        now = await fleet.at_rest(name)
        predicted = now["predicted_cached_tokens"] - was["predicted_cached_tokens"]
        assert predicted == now["reported_cached_tokens"] - was["reported_cached_tokens"]
        assert now["drift"] in (None, 0.0)


async def test_what_vllm_generated_is_held_too(fleet: FrontEnd):
    first, generated = await fleet.complete(list(range(100, 200)), max_tokens=80, ignore_eos=True)
    worker = first.worker.partition("/")[0]
    conversation = [*range(100, 200), *generated]
    await fleet.held(worker, conversation[:-1])  # nothing was computed with the last one

    second, _ = await fleet.complete([*conversation, *range(300, 310)], max_tokens=1)

    assert second.worker == first.worker
    assert second.cached_tokens == second.predicted_tokens == 160


async def test_tenants_share_nothing_unless_their_salt_is_the_same(fleet: FrontEnd):
    first = await fleet.chat(story("Niklaus"), cache_salt="tenant one")
    worker = first.worker.partition("/")[0]
    await fleet.told(worker, story("Niklaus"), cache_salt="tenant one")

    same = await fleet.chat(story("Niklaus"), cache_salt="tenant one")
    other = await fleet.chat(story("Niklaus"), cache_salt="tenant two", pin=worker)
    bare = await fleet.chat(story("Niklaus"), pin=worker)

    assert same.worker == first.worker
    assert same.cached_tokens == same.predicted_tokens > 200
    assert other.cached_tokens == other.predicted_tokens == 0
    assert bare.cached_tokens == bare.predicted_tokens == 0


@pytest.mark.parametrize("name", ["one", "two"])
async def test_a_reset_cache_of_vllm_leaves_no_stale_hit_after_a_step(fleet: FrontEnd, name):
    await fleet.chat(story("Donald"), pin=name)
    await fleet.told(name, story("Donald"))
    held = (await fleet.worker(name))["kv"]["blocks"]["gpu"]

    await asyncio.to_thread(fleet.engines[name].empty_cache)
    await fleet.chat(story("Someone else", 40), pin=name)  # vLLM tells of it in its next step

    async def emptied() -> bool:
        return (await fleet.worker(name))["kv"]["blocks"].get("gpu", 0) < held

    await until(emptied, STEP_LIMIT_S, "the view is emptied")
    again = await fleet.chat(story("Donald"), pin=name)
    assert again.cached_tokens == again.predicted_tokens == 0
    assert (await fleet.worker(name))["kv"]["state"] == "complete"


async def test_another_tokenizer_is_named_and_not_used(serve, vllms, session, model_folder, tmp_path):
    wrong = tmp_path / "another"
    shutil.copytree(model_folder, wrong, ignore=shutil.ignore_patterns("*.safetensors"))
    described = json.loads((wrong / "tokenizer.json").read_text())
    described["model"]["merges"] = described["model"]["merges"][:100]
    (wrong / "tokenizer.json").write_text(json.dumps(described))

    with serve("pointsman-wrong", vllms, {"tiny": str(wrong)}) as server:
        front_end = FrontEnd(server, vllms, session)
        for name in vllms:
            what = "what it holds can't be looked up exactly: its tokens differ from the router's from number"
            await front_end.logged(f"{name}: {what}")
            kv = (await front_end.worker(name))["kv"]
            assert kv["confidence"] == 0.0
            assert "set routing.tokenizers to the directory that it loads its own from" in kv["reason"]
        first = await front_end.chat(story("Leslie"))
        second = await front_end.chat(turn(story("Leslie"), first, "And then?"))
        assert second.worker == first.worker
        assert second.cached_tokens > 200


async def test_a_router_that_starts_later_learns_what_is_there(serve, vllms, session):
    """By replay: also the check's own prompt, which every router before it sent."""
    told = story("Tony")
    with serve("pointsman-first", vllms) as server:
        front_end = FrontEnd(server, vllms, session)
        await front_end.complete_view("two")
        await front_end.chat(told, pin="two")
        await front_end.told("two", told)
    with serve("pointsman-later", vllms) as server:
        front_end = FrontEnd(server, vllms, session)
        for name in vllms:
            await front_end.complete_view(name)
            await front_end.checked(name)
        answer = await front_end.chat(told)
        assert answer.worker == "two/0"
        assert answer.cached_tokens == answer.predicted_tokens > 200


async def test_a_killed_vllm_comes_back_without_a_stale_hit(fleet: FrontEnd):
    await fleet.checked("two")  # else the engine would be killed in the middle of its first check
    told = story("Frances")
    await fleet.chat(told, pin="two")
    await fleet.told("two", told)
    fleet.engines["two"].kill()

    meanwhile = await fleet.chat(told)
    assert meanwhile.worker == "one/0"
    fleet.engines["two"].start_again()
    fleet.engines["two"].wait_ready("/health")

    async def back() -> bool:
        worker = await fleet.worker("two")
        return worker["state"] == "ready" and worker["kv"]["confidence"] == 1.0 and bool(worker["kv"]["blocks"])

    await until(back, JOIN_LIMIT_S, "the engine that was restarted is back")
    again = await fleet.chat(told, pin="two")
    assert again.cached_tokens == again.predicted_tokens == 0
    await fleet.told("two", told)
    last = await fleet.chat(turn(told, again, "And then?"), pin="two")
    assert last.cached_tokens == last.predicted_tokens > 200
    await fleet.checked("two", times=2)


async def test_sglang_is_checked_when_it_joins(sglang_fleet: FrontEnd):
    await sglang_fleet.checked("told")

    told, silent = [(await sglang_fleet.worker(name))["kv"] for name in ("told", "silent")]

    assert (told["state"], told["confidence"], told["block_size_tokens"]) == ("complete", 1.0, 16)
    assert silent["state"] == "off"
    assert "--kv-events-config" in silent["reason"]


async def test_a_prompt_is_found_that_was_sent_to_sglang_past_the_router(sglang_fleet: FrontEnd):
    for who in ("Ada", "Grace", "Edsger"):
        await sglang_fleet.direct("told", story(who))
        await sglang_fleet.told("told", story(who))
        answer = await sglang_fleet.chat(story(who))
        assert answer.worker == "told/0"
        assert answer.cached_tokens == answer.predicted_tokens > 200


async def test_sglang_reports_what_was_predicted(sglang_fleet: FrontEnd):
    system = [{"role": "system", "content": "You are brief, and you count parts of tales with care. " * 4}]
    chats = {who: [*system, *story(who, 60)] for who in ("Alan", "Kurt", "Emmy")}
    fields = {"Alan": {"tools": TOOLS}, "Kurt": {"tools": TOOLS, "tool_choice": "none"}, "Emmy": {}}
    seen = []
    for number in range(3):
        for who, messages in chats.items():
            answer = await sglang_fleet.chat(messages, pin="told", **fields[who])
            assert answer.cached_tokens == answer.predicted_tokens, (who, number)
            await sglang_fleet.told("told", messages, **fields[who])
            seen.append(answer)
            chats[who] = turn(messages, answer, f"{who} asks what part {number} means, and why it was told so early.")
    assert sum(answer.cached_tokens for answer in seen[3:]) > 0.5 * sum(answer.prompt_tokens for answer in seen[3:])
    assert (await sglang_fleet.at_rest("told"))["drift"] in (None, 0.0)


async def test_a_flushed_cache_of_sglang_leaves_no_stale_hit(sglang_fleet: FrontEnd):
    await sglang_fleet.chat(story("Donald"), pin="told")
    await sglang_fleet.told("told", story("Donald"))

    await until(lambda: flushed(sglang_fleet, "told"), STEP_LIMIT_S, "SGLang flushes its cache")

    async def emptied() -> bool:
        return not (await sglang_fleet.worker("told"))["kv"]["blocks"].get("gpu", 0)

    await until(emptied, STEP_LIMIT_S, "the view is emptied")
    again = await sglang_fleet.chat(story("Donald"), pin="told")
    assert again.cached_tokens == again.predicted_tokens == 0


async def flushed(front_end: FrontEnd, name: str) -> bool:
    """SGLang refuses to flush for as long as its scheduler is not through with the last request."""
    async with front_end.session.post(front_end.engines[name].url + "/flush_cache") as response:
        return response.status == 200


async def test_salted_prompts_of_sglang_are_not_looked_up_exactly(sglang_fleet: FrontEnd):
    """Its events carry no salt, so nothing is said of them, and the hits of others are not promised."""
    await sglang_fleet.chat(story("Niklaus"), pin="told", cache_salt="one")

    same = await sglang_fleet.chat(story("Niklaus"), pin="told", cache_salt="one")
    other = await sglang_fleet.chat(story("Niklaus"), pin="told", cache_salt="two")

    assert same.cached_tokens > 200
    assert other.cached_tokens == other.predicted_tokens == 0
