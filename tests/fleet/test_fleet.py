"""Cancelling, and prefix reuse, on real engines."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator

import openai
import pytest

pytestmark = pytest.mark.local


def busy_slots(url: str) -> int:
    """Requests that an engine computes, by its own word."""
    with urllib.request.urlopen(f"{url}/slots", timeout=10) as answer:
        return sum(slot["is_processing"] for slot in json.loads(answer.read()))


def wait_for(holds, seconds: float) -> None:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, "took too long"
        time.sleep(0.02)


REQUEST = {"model": "second", "messages": [{"role": "user", "content": "Count to 900."}]}


@pytest.fixture
def engine(up_fleet) -> dict[str, str]:
    return next(w for w in up_fleet.status()["workers"] if "second" in w["models"])


@pytest.fixture
def client(up_fleet, engine) -> Iterator[openai.OpenAI]:
    """Pinned to that engine, and impatient."""
    with openai.OpenAI(
        base_url=f"{up_fleet.url}/v1",
        api_key="x",
        max_retries=0,
        timeout=openai.Timeout(60, read=1.5),
        default_headers={"x-pointsman-worker": engine["id"]},
    ) as client:
        yield client


def test_a_client_that_leaves_its_stream_frees_the_engine_within_a_second(up_fleet, engine, client) -> None:
    stream = client.chat.completions.create(stream=True, max_tokens=1500, extra_body={"ignore_eos": True}, **REQUEST)
    next(iter(stream))
    wait_for(lambda: busy_slots(engine["url"]) == 1, 10.0)
    stream.close()
    wait_for(lambda: busy_slots(engine["url"]) == 0, 1.0)
    wait_for(lambda: up_fleet.running() == 0, 1.0)


def test_a_client_that_leaves_a_plain_request_is_forgotten_within_a_second(up_fleet, engine, client) -> None:
    """The wheel's llama.cpp does not notice that the connection of a plain request is gone, even without a front end
    between; other engines do (tests/engines). What is ours to do is done: the connection is closed, nothing counted."""
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(max_tokens=300, extra_body={"ignore_eos": True}, **REQUEST)
    wait_for(lambda: up_fleet.running() == 0, 1.0)
    wait_for(lambda: busy_slots(engine["url"]) == 0, 60.0)


def test_conversations_find_their_cache_under_the_prefix_policy(up_fleet) -> None:
    """Without KV events the router predicts from what it sent where; the engine's own count says whether that holds."""
    with openai.OpenAI(base_url=f"{up_fleet.url}/v1", api_key="x", max_retries=0) as client:
        for person in ("Ada", "Grace"):
            said = [{"role": "system", "content": f"You talk to {person}. " + f"{person} likes trains. " * 20}]
            workers, cached = set(), []
            for turn in range(3):
                said.append({"role": "user", "content": f"{person} asks question number {turn}."})
                raw = client.chat.completions.with_raw_response.create(
                    model="first", messages=said, max_tokens=8, temperature=0
                )
                answer = raw.parse()
                workers.add(raw.headers["x-pointsman-worker"])
                cached.append(answer.usage.prompt_tokens_details.cached_tokens / answer.usage.prompt_tokens)
                said.append({"role": "assistant", "content": answer.choices[0].message.content})
            assert len(workers) == 1
            assert cached[-1] > 0.7
    wait_for(lambda: up_fleet.running() == 0, 10.0)  # an answer ends for its client before it is counted
    first = [w for w in up_fleet.status()["workers"] if "first" in w["models"]]
    predicted = sum(w["predicted_cached_tokens"] for w in first)
    reported = sum(w["reported_cached_tokens"] for w in first)
    assert predicted > 0
    assert 0.5 < predicted / reported < 2.0
