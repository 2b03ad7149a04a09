"""Cancelling, and prefix reuse, on real engines."""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.request
from urllib.parse import urlsplit

import openai
import pytest

pytestmark = pytest.mark.local


LIMIT_S = 120.0
TOKENS = 1500


def busy_slots(url: str) -> int:
    """Requests that an engine computes, by its own word."""
    with urllib.request.urlopen(f"{url}/slots", timeout=60) as answer:
        return sum(slot["is_processing"] for slot in json.loads(answer.read()))


def generated(url: str) -> int:
    """Tokens that an engine has generated for all whom it serves no more."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        (count,) = re.findall(r"^llamacpp:tokens_predicted_total (\d+)", answer.read().decode(), re.MULTILINE)
        return int(count)


def wait_for(holds) -> None:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < LIMIT_S, "took too long"
        time.sleep(0.02)


REQUEST = {"model": "second", "messages": [{"role": "user", "content": "Count to 900."}], "ignore_eos": True}


@pytest.fixture
def engine(up_fleet) -> dict[str, str]:
    return next(w for w in up_fleet.status()["workers"] if "second" in w["models"])


def asked(up_fleet, engine, **fields) -> http.client.HTTPConnection:
    """A connection on which that engine's answer is waited for."""
    connection = http.client.HTTPConnection(urlsplit(up_fleet.url).netloc, timeout=LIMIT_S)
    headers = {"content-type": "application/json", "x-pointsman-worker": engine["id"]}
    connection.request("POST", "/v1/chat/completions", json.dumps(REQUEST | fields), headers)
    wait_for(lambda: busy_slots(engine["url"]) == 1)
    return connection


def test_a_client_that_leaves_its_stream_frees_the_engine(up_fleet, engine) -> None:
    """Long before all is computed that it had asked for."""
    before = generated(engine["url"])
    connection = asked(up_fleet, engine, stream=True, max_tokens=TOKENS)
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: ")
    answer.close()
    connection.close()
    wait_for(lambda: busy_slots(engine["url"]) == 0)
    assert 0 < generated(engine["url"]) - before < TOKENS
    wait_for(lambda: up_fleet.running() == 0)


def test_a_client_that_leaves_a_plain_request_is_forgotten_at_once(up_fleet, engine) -> None:
    """The wheel's llama.cpp does not notice that the connection of a plain request is gone, even without a front end
    between; other engines do (tests/engines). What is ours to do is done: the connection is closed, nothing counted."""
    before = generated(engine["url"])
    connection = asked(up_fleet, engine, max_tokens=TOKENS // 5)
    connection.close()
    wait_for(lambda: up_fleet.running() == 0)
    assert generated(engine["url"]) == before, "it computes on, and nobody here waits for it"
    wait_for(lambda: busy_slots(engine["url"]) == 0)


def cached_tokens(up_fleet) -> tuple[int, int]:
    """Of the first model's prompts, as predicted and as reported."""
    first = [w for w in up_fleet.status()["workers"] if "first" in w["models"]]
    return sum(w["predicted_cached_tokens"] for w in first), sum(w["reported_cached_tokens"] for w in first)


def test_conversations_find_their_cache_under_the_prefix_policy(up_fleet) -> None:
    """Without KV events the router predicts from what it sent where; the engine's own count says whether that holds."""
    predicted_before, reported_before = cached_tokens(up_fleet)
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
    wait_for(lambda: up_fleet.running() == 0)  # an answer ends for its client before it is counted
    # Other tests have asked the same engines, also past the router.
    predicted, reported = cached_tokens(up_fleet)
    predicted, reported = predicted - predicted_before, reported - reported_before
    assert predicted > 0
    assert 0.5 < predicted / reported < 2.0
