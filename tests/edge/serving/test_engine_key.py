"""An engine's own key stays between the engine and us, whatever the engine says."""

from __future__ import annotations

import json

import pytest

from pointsman.edge.cluster.members import WorkerSource
from support.scripted_fleet import DONE, JSON, SSE, Fleet, delta

KEY = "engine-canary-key"


async def open_with_key(fleet: Fleet, answer) -> None:
    engine = await fleet.engine("a", answer=answer)
    source = WorkerSource(name="a", url=f"http://127.0.0.1:{engine.port}", kind="openai", models=("m",), api_key=KEY)
    await fleet.open(sources=(source,))


def echoing(status: int):
    async def answer(incoming, responder) -> None:
        given = incoming.header(b"authorization")
        assert given == b"Bearer " + KEY.encode()
        body = json.dumps({"error": {"message": f"Incorrect API key provided: {given.decode()}"}}).encode()
        responder.send(status, [*JSON, (b"x-echo", given), (b"www-authenticate", b"Bearer")], body)

    return answer


async def in_pieces(incoming, responder) -> None:
    given = incoming.header(b"authorization")
    responder.start(200, SSE)
    responder.write(delta("one"))
    for piece in (b'data: {"error": {"message": "key ', given[:12], given[12:], b'"}}\n\n'):
        responder.write(piece)
    responder.write(delta("two") + DONE)
    responder.finish()


@pytest.mark.parametrize("answer", [echoing(200), echoing(400), echoing(401), echoing(500), in_pieces])
async def test_it_never_reaches_a_client(fleet: Fleet, answer, caplog) -> None:
    caplog.set_level("DEBUG")
    await open_with_key(fleet, answer)
    got = await fleet.chat(headers=[(b"authorization", b"Bearer clients-own")])
    assert got.header(b"x-echo") is None
    assert got.header(b"www-authenticate") is None
    assert KEY.encode() not in got.body
    assert KEY not in caplog.text
    assert KEY not in repr(fleet.frontend.status())
    assert KEY not in (await fleet.ask("/metrics", method="GET", admin=True)).body.decode()
    assert got.status != 401, "a client would look for the fault in its own key"
    if got.status < 500:
        assert b"*" * len(KEY) in got.body
    fleet.at_rest()


async def test_an_engine_that_refuses_our_key_is_not_the_clients_fault(fleet: Fleet) -> None:
    """Another one answers; where there is none, the client hears whose key is wrong."""
    await fleet.engine("a", answer=echoing(401))
    await fleet.engine("b")
    sources = [
        WorkerSource(name=e.name, url=f"http://127.0.0.1:{e.port}", kind="openai", models=("m",), api_key=KEY)
        for e in fleet.engines
    ]
    await fleet.open(sources=tuple(sources))
    assert {(await fleet.chat()).status for _ in range(2)} == {200}
    fleet.at_rest()


async def test_where_every_engine_refuses_our_key(fleet: Fleet) -> None:
    await open_with_key(fleet, echoing(401))
    answer = await fleet.chat()
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"]) == (502, "engine_key_refused")
    assert "engine a/0 refuses the key of the front end" in error["message"]
    fleet.at_rest()
