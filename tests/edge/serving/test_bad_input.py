"""Whatever a client sends, it gets an answer in OpenAI's shape that names the fault, and nothing stays in flight."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest

from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.wire.http1_server import ServerLimits
from support.scripted_fleet import DONE, SSE, Fleet, delta, usage_event

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGE = [{"role": "user", "content": "hi"}]

CASES = [
    (CHAT, b"", 400, None, "body"),
    (CHAT, b"{", 400, None, "JSON"),
    (CHAT, b"[1]", 400, None, "object"),
    (CHAT, b"\xff\xfe{}", 400, None, ""),
    (CHAT, b"[" * 200_000, 400, None, ""),
    (CHAT, b'{"messages":[{"role":"user","content":"x"}]}', 400, "model", "model"),
    (CHAT, {"model": 5, "messages": MESSAGE}, 400, "model", "expected"),
    (CHAT, {"model": "m"}, 400, "messages", "messages"),
    (CHAT, {"model": "m", "messages": []}, 400, "messages", "at least one"),
    (CHAT, {"model": "m", "messages": "hi"}, 400, "messages", "array"),
    (CHAT, {"model": "m", "messages": [{"content": "x"}]}, 400, "messages[0].role", "role"),
    (CHAT, {"model": "m", "messages": MESSAGE, "stream": "yes"}, 400, "stream", "bool"),
    (CHAT, {"model": "m", "messages": MESSAGE, "n": "two"}, 400, "n", "int"),
    (CHAT, {"model": "m", "messages": MESSAGE, "max_tokens": 1.5}, 400, "max_tokens", "int"),
    (CHAT, {"model": "m", "messages": MESSAGE, "stream_options": 7}, 400, "stream_options", "object"),
    (CHAT, {"model": "nope", "messages": MESSAGE}, 404, "model", "known: m"),
    (COMPLETIONS, {"model": "m"}, 400, "prompt", "prompt"),
    (COMPLETIONS, {"model": "m", "prompt": []}, 400, "prompt", "empty"),
    (COMPLETIONS, {"model": "m", "prompt": {"x": 1}}, 400, "prompt", "string"),
    (COMPLETIONS, {"model": "m", "prompt": [1, "x"]}, 400, "prompt[1]", "int"),
    ("/v1/embeddings", {"input": "x"}, 400, "model", "model"),
    ("/v1/responses", {"model": None}, 400, "model", "expected"),
]


@pytest.mark.parametrize(("path", "body", "status", "param", "words"), CASES)
async def test_the_answer_names_the_field(fleet: Fleet, path, body, status, param, words) -> None:
    engine = await fleet.engine("a")
    await fleet.open()
    answer = await fleet.ask(path, body)
    error = json.loads(answer.body)["error"]
    assert answer.status == status
    assert set(error) == {"message", "type", "param", "code"}
    assert words in error["message"]
    assert error["param"] == param
    assert engine.requests == []
    assert fleet.frontend.traffic.responses[path, status] == 1
    fleet.at_rest()


async def test_an_unknown_model_has_openais_code(fleet: Fleet) -> None:
    await fleet.engine("a")
    await fleet.open()
    answer = await fleet.chat(model="gpt-9")
    assert json.loads(answer.body)["error"]["code"] == "model_not_found"


async def test_while_an_engine_is_not_reached_an_unknown_model_may_still_come(fleet: Fleet) -> None:
    nobody = WorkerSource(name="late", url="http://127.0.0.1:9")
    await fleet.open(sources=(nobody,))
    answer = await fleet.chat()
    assert (answer.status, answer.header(b"retry-after")) == (503, b"1")
    error = json.loads(answer.body)["error"]
    assert error["code"] == "engine_not_reached"
    assert "late (" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/health", 405),
        ("POST", "/v1/nothing", 404),
        ("GET", "/", 404),
        ("GET", "/v1/models/nope", 404),
        ("OPTIONS", CHAT, 405),
    ],
)
async def test_wrong_routes_and_methods(fleet: Fleet, method: str, path: str, status: int) -> None:
    await fleet.engine("a")
    await fleet.open()
    answer = await fleet.ask(path, b"{}" if method == "POST" else None, method)
    assert answer.status == status
    assert path in json.loads(answer.body)["error"]["message"] or "nope" in answer.body.decode()


async def test_a_body_beyond_the_limit_is_a_413(fleet: Fleet) -> None:
    await fleet.engine("a")
    await fleet.open(limits=ServerLimits(max_body_bytes=1000))
    answer = await fleet.chat(messages=[{"role": "user", "content": "x" * 2000}])
    assert answer.status == 413
    assert "1000" in json.loads(answer.body)["error"]["message"]


async def test_a_policy_that_breaks_its_contract_is_a_500_and_leaks_nothing(fleet: Fleet) -> None:
    class Broken:
        name = "broken"

        def decide(self, request, view, timing, now_ms, rng):
            raise ZeroDivisionError("oops")

    engine = await fleet.engine("a")
    await fleet.open()
    fleet.frontend.policy.policy = Broken()
    answer = await fleet.chat()
    assert answer.status == 500
    assert json.loads(answer.body)["error"]["code"] == "policy_failed"
    assert "oops" not in answer.body.decode()
    assert engine.requests == []
    assert fleet.frontend.ledger.snapshot().totals.failed == 1
    fleet.at_rest()


@pytest.mark.parametrize("policy", ["cost", "kv", "power_of_two"])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": MESSAGE, "n": 2**63}),
        (CHAT, {"messages": MESSAGE, "n": 2**62, "max_tokens": 2**62}),
        (CHAT, {"messages": MESSAGE, "max_completion_tokens": 10**30}),
        (COMPLETIONS, {"prompt": ["x"] * 99, "n": 10**18, "best_of": 10**30}),
        (COMPLETIONS, {"prompt": [10**30], "max_tokens": 2**63 - 1}),
        (COMPLETIONS, {"prompt": "x", "max_tokens": -(10**30), "n": -(2**70)}),
    ],
)
async def test_numbers_beyond_reason_are_the_engines_to_refuse(fleet: Fleet, policy, path, fields, caplog) -> None:
    """No counter may break over them: it would stay broken for everybody."""
    engine = await fleet.engine("a")
    await fleet.open(policy=policy)
    for _ in range(3):
        answer = await fleet.ask(path, {"model": "m", "stream": True, **fields})
        assert answer.status == 200
    assert len(engine.requests) == 3
    fleet.frontend._ticks.turn()
    assert "a tick failed" not in caplog.text
    fleet.at_rest()
    assert fleet.frontend.ledger.snapshot().totals.failed == 0


ODD: list[object] = [
    None,
    True,
    -1,
    2**63,
    -(2**70),
    1e308,
    "x",
    "\ud800",
    [],
    {},
    [[]],
    [2**70],
    ["a"],
    {"a": {"b": [1]}},
]
BODIES = {CHAT: {"messages": MESSAGE}, COMPLETIONS: {"prompt": "x"}, "/v1/embeddings": {"input": "x"}}
BODIES |= {"/v1/responses": {"input": "x"}}
FIELDS = [
    "model", "messages", "prompt", "stream", "n", "best_of", "max_tokens", "max_completion_tokens", "min_tokens",
    "stream_options", "user", "cache_salt", "add_special_tokens", "truncate_prompt_tokens", "echo",
    "return_token_ids", "tools", "tool_choice", "metadata", "documents", "reasoning_effort",
    "add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs", "prompt_embeds",
    "temperature", "seed", "stop", "logprobs", "response_format", "input", "max_output_tokens",
    "kv_transfer_params", "bootstrap_room", "use_beam_search",
]  # fmt: skip


async def test_no_value_of_any_field_breaks_anything(fleet: Fleet, caplog) -> None:
    async def answers(incoming, responder) -> None:
        responder.start(200, SSE)
        for part in (delta("one"), usage_event(), DONE):
            responder.write(part)
        responder.finish()

    statuses = Counter[int]()
    await fleet.engine("a", answer=answers)
    await fleet.open(policy="cost")
    for number, (field, value) in enumerate(itertools.product(FIELDS, ODD)):
        path = next((path for path, body in BODIES.items() if field in body), list(BODIES)[number % 2])
        body = {"model": "m", "stream": True, **BODIES[path], field: value}
        statuses[(await fleet.ask(path, body)).status] += 1
    assert statuses.keys() <= {200, 400, 404}
    assert min(statuses[200], statuses[400]) > 50, "what is sent proves little"
    fleet.frontend._ticks.turn()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    fleet.at_rest()


@pytest.mark.parametrize("usage", [(10**30, 3, 4), (10, 2**63, 4), (-5, 3, 0), (10, 3, 2**63)])
async def test_what_an_engine_says_of_usage_is_not_believed_beyond_reason(fleet: Fleet, usage, caplog) -> None:
    async def lying(incoming, responder) -> None:
        responder.start(200, SSE)
        for part in (delta("one"), usage_event(*usage), DONE):
            responder.write(part)
        responder.finish()

    await fleet.engine("a", answer=lying)
    await fleet.open()
    for _ in range(3):
        answer = await fleet.chat(stream=True)
        assert answer.status == 200
        assert b'"usage"' not in answer.body
    fleet.frontend._ticks.turn()
    assert "a tick failed" not in caplog.text
    fleet.at_rest()
    totals = fleet.frontend.ledger.snapshot().totals
    assert (totals.failed, totals.finished) == (0, 3)
    assert 0 <= totals.reported_cached_tokens <= totals.prompt_tokens <= 30
    assert 0 <= totals.output_tokens <= 9


async def test_requests_without_a_route_are_counted_too(fleet: Fleet) -> None:
    await fleet.engine("a")
    await fleet.open(limits=ServerLimits(max_body_bytes=1000))
    await fleet.ask("/nothing", b"{}")
    await fleet.ask("/v1/models", b"{}")
    await fleet.chat(messages=[{"role": "user", "content": "x" * 2000}])
    assert dict(fleet.frontend.traffic.responses) == {("none", 404): 1, ("none", 405): 1, ("none", 413): 1}
