"""vLLM's other routes, of both engines of ours."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families


def samples(text: str) -> dict[str, float]:
    """Values by name and by the label that tells series of one name apart."""
    out = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.labels.get("source") or sample.labels.get("finished_reason") or sample.labels.get("le") or ""
            out[f"{sample.name}|{key}" if key else sample.name] = sample.value
    return out


async def test_unknown_paths_and_methods(client: Any) -> None:
    assert (await client.get("/nope")).status == 404
    assert (await client.get("/v1/chat/completions")).status == 405


async def test_metrics_count_what_was_done(client: Any, kind: str) -> None:
    prompt = "one two three four five six"
    for _ in range(2):
        body = (await client.complete(prompt, max_tokens=4)).json
    usage, text = body["usage"], body["choices"][0]["text"]
    await client.complete(prompt, max_tokens=9, stop=text[0])
    text = (await client.get("/metrics")).text
    values = samples(text)
    assert 0 <= values[f"pointsman_{kind}_busy_ratio"] <= 1
    cached = 2 * usage["prompt_tokens_details"]["cached_tokens"]
    assert values["vllm:prompt_tokens_by_source_total|local_cache_hit"] == cached > 0
    computed = 3 * usage["prompt_tokens"] - cached
    assert values["vllm:prompt_tokens_by_source_total|local_compute"] == computed
    assert values["vllm:prompt_tokens_total"] == 3 * usage["prompt_tokens"]
    assert values["vllm:generation_tokens_total"] == 9
    assert values["vllm:request_success_total|length"] == 2
    assert values["vllm:request_success_total|stop"] == 1
    assert values["vllm:time_to_first_token_seconds_count"] == 3
    assert values["vllm:inter_token_latency_seconds_count"] == 6
    assert values["vllm:e2e_request_latency_seconds_count"] == 3
    assert values["vllm:num_requests_running"] == values["vllm:kv_cache_usage_perc"] == 0
    assert 'engine="0",model_name="m"' in text
    assert 'vllm:cache_config_info{block_size="4"' in text
    assert 'num_gpu_blocks="256"' in text


async def test_small_routes(client: Any, kind: str) -> None:
    assert (await client.get("/health")).text == ""
    assert (await client.get("/ping")).status == 200
    assert (await client.get("/version")).json["version"] == f"0.32.0+{kind}"
    assert (await client.get("/load")).json == {"server_load": 0}
    assert "/v1/chat/completions" in (await client.get("/openapi.json")).json["paths"]
    sources = (await client.get("/kv_event_sources")).json
    assert sources["0"]["enable_kv_cache_events"] is False


async def test_an_engine_that_drains_takes_nothing_new(client: Any) -> None:
    client.server.unready()
    assert (await client.get("/health")).status == 503
    assert (await client.complete(max_tokens=1)).status == 200
    client.server.refuse()
    answer = await client.complete(max_tokens=1)
    assert (answer.status, "drains" in answer.json["error"]["message"]) == (503, True)
    assert client.server.in_flight == 0


async def test_tokens_and_their_texts(client: Any) -> None:
    answer = (await client.post("/tokenize", {"prompt": "hello world", "return_token_strs": True})).json
    assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), 512)
    assert "".join(answer["token_strs"]) == "hello world"
    assert (await client.post("/detokenize", {"tokens": answer["tokens"]})).json == {"prompt": "hello world"}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/tokenize", {}, "either `prompt` or `messages`"),
        ("/tokenize", {"prompt": "x", "model": "other"}, "does not exist"),
        ("/detokenize", {"tokens": [-1]}, "token id -1 is out of range"),
        ("/detokenize", {"tokens": [10**8]}, "is out of range"),
        ("/detokenize", {"tokens": "x"}, "Expected `array`"),
    ],
)
async def test_tokenizer_routes_refuse_what_they_can_not_do(client: Any, path: str, body: object, message: str) -> None:
    answer = await client.post(path, body)
    assert answer.status in (400, 404)
    assert message in answer.json["error"]["message"]


async def test_the_prefix_cache_can_be_reset(client: Any) -> None:
    prompt = "a prompt that fills some blocks"
    await client.complete(prompt, max_tokens=4)
    assert client.server.state.runner.model.cached_hashes()
    assert (await client.post("/reset_prefix_cache")).status == 200
    assert client.server.state.runner.model.cached_hashes() == []
    usage = (await client.complete(prompt, max_tokens=4)).json["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
