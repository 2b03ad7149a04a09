"""Streams of engines that tell token ids: cut anywhere, the client gets what an undisturbed run would have given."""

from __future__ import annotations

import json
import re

import pytest

from pointsman.core.policies.cost.cost import Cost
from pointsman.edge.decisions.state import unpack_state
from support.sim_fleet import SimFleet, same_time

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "tell me a tale of a bell and a lamp"}]
BODIES = {
    "chat": (CHAT, {"messages": MESSAGES, "max_tokens": 20}),
    "chat_usage": (CHAT, {"messages": MESSAGES, "max_tokens": 20, "stream_options": {"include_usage": True}}),
    "chat_ids": (CHAT, {"messages": MESSAGES, "max_tokens": 20, "return_token_ids": True}),
    "completion": (COMPLETIONS, {"prompt": "once upon", "max_tokens": 20, "temperature": 0.7}),
    "completion_16": (COMPLETIONS, {"prompt": "once upon"}),
    "completion_ids": (COMPLETIONS, {"prompt": [300, 301, 302], "max_tokens": 20, "return_token_ids": True}),
    "continuous": (
        COMPLETIONS,
        {
            "prompt": "once upon",
            "max_tokens": 20,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    ),
}


def without_cached(body: bytes) -> bytes:
    """Usage but for cached tokens: another engine has another cache."""
    return re.sub(rb',"prompt_tokens_details":{[^}]*}', b"", body)


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("cut", [1, 2, 7, 19])
async def test_the_client_cannot_tell(sims: SimFleet, name: str, cut: int) -> None:
    path, body = BODIES[name]
    frontend = await sims.open()
    undisturbed = await sims.ask(path, body)
    assert undisturbed.status == 200
    limit = 16 if name == "completion_16" else 20
    await sims.fault(0, 1, reset_after_tokens=min(cut, limit - 1), requests=1)
    await sims.fault(1)
    answers = [await sims.ask(path, body) for _ in range(2)]
    for answer in answers:
        assert without_cached(same_time(answer.body)) == without_cached(same_time(undisturbed.body))
    [record] = [record for record in frontend.decisions if record.migrations]
    assert (record.row().migrations, record.row().failed_at, record.row().worker) == (1, ["e0/0"], "e1/0")
    assert frontend.traffic.migrations["token_ids", "begun"] == 1
    assert frontend.traffic.migrations["token_ids", "finished"] == 1
    assert next(a for a in answers if a.header(b"x-pointsman-worker") == b"e0/0")
    sims.at_rest()


async def test_usage_is_the_whole_answers(sims: SimFleet) -> None:
    path, body = BODIES["chat_usage"]
    frontend = await sims.open()
    await sims.fault(0, 1, reset_after_tokens=5, requests=1)
    answer = await sims.ask(path, body)
    usage = json.loads(answer.body.split(b"\n\n")[-3].removeprefix(b"data: "))["usage"]
    assert usage["completion_tokens"] == 20
    assert usage["total_tokens"] == usage["prompt_tokens"] + 20
    totals = frontend.ledger.snapshot().totals
    assert (totals.finished, totals.output_tokens, totals.prompt_tokens) == (1, 20, usage["prompt_tokens"])
    assert frontend.traffic.missing_usage == 0


async def test_what_went_on_elsewhere_is_decided_again_as_it_was(sims: SimFleet) -> None:
    """The second decision went by the prompt and what had been generated, so that is what is recorded with it."""
    path, body = BODIES["chat_usage"]
    frontend = await sims.open(engines=3, policy="cost")
    await sims.fault(reset_after_tokens=7, requests=1)  # whoever is asked first, the third one ends it
    await sims.ask(path, body)
    [record] = [record for record in frontend.decisions if record.migrations]
    row = record.row(state=True)
    recorded = unpack_state(row.state)
    generated = 7 * 2
    assert recorded.request.prompt_tokens == row.prompt_expected == row.prompt_tokens + generated
    assert recorded.request.max_output_tokens == 20 - generated
    again = recorded.decide(Cost())
    assert again.worker == row.worker
    assert again.scores.tolist() == record.decision.scores.tolist()


async def test_several_times(sims: SimFleet) -> None:
    path, body = BODIES["chat_usage"]
    frontend = await sims.open(engines=4)
    undisturbed = await sims.ask(path, body)
    await sims.fault(reset_after_tokens=5, requests=1)
    answer = await sims.ask(path, body)
    assert without_cached(same_time(answer.body)) == without_cached(same_time(undisturbed.body))
    assert frontend.traffic.migrations["token_ids", "begun"] == 3
    sims.at_rest()


async def test_not_for_ever(sims: SimFleet) -> None:
    path, body = BODIES["chat_usage"]
    frontend = await sims.open(engines=5)
    await sims.fault(reset_after_tokens=2, requests=1)
    answer = await sims.ask(path, body)
    assert b"migration_limit" in answer.body
    assert b"[DONE]" not in answer.body
    assert frontend.traffic.migrations_refused["limit"] == 1
    assert frontend.traffic.migrations["token_ids", "broken"] == 1
    sims.at_rest()


@pytest.mark.parametrize("fault", [{"error_after_tokens": 4}, {"reset_after_tokens": 4}])
async def test_an_error_event_of_the_engine_never_reaches_the_client(sims: SimFleet, fault: dict[str, int]) -> None:
    path, body = BODIES["completion"]
    await sims.open()
    undisturbed = await sims.ask(path, body)
    await sims.fault(0, 1, requests=1, **fault)
    assert same_time((await sims.ask(path, body)).body) == same_time(undisturbed.body)
    sims.at_rest()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("usage", [False, True])
async def test_a_stop_string_over_the_seam(sims: SimFleet, path: str, usage: bool) -> None:
    """Wherever the stream is cut, the stop string is found and the count of tokens is the undisturbed one."""
    body: dict[str, object] = {"max_tokens": 12, "stream_options": {"include_usage": usage}}
    body |= {"messages": MESSAGES} if path == CHAT else {"prompt": "once upon"}
    frontend = await sims.open(engines=3)
    plain = await sims.ask(path, body)
    text = text_of(plain.body)
    words = text.split()
    body["stop"] = [f"{words[6][1:]} {words[7]}", "never said"]
    undisturbed = await sims.ask(path, body)
    assert text_of(undisturbed.body) == text[: text.index(str(body["stop"][0]))]  # type: ignore[index]
    for cut in range(1, 8):
        await sims.fault(0, 1, reset_after_tokens=cut, requests=1)
        answer = await sims.ask(path, body)
        assert text_of(answer.body) == text_of(undisturbed.body), cut
        assert endings_of(answer.body) == endings_of(undisturbed.body), cut
        await sims.fault()
    assert frontend.traffic.migrations["token_ids", "finished"] >= 4
    sims.at_rest()


def choices_of(body: bytes) -> list[dict]:
    events = [e.removeprefix(b"data: ") for e in body.split(b"\n\n") if e and b"[DONE]" not in e]
    return [choice for event in events for choice in json.loads(event)["choices"]]


def text_of(body: bytes) -> str:
    return "".join(c["text"] if "text" in c else c["delta"].get("content") or "" for c in choices_of(body))


def endings_of(body: bytes) -> object:
    usages = [json.loads(e[6:]).get("usage") for e in body.split(b"\n\n") if e.startswith(b"data: {")]
    reasons = [(c["finish_reason"], c["stop_reason"]) for c in choices_of(body) if c["finish_reason"]]
    counts = [(u["prompt_tokens"], u["completion_tokens"], u["total_tokens"]) for u in usages if u]
    return reasons, counts, body.endswith(b"data: [DONE]\n\n")
