"""Hand-shakes whose legs are sent together: engines that meet in a room, as SGLang's do, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.core.model.transfer import TransferMode, TransferRules
from pointsman.edge.engines.openai_server.listener import Route
from pointsman.edge.serving.failover import FailoverSettings
from pointsman.edge.serving.legs.split import Split
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder
from support.virtual.apart import apart
from support.virtual.engine import VirtualEngine
from support.virtual.fleet import VirtualFleet
from support.virtual.loop import VirtualLoop, run_virtual
from support.virtual.scene import wrong

SHAPE = KvShape(HandShake.SGLANG, 16, port=8998)
HALVES = replace(SHAPE, alone=False)
JSON = ((b"content-type", b"application/json"),)
ANSWER = {
    "id": "p",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 360, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 32}},
}


@dataclass
class Room:
    prefill: asyncio.Event = field(default_factory=asyncio.Event)
    decode: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Rooms:
    """What both engines of a fleet do when a request names a room."""

    status: int = 200
    """Of prefill legs."""
    failing: int | None = None
    """The only engine that answers its prefill legs so; None: all do."""
    prefills: int = 1
    prefill_s: float = 0.5
    late_s: float = 0.0
    """That the prefill leg's answer comes after the KV."""
    rooms: dict[int, Room] = field(default_factory=lambda: defaultdict(Room))
    seen: list[str] = field(default_factory=list)

    def install(self, fleet: VirtualFleet) -> None:
        for number in range(len(fleet.engines)):
            self.install_at(fleet, number)

    def install_at(self, fleet: VirtualFleet, number: int) -> None:
        """At an engine that was just started."""
        engine = fleet.engines[number]
        assert engine.server is not None
        routes = engine.server._routes
        usual = routes["POST", "/v1/chat/completions"]
        routes["POST", "/v1/chat/completions"] = self._wrapped(f"e{number}", usual, is_prefill=number < self.prefills)

    def _wrapped(self, name: str, usual: Route, *, is_prefill: bool) -> Route:
        async def meets(request: IncomingRequest, responder: Responder) -> None:
            body = json.loads(request.body)
            if "bootstrap_room" not in body:
                await usual(request, responder)
                return
            host = body["bootstrap_host"].removesuffix(".engines")
            assert body["bootstrap_port"] == 8998
            assert host == name if is_prefill else host in [f"e{number}" for number in range(self.prefills)]
            room = self.rooms[body["bootstrap_room"]]
            try:
                await (
                    self._prefill(name, room, responder)
                    if is_prefill
                    else self._decode(room, request, responder, usual)
                )
                self.seen.append(f"{name} ended")
            except asyncio.CancelledError:
                self.seen.append(f"{name} cancelled")
                raise

        return meets

    async def _prefill(self, name: str, room: Room, responder: Responder) -> None:
        if self.status != 200 and self.failing in (None, int(name[1:])):
            responder.send(self.status, JSON, json.dumps({"error": {"message": "no"}}).encode())
            return
        await asyncio.sleep(self.prefill_s)
        room.prefill.set()
        await room.decode.wait()
        await asyncio.sleep(self.late_s)
        responder.send(200, JSON, json.dumps(ANSWER).encode())

    async def _decode(self, room: Room, request: IncomingRequest, responder: Responder, usual: Route) -> None:
        room.decode.set()
        await room.prefill.wait()
        await usual(request, responder)


def scene(
    main: Any, *, rooms: Rooms | None = None, prefills: int = 1, decodes: int = 1, kv: KvShape = SHAPE, **settings: Any
) -> None:
    rooms = rooms or Rooms()
    rooms.prefills = prefills

    async def run(loop: VirtualLoop) -> None:
        async with apart(loop, prefills, decodes, kv=kv, **settings) as fleet:
            rooms.install(fleet)
            await main(fleet, rooms)
            await fleet.until(lambda: not fleet.at_rest(), 5.0)

    run_virtual(run)


def fallbacks(fleet: VirtualFleet) -> dict[str, int]:
    return dict(fleet.frontends[0].traffic.transfer_fallbacks)


def splits(fleet: VirtualFleet) -> list[Split]:
    """What requests that run have at second engines."""
    running = fleet.frontends[0].dispatcher._running.values()
    return [one.split for one in running if one.split is not None and not one.split.done]


async def judged(fleet: VirtualFleet, asked: list[Any]) -> None:
    for _, task, _ in asked:
        await task
    truth = await fleet.truth([body for _, _, body in asked])
    assert [wrong(answer, right) for (answer, _, _), right in zip(asked, truth, strict=True)] == [""] * len(asked)


def test_both_legs_meet_and_the_prefill_legs_numbers_are_known() -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        asked = [fleet.chat(), fleet.plain()]
        await judged(fleet, asked)
        assert len(rooms.rooms) == 2
        assert all(2**0 <= room < 2**63 for room in rooms.rooms)
        assert sorted(rooms.seen) == ["e0 ended", "e0 ended", "e1 ended", "e1 ended"]
        assert asked[0][0].header(b"x-pointsman-prefill-worker") == b"e0/0"
        totals = {worker.id: worker.totals for worker in fleet.frontends[0].ledger.snapshot().workers}
        assert totals["e0/0"].reported_cached_tokens == 64
        assert fallbacks(fleet) == {}

    scene(main)


def test_a_prefill_leg_is_left_alone_when_the_answer_is_there_before_it() -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        await judged(fleet, [fleet.chat(max_tokens=3)])
        assert rooms.seen == ["e1 ended"]
        await fleet.until(lambda: rooms.seen == ["e1 ended", "e0 ended"], 60.0, 0.1)
        assert fallbacks(fleet) == {}

    scene(main, rooms=Rooms(late_s=30.0))


@pytest.mark.parametrize("plain", [False, True])
def test_what_the_client_did_wrong_ends_both(plain: bool) -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        answer, task, _ = fleet.plain() if plain else fleet.chat()
        await task
        assert answer.status == 400
        assert sorted(rooms.seen) == ["e0 ended", "e1 cancelled"]
        assert fallbacks(fleet) == {}

    scene(main, rooms=Rooms(status=400))


@pytest.mark.parametrize("status", [500, 503])
def test_a_room_that_never_opens_is_left_at_once(status: int) -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        await judged(fleet, [fleet.chat(), fleet.plain()])
        assert sorted(rooms.seen) == ["e0 ended", "e0 ended", "e1 cancelled", "e1 cancelled"]
        assert fallbacks(fleet) == {"server_error" if status == 500 else "overloaded": 2}

    scene(main, rooms=Rooms(status=status))


def test_the_engine_for_prompts_dies_and_the_other_one_does_not_wait_for_it() -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        asked = [fleet.chat()]
        await asyncio.sleep(0.3)
        fleet.engines[0].kill()
        await judged(fleet, asked)
        assert "e1 cancelled" in rooms.seen
        assert fallbacks(fleet) == {"lost": 1}

    scene(main)


def test_the_engine_that_answers_dies_and_its_prefill_is_cancelled() -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        asked = [fleet.chat()]
        await asyncio.sleep(0.3)
        first = next(
            engine
            for engine in fleet.engines[1:]
            if fleet.frontends[0].ledger.at_engine(engine.name)
            and sum(fleet.frontends[0].ledger.at_engine(engine.name).values())
        )
        first.kill()
        await judged(fleet, asked)
        assert "e0 cancelled" in rooms.seen
        assert rooms.seen.count("e0 ended") == 1
        assert len(rooms.rooms) == 2, "a room is never used twice"

    scene(main, decodes=2)


def test_a_client_that_leaves_ends_both() -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        _, task, _ = fleet.chat()
        await asyncio.sleep(0.3)
        task.cancel()
        await fleet.until(lambda: sorted(rooms.seen) == ["e0 cancelled", "e1 cancelled"], 5.0)

    scene(main)


# ---- engines that serve halves only


def retried(fleet: VirtualFleet) -> int:
    return sum(fleet.frontends[0].traffic.retries.values())


@pytest.mark.parametrize("status", [500, 503, 429])
def test_halves_whose_prompt_was_not_computed_are_asked_of_another_pair(status: int) -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        asked = [fleet.chat(), fleet.plain(), fleet.chat(), fleet.plain()]
        await judged(fleet, asked)
        first = rooms.seen.count("e0 ended")
        assert first > 0, "the one that fails was asked, too"
        assert retried(fleet) == sum(fallbacks(fleet).values()) == first
        assert [answer.header(b"x-pointsman-prefill-worker") for answer, _, _ in asked] == [b"e1/0"] * 4
        assert {answer.header(b"x-pointsman-worker") for answer, _, _ in asked} == {b"e2/0"}
        decodes = next(w for w in fleet.frontends[0].ledger.snapshot().workers if w.id == "e2/0")
        assert not decodes.faults.counts, "it did nothing wrong"

    scene(main, rooms=Rooms(status=status, failing=0), prefills=2, kv=HALVES)


@pytest.mark.parametrize("plain", [False, True])
def test_halves_whose_engine_for_prompts_dies_are_asked_of_another_pair(plain: bool) -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        asked = [fleet.plain() if plain else fleet.chat() for _ in range(4)]
        await asyncio.sleep(0.3)
        fleet.engines[0].kill()
        await judged(fleet, asked)
        assert fallbacks(fleet) == {"lost": retried(fleet)}
        assert retried(fleet) > 0

    scene(main, prefills=2, kv=HALVES)


def test_halves_whose_engine_for_prompts_is_not_there_are_asked_of_another_pair() -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        fleet.engines[0].kill()
        await judged(fleet, [fleet.chat() for _ in range(4)])
        assert set(fallbacks(fleet)) == {"unreachable"}

    scene(main, prefills=2, kv=HALVES)


def test_halves_whose_engine_for_prompts_is_stopped_are_asked_of_another_pair() -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        asked = [fleet.chat() for _ in range(4)]
        await asyncio.sleep(0.3)
        fleet.engines[0].stop()
        await judged(fleet, asked)
        assert fallbacks(fleet) == {"worker_given_up": retried(fleet)}
        assert retried(fleet) > 0
        fleet.engines[0].go_on()

    scene(main, rooms=Rooms(prefill_s=30.0), prefills=2, kv=HALVES)


def test_halves_are_taken_away_from_an_engine_for_prompts_that_drains() -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        asked = [fleet.chat() for _ in range(4)]
        await asyncio.sleep(0.3)
        fleet.frontends[0].drains.begin("e0", "the test says so", 0.0)
        await judged(fleet, asked)
        assert set(fallbacks(fleet)) == {"worker_drains"}

    scene(main, prefills=2, kv=HALVES)


@pytest.mark.parametrize("prefills", [1, 2])
def test_halves_that_no_pair_is_left_for_say_so(prefills: int) -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        answer, task, _ = fleet.chat()
        await task
        assert answer.status == 503
        told = json.loads(answer.body)["error"]
        assert told["code"] == "transfer_failed"
        assert "prefill at" in told["message"]
        assert "no other engine can take it" in told["message"]
        assert answer.header(b"retry-after") == b"1"
        assert len(rooms.rooms) == prefills, "each was tried once"
        assert retried(fleet) == prefills - 1

    scene(main, rooms=Rooms(status=500), prefills=prefills, kv=HALVES)


def test_retries_of_halves_are_budgeted() -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        answer, task, _ = fleet.chat()
        await task
        assert answer.status == 503
        assert b"failover.retry_budget" in answer.body
        assert (len(rooms.rooms), retried(fleet)) == (1, 0)
        assert fleet.frontends[0].traffic.retries_refused == {"budget": 1}

    scene(main, rooms=Rooms(status=500), prefills=2, kv=HALVES, failover=FailoverSettings(retry_share=0.0))


def test_a_decode_engine_that_dies_is_the_one_that_is_left_out() -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        asked = [fleet.chat()]
        await asyncio.sleep(0.3)
        ledger = fleet.frontends[0].ledger
        next(e for e in fleet.engines[1:] if sum(ledger.at_engine(e.name).values())).kill()
        await judged(fleet, asked)
        assert asked[0][0].header(b"x-pointsman-prefill-worker") == b"e0/0"

    scene(main, decodes=2, kv=HALVES)


def test_an_engine_for_halves_that_is_well_again_is_used_again_without_a_canary() -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        for _ in range(25):
            await fleet.chat(max_tokens=2)[1]
        failed = rooms.seen.count("e0 ended")
        rooms.status = 200
        rooms.seen.clear()
        for _ in range(25):
            await asyncio.sleep(3.0)
            await fleet.chat(max_tokens=2)[1]
        assert 0 < failed < 20, "it was left out meanwhile"
        assert rooms.seen.count("e0 ended") > 3

    scene(main, rooms=Rooms(status=500, failing=0), prefills=2, kv=HALVES)


def test_halves_whose_kv_never_comes_are_asked_of_one_other_pair() -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        began_s = fleet.loop.time()
        answer, task, _ = fleet.chat()
        await task
        assert answer.status == 503
        assert json.loads(answer.body)["error"]["code"] == "transfer_failed"
        assert len(rooms.rooms) == 2, "of three engines for prompts"
        assert fallbacks(fleet) == {"transfer_stuck": 2}
        assert fleet.loop.time() - began_s < 125.0

    scene(main, rooms=Rooms(prefill_s=1000.0), prefills=3, kv=HALVES)


@pytest.mark.parametrize("status", [400, 422])
def test_halves_of_which_the_client_asks_what_can_not_be_are_asked_once(status: int) -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        answer, task, _ = fleet.chat()
        await task
        assert answer.status == status
        assert (len(rooms.rooms), retried(fleet), fallbacks(fleet)) == (1, 0, {})

    scene(main, rooms=Rooms(status=status), prefills=2, kv=HALVES)


def test_a_prefill_leg_that_is_answered_after_the_other_engine_died_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While the stream looks for somebody to go on with it."""

    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        asked = [fleet.chat()]
        await fleet.until(lambda: asked[0][0].tokens > 3)
        fleet.engines[1].kill()
        await asyncio.sleep(3.0)
        assert "e0 ended" in rooms.seen
        await fleet.engines[1].start()
        await judged(fleet, asked)
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []
        assert fleet.frontends[0].traffic.transfers == {("apart", "moved"): 1}

    scene(main, rooms=Rooms(late_s=1.3))


# ---- streams of halves that break off after the first byte


def answering(fleet: VirtualFleet, prefills: int) -> VirtualEngine:
    """The engine that answers the only request."""
    ledger = fleet.frontends[0].ledger
    return next(e for e in fleet.engines[prefills:] if sum(ledger.at_engine(e.name).values()))


def migrations(fleet: VirtualFleet) -> dict[str, int]:
    return {outcome: count for (_, outcome), count in fleet.frontends[0].traffic.migrations.items()}


@pytest.mark.parametrize("mode", [TransferMode.AUTO, TransferMode.ALWAYS])
def test_a_stream_of_halves_goes_on_at_another_pair(mode: TransferMode) -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        asked = [fleet.chat()]
        await fleet.until(lambda: asked[0][0].tokens > 3)
        answering(fleet, 1).kill()
        await judged(fleet, asked)
        assert len(rooms.rooms) == 2, "its prompt is computed once more"
        assert migrations(fleet) == {"begun": 1, "finished": 1}
        assert fallbacks(fleet) == {}

    scene(main, decodes=2, kv=HALVES, replays=True, rules=TransferRules(mode))


def test_a_stream_of_halves_waits_for_the_engine_that_broke_off() -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        asked = [fleet.chat()]
        await fleet.until(lambda: asked[0][0].tokens > 3)
        fleet.engines[1].kill()
        await asyncio.sleep(2.0)
        await fleet.engines[1].start()
        rooms.install_at(fleet, 1)
        await judged(fleet, asked)
        assert migrations(fleet)["finished"] == 1

    scene(main, kv=HALVES, replays=True)


@pytest.mark.parametrize("status", [400, 500])
def test_a_stream_of_halves_whose_prompt_is_not_computed_again(status: int) -> None:
    """500: by a third engine then. 400: nobody else would, and the client gets an event that says so."""

    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        asked = [fleet.chat()]
        await fleet.until(lambda: asked[0][0].tokens > 3)
        rooms.status, rooms.failing = status, int(asked[0][0].header(b"x-pointsman-prefill-worker")[1:2])
        if status == 400:
            rooms.failing = None
        answering(fleet, 2).kill()
        if status == 500:
            await judged(fleet, asked)
            assert migrations(fleet)["finished"] == 1
        else:
            answer, task, _ = asked[0]
            await task
            assert b"stream_broken" in answer.body
            assert b"[DONE]" not in answer.body
            assert answer.status == 200
        await fleet.until(lambda: not fleet.at_rest(), 5.0)

    scene(main, prefills=2, decodes=2, kv=HALVES, replays=True)


def test_a_stream_of_halves_with_which_two_engines_died_is_not_handed_on() -> None:
    """The second one while it computes the prompt again: the one that answers does not wait for it."""

    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        answer, task, _ = fleet.chat()
        await fleet.until(lambda: answer.tokens > 3)
        rooms.prefill_s = 20.0
        answering(fleet, 2).kill()
        await fleet.until(lambda: len(rooms.rooms) == 2)
        await asyncio.sleep(1.0)
        now = next(split.other.worker for split in splits(fleet))
        began_s = fleet.loop.time()
        fleet.engines[int(now[1:2])].kill()
        await task
        assert fleet.loop.time() - began_s < 1.0
        assert b"it may be what they fail of" in answer.body
        assert fallbacks(fleet) == {"lost": 1}

    scene(main, prefills=2, decodes=2, kv=HALVES, replays=True)


def test_a_stream_of_halves_is_taken_away_from_a_second_engine_for_prompts_that_drains() -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        asked = [fleet.chat()]
        await fleet.until(lambda: asked[0][0].tokens > 3)
        rooms.prefill_s = 20.0
        answering(fleet, 2).kill()
        await fleet.until(lambda: len(rooms.rooms) == 2)
        await asyncio.sleep(1.0)
        now = next(split.other.worker for split in splits(fleet))
        fleet.frontends[0].drains.begin(now[:2], "the test says so", 0.0)
        await judged(fleet, asked)
        assert fallbacks(fleet) == {"worker_drains": 1}

    scene(main, prefills=2, decodes=2, kv=HALVES, replays=True)


def test_a_client_that_leaves_while_its_stream_is_said_again_ends_both() -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        answer, task, _ = fleet.chat()
        await fleet.until(lambda: answer.tokens > 3)
        rooms.prefill_s = 20.0
        answering(fleet, 1).kill()
        await fleet.until(lambda: len(rooms.rooms) == 2)
        await asyncio.sleep(1.0)
        rooms.seen.clear()
        task.cancel()
        await fleet.until(lambda: len(rooms.seen) == 2 and all("cancelled" in what for what in rooms.seen), 5.0)

    scene(main, decodes=2, kv=HALVES, replays=True)


def test_a_drain_takes_no_stream_from_halves_that_nobody_could_go_on_with() -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        asked = [fleet.chat()]
        await fleet.until(lambda: asked[0][0].tokens > 3)
        fleet.frontends[0].drains.begin("e0", "the test says so", 0.0)
        fleet.frontends[0].drains.begin(answering(fleet, 1).name, "the test says so", 0.0)
        await judged(fleet, asked)
        assert migrations(fleet) == {}

    scene(main, decodes=2, kv=HALVES, replays=True)


def test_a_drain_moves_streams_of_halves_to_another_pair() -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        asked = [fleet.chat()]
        await fleet.until(lambda: asked[0][0].tokens > 3)
        drained = answering(fleet, 1).name
        fleet.frontends[0].drains.begin(drained, "the test says so", 0.0)
        await judged(fleet, asked)
        assert migrations(fleet) == {"begun": 1, "finished": 1}
        assert f"{drained} cancelled" in rooms.seen

    scene(main, decodes=2, kv=HALVES, replays=True)


def test_a_stream_of_halves_that_is_drawn_by_chance_ends_with_an_event() -> None:
    async def main(fleet: VirtualFleet, rooms: Rooms) -> None:
        answer, task, _ = fleet.chat(temperature=1.0)
        await fleet.until(lambda: answer.tokens > 3)
        answering(fleet, 1).kill()
        await task
        assert b"sampled without a seed" in answer.body
        assert len(rooms.rooms) == 1

    scene(main, decodes=2, kv=HALVES, replays=True)
