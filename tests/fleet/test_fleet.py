"""Cancelling, and prefix reuse, on real engines."""

from __future__ import annotations

import json
import time
import urllib.request

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


# llama.cpp looks whether the client of a plain request is still there once a second only.
@pytest.mark.parametrize(("streams", "limit_s"), [(True, 1.0), (False, 3.0)])
def test_a_client_that_leaves_frees_the_engine(up_fleet, streams: bool, limit_s: float) -> None:
    worker = next(w for w in up_fleet.status()["workers"] if "second" in w["models"])
    client = openai.OpenAI(
        base_url=f"{up_fleet.url}/v1",
        api_key="x",
        max_retries=0,
        timeout=openai.Timeout(60, read=1.5),
        default_headers={"x-pointsman-worker": worker["id"]},
    )
    request = {"model": "second", "messages": [{"role": "user", "content": "Count to 9000."}], "max_tokens": 1500}
    with client:
        if streams:
            stream = client.chat.completions.create(stream=True, extra_body={"ignore_eos": True}, **request)
            next(iter(stream))
            assert busy_slots(worker["url"]) == 1
            stream.close()
        else:
            with pytest.raises(openai.APITimeoutError):
                client.chat.completions.create(extra_body={"ignore_eos": True}, **request)
    wait_for(lambda: up_fleet.running() == 0, 1.0)
    wait_for(lambda: busy_slots(worker["url"]) == 0, limit_s)


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
    first = [w for w in up_fleet.status()["workers"] if "first" in w["models"]]
    predicted = sum(w["predicted_cached_tokens"] for w in first)
    reported = sum(w["reported_cached_tokens"] for w in first)
    assert predicted > 0
    assert 0.5 < predicted / reported < 2.0
