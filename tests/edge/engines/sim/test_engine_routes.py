from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families


def samples(text: str) -> dict[str, float]:
    """Values by name and by the label that tells series of one name apart."""
    out = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.labels.get("source") or sample.labels.get("finished_reason") or sample.labels.get("le") or ""
            out[f"{sample.name}|{key}" if key else sample.name] = sample.value
    return out


async def test_running_and_waiting_are_gauges_of_now(start_sim: Any, client_of: Any, eventually: Any) -> None:
    server = await start_sim(profile="tiny", max_num_seqs=2, loras=("ad",))
    client = client_of(server)
    engine = server.state.runner.engine
    body = b'{"model": "ad", "prompt": "x", "n": 3, "max_tokens": 400, "stream": true}'
    async with client.session.post(server.url + "/v1/completions", data=body):
        await eventually(lambda: engine.running == 2)
        text = (await client.get("/metrics")).text
        values = samples(text)
        assert (values["vllm:num_requests_running"], values["vllm:num_requests_waiting"]) == (2, 1)
        assert 0 < values["vllm:kv_cache_usage_perc"] < 1
        assert 0 < values["pointsman_sim_busy_ratio"] <= 1
        assert 'running_lora_adapters="ad",waiting_lora_adapters="ad"' in text
        state = (await client.get("/sim/requests")).json
        assert [row["state"] for row in state["requests"]] == ["running", "running", "waiting"]
        assert (await client.get("/load")).json == {"server_load": 1}


async def test_tokenize_and_detokenize(client: Any) -> None:
    answer = (await client.post("/tokenize", {"prompt": "hello world", "return_token_strs": True})).json
    assert (answer["count"], answer["max_model_len"]) == (4, 512)
    assert answer["token_strs"] == ["hell", "o", " worl", "d"]
    assert (await client.post("/detokenize", {"tokens": answer["tokens"]})).json == {"prompt": "hello world"}


async def test_the_prefix_cache_can_be_reset(client: Any) -> None:
    await client.complete("a prompt that fills some blocks", max_tokens=4)
    blocks = (await client.get("/sim/blocks")).json
    gpu = blocks["media"]["GPU"]
    assert gpu["blocks"] == len(set(gpu["hashes"])) > 0
    assert gpu["tokens"] == 4 * gpu["blocks"]
    assert (await client.post("/reset_prefix_cache")).status == 200
    assert (await client.get("/sim/blocks")).json["media"]["GPU"]["hashes"] == []
