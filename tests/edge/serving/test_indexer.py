"""The public indexer's queries on the admin port."""

from __future__ import annotations

import json

import pytest

from pointsman.core.ledger import events as ev
from pointsman.core.model.public_hash import public_seed, sequence_hashes
from pointsman.core.model.token_keys import KeySpec, pack_tokens, salt_extra
from pointsman.core.model.worker import WorkerId, WorkerSpec, worker_id
from support.scripted_fleet import Fleet

SPEC = KeySpec(4)


def holds(fleet: Fleet, worker: WorkerId, first: int, blocks: int, parent: int | None = None, **fields: object) -> None:
    tokens = pack_tokens(range(4 * first, 4 * (first + blocks)))
    hashes = tuple(range(first, first + blocks))
    fleet.frontend.emit(ev.BlocksStored(worker, 0.0, hashes, parent, tokens, SPEC, **fields))  # type: ignore[arg-type]


@pytest.fixture
async def indexed(fleet: Fleet) -> Fleet:
    await fleet.open(index_by_hash=True)
    for engine, rank in (("a", 0), ("a", 1), ("b", 0)):
        spec = WorkerSpec(worker_id(engine, rank), f"http://{engine}", "vllm", ("m", "adapter"), rank=rank)
        fleet.frontend.emit(ev.WorkerJoined(spec, 0.0))
        fleet.frontend.emit(ev.KvFeedChanged(spec.id, 0.0, ev.KvFeedState.COMPLETE, "test"))
    holds(fleet, worker_id("a"), 0, 2)
    holds(fleet, worker_id("a"), 2, 1, parent=1, medium="cpu")
    holds(fleet, worker_id("a", 1), 0, 4)
    holds(fleet, worker_id("b"), 0, 1)
    return fleet


async def ask(fleet: Fleet, path: str, **body: object) -> tuple[int, dict]:
    answer = await fleet.ask(path, {"model": "m", "block_size": 4} | body, admin=True)
    return answer.status, json.loads(answer.body)


ENGINE_A = {"longest_matched": 16, "GPU": 16, "CPU": 16, "DISK": 16, "DP": {"0": 12, "1": 16}}
ENGINE_B = {"longest_matched": 4, "GPU": 4, "CPU": 4, "DISK": 4, "DP": {"0": 4}}


async def test_by_tokens(indexed: Fleet) -> None:
    assert await ask(indexed, "/query", token_ids=list(range(19))) == (200, {"default": {"a": ENGINE_A, "b": ENGINE_B}})


@pytest.mark.parametrize("name", ["seq_hashes", "block_hashes", "block_hash"])
async def test_by_hash(indexed: Fleet, name: str) -> None:
    hashes = sequence_hashes(pack_tokens(range(19)), SPEC, public_seed())
    status, answer = await ask(indexed, "/query_by_hash", **{name: hashes}, tenant_id="t", instance_id="b")
    assert (status, answer) == (200, {"t": {"b": ENGINE_B}})


async def test_salts_and_adapters_are_part_of_the_question(indexed: Fleet) -> None:
    tokens = list(range(19))
    assert (await ask(indexed, "/query", token_ids=tokens, cache_salt="x"))[1] == {"default": {}}
    assert (await ask(indexed, "/query", token_ids=tokens, lora_name="adapter"))[1] == {"default": {}}
    holds(indexed, worker_id("b"), 0, 2, extras={0: salt_extra("x")})
    assert (await ask(indexed, "/query", token_ids=tokens, cache_salt="x"))[1]["default"]["b"]["GPU"] == 8


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/query", {}, "token_ids"),
        ("/query", {"token_ids": [1, -2]}, "0 to 4294967295"),
        ("/query", {"token_ids": "x"}, "token_ids"),
        ("/query", {"token_ids": [1], "block_size": 0}, "block_size"),
        ("/query_by_hash", {}, "seq_hashes"),
    ],
)
async def test_what_cannot_be_answered_is_a_400_that_names_the_field(indexed: Fleet, path, body, words) -> None:
    status, answer = await ask(indexed, path, **body)
    assert status == 400
    assert words in answer["error"]["message"]


async def test_by_hash_is_off_by_default(fleet: Fleet) -> None:
    await fleet.open()
    status, answer = await ask(fleet, "/query_by_hash", seq_hashes=[1])
    assert status == 400
    assert "routing.index_by_hash" in answer["error"]["message"]
