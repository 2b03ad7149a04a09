"""KV that only another engine can free, as vLLM's NixlConnector has it, where that engine is gone. In virtual time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.edge.engines.openai_server.listener import Route
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder
from support.virtual.apart import apart
from support.virtual.fleet import VirtualFleet
from support.virtual.loop import VirtualLoop, run_virtual

SHAPE = KvShape(HandShake.VLLM_NIXL, 16)
JSON = ((b"content-type", b"application/json"),)
USAGE = {"prompt_tokens": 360, "completion_tokens": 1, "total_tokens": 361}
CHOICE = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "length"}


class Kept:
    """What e0 keeps for the others, by its own names; e1 takes each leg and never answers."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.freed_by: list[str] = []
        self.computed = 0
        self.deaf = 0
        """Calls to free that nobody answers yet."""

    def install(self, fleet: VirtualFleet) -> None:
        for number, engine in enumerate(fleet.engines):
            assert engine.server is not None
            routes = engine.server._routes
            for path in ("/v1/chat/completions", "/v1/completions"):
                routes["POST", path] = self._wrapped(f"e{number}", routes["POST", path])

    def _wrapped(self, name: str, usual: Route) -> Route:
        async def takes(request: IncomingRequest, responder: Responder) -> None:
            body = json.loads(request.body)
            params = body.get("kv_transfer_params") or {}
            if params.get("do_remote_decode"):
                self._computed(responder, body["model"])
                return
            kept = params.get("remote_request_id")
            if kept is not None and body.get("logprobs") == 1_000_000:
                if self.deaf:
                    self.deaf -= 1
                    await asyncio.get_running_loop().create_future()
                self.names.discard(kept)
                self.freed_by.append(name)
                responder.send(400, JSON, b'{"error":{"message":"no"}}')
                return
            if kept is not None and name == "e1":
                await asyncio.get_running_loop().create_future()
            self.names.discard(str(kept))
            await usual(request, responder)

        return takes

    def _computed(self, responder: Responder, model: str) -> None:
        self.computed += 1
        name = f"kept-{self.computed}"
        self.names.add(name)
        params = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[1, 2]],
            "remote_engine_id": "e0",
            "remote_request_id": name,
            "remote_host": "e0.engines",
            "remote_port": 5600,
            "remote_num_tokens": 360,
        }
        answer = {"id": "p", "model": model, "choices": [CHOICE], "usage": USAGE, "kv_transfer_params": params}
        responder.send(200, JSON, json.dumps(answer).encode())


def scene(main: Any, decodes: int) -> None:
    async def run(loop: VirtualLoop) -> None:
        async with apart(loop, 1, decodes, kv=SHAPE) as fleet:
            kept = Kept()
            kept.install(fleet)
            await main(fleet, kept)

    run_virtual(run)


async def killed_with_kv(fleet: VirtualFleet, kept: Kept) -> list[Any]:
    """Requests, some of which are at e1 with what was computed for them, when it dies."""
    asked = [fleet.chat() for _ in range(6)]
    await fleet.until(lambda: kept.computed >= 6)
    await asyncio.sleep(0.5)
    assert kept.names, "some are with the one that does not answer"
    fleet.engines[1].kill()
    return asked


def test_what_an_engine_that_died_was_to_fetch_is_freed_through_another_one() -> None:
    async def main(fleet: VirtualFleet, kept: Kept) -> None:
        asked = await killed_with_kv(fleet, kept)
        await fleet.until(lambda: not kept.names, 5.0)
        assert set(kept.freed_by) == {"e2"}
        for answer, task, _ in asked:
            await task
            assert answer.status == 200
        assert not kept.names

    scene(main, 2)


def test_where_there_is_no_other_one_its_lease_ends_it_and_one_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def main(fleet: VirtualFleet, kept: Kept) -> None:
        asked = await killed_with_kv(fleet, kept)
        await asyncio.sleep(5.0)
        assert kept.names
        assert not kept.freed_by
        said = [record.getMessage() for record in caplog.records if "until its lease ends" in record.getMessage()]
        assert len(said) == len(kept.names)
        for _, task, _ in asked:
            task.cancel()
        await asyncio.gather(*(task for _, task, _ in asked), return_exceptions=True)

    scene(main, 1)


def test_an_engine_that_stands_still_when_it_is_told_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main(fleet: VirtualFleet, kept: Kept) -> None:
        kept.deaf = 2
        _, task, _ = fleet.chat()
        await fleet.until(lambda: kept.computed == 1)
        await asyncio.sleep(0.5)
        assert kept.names, "its client leaves between the legs"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await fleet.until(lambda: not kept.names, 30.0)
        assert kept.freed_by == ["e1"]
        assert "until its lease ends" not in caplog.text

    scene(main, 1)
