"""Policies at work in the front end: sessions, prefixes, pins, explanations, switching while requests run."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from pointsman.edge.configuration.route_key import RouteKey
from support.scripted_fleet import JSON, Fleet


async def worker_of(fleet: Fleet, headers=(), **fields) -> str:
    answer = await fleet.chat(headers, **fields)
    assert answer.status == 200, answer.body
    return (answer.header(b"x-pointsman-worker") or b"").decode()


async def three(fleet: Fleet, **settings) -> None:
    for name in "abc":
        await fleet.engine(name)
    await fleet.open(**settings)


class TestSession:
    @pytest.mark.parametrize(
        ("selector", "ask"),
        [
            ("header:x-session", lambda key: {"headers": [(b"x-session", key.encode())]}),
            ("body:user", lambda key: {"user": key}),
            ("body:metadata.session", lambda key: {"metadata": {"session": key, "n": 1}}),
            ("tenant", lambda key: {"headers": [(b"x-tenant-id", key.encode())]}),
            ("tenant", lambda key: {"headers": [(b"authorization", b"Bearer " + key.encode())]}),
        ],
    )
    async def test_a_key_stays_and_keys_spread(self, fleet: Fleet, selector: str, ask) -> None:
        await three(fleet, policy="session", route_key=RouteKey.parse(selector))
        first = {f"k{i}": await worker_of(fleet, **ask(f"k{i}")) for i in range(12)}
        again = {f"k{i}": await worker_of(fleet, **ask(f"k{i}")) for i in range(12)}
        assert first == again
        assert len(set(first.values())) == 3

    async def test_a_request_without_key_is_counted_as_a_fallback(self, fleet: Fleet) -> None:
        await three(fleet, policy="session", route_key=RouteKey.parse("header:x-session"))
        await worker_of(fleet)
        metrics = (await fleet.ask("/metrics", method="GET", admin=True)).body.decode()
        assert 'pointsman_policy_fallbacks_total{note="no route key' in metrics


class TestPrefix:
    def turn(self, who: str, turns: int) -> list[dict[str, str]]:
        said = [{"role": "system", "content": f"You are {who}. " * 40}]
        for i in range(turns):
            said += [
                {"role": "user", "content": f"{who} asks {i} " * 10},
                {"role": "assistant", "content": "yes " * 10},
            ]
        return [*said, {"role": "user", "content": f"{who} asks {turns}"}]

    async def test_a_conversation_stays_where_it_began_and_others_spread(self, fleet: Fleet) -> None:
        await three(fleet, policy="prefix")
        people = [f"person {i}" for i in range(6)]
        where = {who: {await worker_of(fleet, messages=self.turn(who, t)) for t in range(4)} for who in people}
        assert all(len(workers) == 1 for workers in where.values())
        assert len(set.union(*where.values())) == 3

    async def test_tenants_share_no_prefix(self, fleet: Fleet) -> None:
        await three(fleet, policy="prefix", debug_headers=True)
        one, other = [(b"x-tenant-id", b"one")], [(b"x-tenant-id", b"other")]
        explain = (b"x-pointsman-explain", b"1")
        await worker_of(fleet, one, messages=self.turn("a", 2))
        for headers, cached in ((one, True), (other, False)):
            answer = await fleet.chat([*headers, explain], messages=self.turn("a", 2))
            said = json.loads(answer.header(b"x-pointsman-explain") or b"")
            assert any(c.get("cached_tokens", 0) > 0 for c in said["candidates"]) is cached

    async def test_other_tools_are_another_prefix(self, fleet: Fleet) -> None:
        await three(fleet, policy="prefix", debug_headers=True)
        tools = [{"type": "function", "function": {"name": "f"}}]
        await worker_of(fleet, messages=self.turn("a", 2), tools=tools)
        answer = await fleet.chat([(b"x-pointsman-explain", b"1")], messages=self.turn("a", 2))
        said = json.loads(answer.header(b"x-pointsman-explain") or b"")
        assert all(c.get("cached_tokens", 0) == 0 for c in said["candidates"])


class TestDebugHeaders:
    async def test_they_are_off_by_default(self, fleet: Fleet) -> None:
        await three(fleet)
        answer = await fleet.chat([(b"x-pointsman-explain", b"1"), (b"x-pointsman-worker", b"nobody/9")])
        assert answer.status == 200
        assert answer.header(b"x-pointsman-explain") is None

    async def test_explain_lists_every_candidate(self, fleet: Fleet) -> None:
        await three(fleet, debug_headers=True, policy="least_loaded")
        answer = await fleet.chat([(b"x-pointsman-explain", b"1")])
        said = json.loads(answer.header(b"x-pointsman-explain") or b"")
        assert said["policy"] == "least_loaded"
        assert said["unit"] == "requests"
        assert {c["worker"] for c in said["candidates"]} == {"a/0", "b/0", "c/0"}
        assert said["worker"].encode() == answer.header(b"x-pointsman-worker")

    async def test_a_pin_forces_the_worker_and_explains_the_rest(self, fleet: Fleet) -> None:
        await three(fleet, debug_headers=True)
        headers = [(b"x-pointsman-worker", b"b/0"), (b"x-pointsman-explain", b"1")]
        for _ in range(3):
            answer = await fleet.chat(headers)
            assert answer.header(b"x-pointsman-worker") == b"b/0"
        said = json.loads(answer.header(b"x-pointsman-explain") or b"")
        reasons = {c["worker"]: c.get("excluded") for c in said["candidates"]}
        assert reasons == {"b/0": None} | dict.fromkeys(("a/0", "c/0"), "the request is pinned to another worker")

    async def test_a_pin_to_a_stranger_names_those_there_are(self, fleet: Fleet) -> None:
        await three(fleet, debug_headers=True)
        answer = await fleet.chat([(b"x-pointsman-worker", b"zzz/0")])
        error = json.loads(answer.body)["error"]
        assert (answer.status, error["param"]) == (400, "x-pointsman-worker")
        assert "a/0, b/0, c/0" in error["message"]


class TestTwoModels:
    async def test_each_model_goes_to_its_engines_and_both_are_listed(self, fleet: Fleet) -> None:
        await fleet.engine("a", models=("m", "adapter"))
        await fleet.engine("b", models=("other",))
        await fleet.open()
        assert await worker_of(fleet, model="m") == "a/0"
        assert await worker_of(fleet, model="adapter") == "a/0"
        assert await worker_of(fleet, model="other") == "b/0"
        listed = json.loads((await fleet.ask("/v1/models", method="GET")).body)
        assert [model["id"] for model in listed["data"]] == ["adapter", "m", "other"]
        one = json.loads((await fleet.ask("/v1/models/other", method="GET")).body)
        assert one["id"] == "other"


class TestSwitching:
    async def test_no_request_fails_while_policies_change(self, fleet: Fleet) -> None:
        await three(fleet, route_key=RouteKey.parse("header:x-session"))
        names = json.loads((await fleet.ask("/v1/policies", method="GET", admin=True)).body)["policies"]
        assert {"auto", "random", "round_robin", "least_loaded", "power_of_two", "session", "prefix"} <= set(names)
        results: Counter[int] = Counter()

        async def client() -> None:
            for _ in range(40):
                results[(await fleet.chat()).status] += 1

        async def switch() -> None:
            for name in names * 3:
                answer = await fleet.ask("/v1/policy", {"policy": name}, "PUT", admin=True)
                assert json.loads(answer.body)["policy"] == name

        await asyncio.gather(*(client() for _ in range(8)), switch())
        assert results == {200: 320}
        fleet.at_rest()

    @pytest.mark.parametrize("body", [b"", b"{}", {"policy": "best"}, {"policy": 5}, {"policy": "random", "x": 1}])
    async def test_a_bad_switch_is_a_400_and_changes_nothing(self, fleet: Fleet, body) -> None:
        await three(fleet)
        answer = await fleet.ask("/v1/policy", body, "PUT", admin=True)
        assert answer.status == 400
        assert json.loads(answer.body)["error"]["message"]
        assert fleet.frontend.policy.configured_name == "round_robin"


class TestAdmin:
    async def test_status_says_what_people_ask_first(self, fleet: Fleet) -> None:
        await three(fleet)
        await fleet.engines[2].close()
        for _ in range(5):
            await fleet.chat()
        status = json.loads((await fleet.ask("/v1/status", method="GET", admin=True)).body)
        assert status["policy"] == "round_robin"
        assert status["models"] == {"m": ["a/0", "b/0", "c/0"]}
        states = {worker["id"]: worker for worker in status["workers"]}
        assert states["a/0"]["state"] == "ready"
        assert states["c/0"]["state"] == "unreachable"
        assert "connect" in states["c/0"]["reason"]
        assert states["a/0"]["cached_share"] == pytest.approx(0.4)
        assert status["requests"]["finished_total"] == 5
        assert {engine["name"] for engine in status["engines"]} == {"a", "b", "c"}

    async def test_metrics_hold_the_whole_story(self, fleet: Fleet) -> None:
        await three(fleet)
        await fleet.chat()
        await fleet.ask("/v1/completions", {"model": "m", "prompt": "x"})
        text = (await fleet.ask("/metrics", method="GET", admin=True)).body.decode()
        for line in (
            'pointsman_requests_total{route="/v1/chat/completions",status="200"} 1.0',
            'pointsman_worker_ready{state="ready",worker="a/0"} 1.0',
            'pointsman_worker_running_requests{worker="a/0"} 0.0',
            'pointsman_tokens_total{kind="output"} 6.0',
            "pointsman_ttft_seconds_count 2.0",
            "pointsman_request_duration_seconds_count 2.0",
            "pointsman_decision_seconds_count 2.0",
            'pointsman_policy_info{policy="round_robin"} 1.0',
        ):
            assert line in text

    async def test_readiness_follows_the_fleet(self, fleet: Fleet) -> None:
        engine = await fleet.engine("a")
        await fleet.open(heartbeat_s=0.25)
        assert (await fleet.ask("/ready", method="GET")).status == 200
        await engine.close()
        await fleet.until(lambda: not fleet.frontend.ledger.snapshot().workers[0].usable)
        answer = await fleet.ask("/ready", method="GET")
        assert answer.status == 503
        assert "unreachable" in answer.body.decode()
        assert (await fleet.ask("/live", method="GET")).status == 200

    async def test_answers_of_engines_without_usage_are_counted(self, fleet: Fleet) -> None:
        async def no_usage(incoming, responder) -> None:
            responder.send(200, JSON, b'{"choices":[]}')

        await fleet.engine("a", answer=no_usage)
        await fleet.open()
        await fleet.chat(stream=False)
        assert fleet.frontend.traffic.missing_usage == 1
