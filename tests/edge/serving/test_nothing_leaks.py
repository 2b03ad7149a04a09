"""Canaries in prompts and keys, through good, bad and failing requests: none is found in any log, record or page."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.configuration.route_key import RouteKey
from pointsman.edge.configuration.tenants import TenantLimits, Tenants
from pointsman.edge.serving.settings import DecisionLogSettings
from pointsman.edge.serving.tenants.tenancy import TenancySettings
from pointsman.edge.telemetry.logs import set_up_logs
from support.scripted_fleet import DONE, JSON, SSE, Engine, Fleet, delta, hang, stream_three

from .tenants.conftest import keys_text

PROMPT, KEY, UNKNOWN_KEY, ENGINE_KEY, ADMIN_KEY, ANSWER, SESSION = (
    f"canary-{name}-7f3a" for name in ("prompt", "key", "unknown-key", "engine-key", "admin-key", "answer", "session")
)
CANARIES = (PROMPT, KEY, UNKNOWN_KEY, ENGINE_KEY, ADMIN_KEY, ANSWER, SESSION)
CHAT = "/v1/chat/completions"


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """All that is logged, at debug level, also by libraries and asyncio."""
    stream = io.StringIO()
    set_up_logs("debug", stream)
    root, handler = logging.getLogger(), logging.StreamHandler(stream)
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


async def echoes(incoming, responder) -> None:
    """An engine that repeats all that it gets in its error."""
    text = incoming.body.decode("utf-8", "replace") + str(incoming.headers)
    responder.send(400, JSON, json.dumps({"error": {"message": text}}).encode())


async def fails_with_it(incoming, responder) -> None:
    responder.send(500, JSON, incoming.body)


async def says_in_its_stream(incoming, responder) -> None:
    responder.start(200, SSE)
    responder.write(delta(ANSWER))
    responder.write(b'data: {"error": {"message": "' + PROMPT.encode() + b'", "code": 500}}\n\n' + DONE)
    responder.finish()


async def breaks_off(incoming, responder) -> None:
    responder.start(200, SSE)
    responder.write(delta(ANSWER))
    await asyncio.sleep(0)
    responder.abort()


async def bad_usage(incoming, responder) -> None:
    text = json.dumps({"choices": [{"message": {"content": ANSWER}}], "usage": {"prompt_tokens": ANSWER}})
    responder.send(200, JSON, text.encode())


async def breaks_at_once(incoming, responder) -> None:
    responder.abort()


async def breaks_late(incoming, responder) -> None:
    await asyncio.sleep(0.2)
    responder.abort()


ANSWERS = (stream_three, echoes, fails_with_it, says_in_its_stream, breaks_off, bad_usage, breaks_at_once, breaks_late)

GOOD = {"model": "m", "messages": [{"role": "user", "content": PROMPT}], "stream": True}
BODIES = (
    GOOD,
    GOOD | {"stream": False},
    GOOD | {"model": PROMPT},
    GOOD | {"messages": PROMPT},
    GOOD | {"messages": [{"role": PROMPT}]},
    GOOD | {"messages": [{"role": "user", "content": [{"type": PROMPT}]}]},
    GOOD | {"messages": [{PROMPT: PROMPT}]},
    GOOD | {"n": PROMPT},
    GOOD | {"stream_options": PROMPT},
    GOOD | {"tools": PROMPT, "user": PROMPT, "metadata": {"session": SESSION, PROMPT: PROMPT}},
    GOOD | {"chat_template": PROMPT, "chat_template_kwargs": {PROMPT: PROMPT}},
    GOOD | {"max_tokens": PROMPT},
    json.dumps(GOOD).encode()[:-5],
    PROMPT.encode(),
    b"\xff" + PROMPT.encode(),
    b'{"model": "m", "messages": [{"role": "user", "content": "' + PROMPT.encode() + b'\\ud800"}]}',
)
RAW = (
    # too short a length: the rest of the prompt is read as the next request
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\n{'a':"
    + PROMPT.encode()
    + b": x\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: h\r\n" + PROMPT.encode() + b": a\r\nbroken " + PROMPT.encode() + b"\r\n\r\n",
    PROMPT.encode() + b" / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/" + PROMPT.encode() + b"\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: h\r\nexpect: " + PROMPT.encode() + b"\r\ncontent-length: 1\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: " + PROMPT.encode() + b"\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: h\r\ncontent-encoding: " + PROMPT.encode() + b"\r\ncontent-length: 1\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n" + PROMPT.encode() + b"\r\n",
)


async def throw(port: int, data: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    await reader.read()
    writer.close()


async def test_no_canary_is_found_anywhere(fleet: Fleet, tmp_path: Path, logged: io.StringIO) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(keys_text(good=("acme", KEY)))
    engines: list[Engine] = []
    for number, answer in enumerate(ANSWERS):
        engines.append(await fleet.engine(f"e{number}", answer=answer))
    sources = tuple(
        WorkerSource(name=e.name, url=f"http://127.0.0.1:{e.port}", kind="openai", models=("m",), api_key=ENGINE_KEY)
        for e in engines
    )
    frontend = await fleet.open(
        sources=sources,
        tenancy=TenancySettings(keys, Tenants(default=TenantLimits(tokens_per_minute=10**9, concurrency=100))),
        decision_log=DecisionLogSettings(tmp_path / "decisions.jsonl", 10**9, 1, state=1.0),
        route_key=RouteKey.parse("body:metadata.session"),
        debug_headers=True,
        admin_key=ADMIN_KEY,
    )
    asyncio.get_running_loop().set_debug(True)
    statuses: set[int] = set()
    try:
        good = [(b"authorization", b"Bearer " + KEY.encode()), (b"x-pointsman-explain", b"1")]
        for headers in (
            good,
            [*good, (b"x-session", SESSION.encode()), (b"cookie", KEY.encode())],
            [(b"authorization", b"Bearer " + UNKNOWN_KEY.encode())],
            [(b"authorization", UNKNOWN_KEY.encode())],
            [(b"x-api-key", UNKNOWN_KEY.encode()), (b"api-key", KEY.encode())],
        ):
            for body in BODIES:
                for path in (CHAT, f"{CHAT}?api_key={KEY}"):
                    try:
                        statuses.add((await fleet.ask(path, body, headers=headers)).status)
                    except Exception:  # some engines break off: the client sees all kinds of ends
                        statuses.add(0)
        engines[-1].answer = hang
        for engine in engines:
            for _ in range(2):
                pinned = [*good, (b"x-pointsman-worker", f"{engine.name}/0".encode())]
                try:
                    async with asyncio.timeout(0.3 if engine.answer is hang else 30):
                        statuses.add((await fleet.chat(headers=pinned, messages=GOOD["messages"])).status)
                except Exception:
                    statuses.add(0)
        await fleet.ask(f"/v1/models/x?key={KEY}", method="GET")
        await fleet.ask(f"/{PROMPT}?key={KEY}", b"{}", headers=good)
        for data in RAW:
            await throw(int(frontend.url.rpartition(":")[2]), data)
        await fleet.ask("/v1/policy", {"policy": PROMPT}, "PUT", admin=True)
    finally:
        asyncio.get_running_loop().set_debug(False)
    assert {200, 400, 401, 404, 500, 0} <= statuses
    admin = [(b"authorization", b"Bearer " + ADMIN_KEY.encode())]
    pages = {}
    for path in ("/v1/status", "/metrics", "/v1/decisions", "/v1/policies", "/v1/workers"):
        answer = await fleet.ask(path, method="GET", headers=admin, admin=True)
        pages[path] = answer.body.decode()
    await frontend.close()
    pages["log"] = logged.getvalue()
    pages["decision log"] = "".join(file.read_text() for file in tmp_path.glob("decisions*"))
    pages["settings"] = repr(frontend._settings)
    assert "request" in pages["log"]
    assert pages["decision log"].count("\n") > 20
    for where, text in pages.items():
        for canary in CANARIES:
            assert canary not in text, f"{canary} is in {where}: …{text[max(0, text.find(canary) - 300) :][:600]}"
