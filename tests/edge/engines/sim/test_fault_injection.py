from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest


async def read_raw(client: Any, **fields: object) -> tuple[str, Exception | None]:
    """Text of a stream up to its end or its break, and the break."""
    body = {"model": "m", "prompt": "x", "max_tokens": 10, "stream": True, **fields}
    text = b""
    try:
        async with client.session.post(client.server.url + "/v1/completions", json=body) as response:
            async for piece in response.content.iter_any():
                text += piece
    except aiohttp.ClientError as error:
        return text.decode(), error
    return text.decode(), None


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_a_reset_comes_after_exactly_that_many_tokens(client: Any, events_in: Any, after: int) -> None:
    await client.faults(reset_after_tokens=after)
    text, error = await read_raw(client)
    assert isinstance(error, aiohttp.ClientPayloadError | aiohttp.ClientOSError)
    assert len(events_in(text)) == after
    assert client.server.state.runner.engine.idle


@pytest.mark.parametrize("after", [0, 2])
async def test_an_error_event_ends_the_stream(client: Any, events_in: Any, after: int) -> None:
    await client.faults(error_after_tokens=after)
    text, error = await read_raw(client)
    assert error is None
    events = events_in(text)
    assert len(events) == after + 1
    assert events[-1]["error"]["code"] == 500
    assert text.endswith("data: [DONE]\n\n")
    whole = await client.complete()
    assert (whole.status, whole.json["error"]["type"]) == (500, "InternalServerError")


async def test_a_stream_may_lack_its_done(client: Any, events_in: Any) -> None:
    await client.faults(no_done=True)
    text, error = await read_raw(client)
    assert error is None
    assert "[DONE]" not in text
    assert events_in(text)[-1]["choices"][0]["finish_reason"] == "length"


async def test_the_next_requests_fail_with_a_status_and_then_it_is_over(client: Any) -> None:
    await client.faults(error_status=503, requests=2)
    statuses = [(await client.chat(max_tokens=1)).status for _ in range(3)]
    assert statuses == [503, 503, 200]


async def test_an_unhealthy_engine_still_computes(client: Any) -> None:
    await client.faults(unhealthy=True)
    assert (await client.get("/health")).status == 503
    assert (await client.chat(max_tokens=1)).status == 200
    assert (await client.get("/sim/faults")).json == {"unhealthy": True}
    async with client.session.delete(client.server.url + "/sim/faults") as response:
        assert response.status == 200
    assert (await client.get("/health")).status == 200


async def test_a_hanging_engine_accepts_and_never_answers(client: Any, eventually: Any) -> None:
    await client.faults(hang=True, requests=1)
    hanging = asyncio.ensure_future(client.chat())
    await eventually(lambda: client.server.state.faults._left == 0)
    assert (await client.chat(max_tokens=1)).status == 200
    assert not hanging.done()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging


async def test_a_refusing_engine_cuts_the_connection(client: Any) -> None:
    await client.faults(refuse=True)
    with pytest.raises(aiohttp.ClientError):
        await client.chat()
    assert (await client.get("/health")).status == 200


async def test_the_first_byte_can_be_delayed(client: Any) -> None:
    await client.faults(first_byte_delay_ms=60)
    began = asyncio.get_running_loop().time()
    assert (await client.chat(max_tokens=1)).status == 200
    assert asyncio.get_running_loop().time() - began >= 0.055


async def test_bad_faults_are_refused_and_change_nothing(client: Any) -> None:
    await client.faults(unhealthy=True)
    answer = await client.post("/sim/faults", {"unhealty": False})
    assert answer.status == 400
    assert "unknown field `unhealty`. Known faults:" in answer.json["error"]["message"]
    assert (await client.get("/sim/faults")).json == {"unhealthy": True}


async def test_a_restart_loses_everything_and_keeps_the_port(start_sim: Any, client_of: Any, eventually: Any) -> None:
    server = await start_sim(profile="tiny", kv_events="tcp://127.0.0.1:*")
    client = client_of(server)
    await client.complete("a prompt that fills blocks", max_tokens=2)
    assert server.state.publisher.next_seq > 0
    url, old = server.url, server.state.runner
    body = {"prompt": "x", "max_tokens": 500, "stream": True}
    async with client.session.post(url + "/v1/completions", json=body) as stream:
        await stream.content.readany()
        assert (await client.post("/sim/faults", {"restart": True})).status == 202
        with pytest.raises(aiohttp.ClientError):
            await stream.content.read()
    await eventually(lambda: server._restarting is not None and server._restarting.done())
    assert server.url == url
    assert server.state.runner is not old
    assert (await client.get("/sim/blocks")).json["next_seq"] == 0
    assert (await client.get("/sim/blocks")).json["media"]["GPU"]["blocks"] == 0
    usage = (await client.complete("a prompt that fills blocks", max_tokens=1)).json["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_slow_engine_takes_that_many_times_longer(start_sim: Any, client_of: Any) -> None:
    client = client_of(await start_sim(profile="tiny", speedup=50))
    loop = asyncio.get_running_loop()
    seconds = []
    for factor in (1, 20):
        await client.faults(slow_factor=factor)
        began = loop.time()
        await client.complete("x", max_tokens=10)
        seconds.append(loop.time() - began)
    # Ten steps of 26 modelled ms each, at 50 times the speed.
    assert seconds[0] >= 0.004
    assert seconds[1] >= 20 * 0.0045
