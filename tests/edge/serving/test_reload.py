"""A configuration is read again while requests run: wholly or not at all, and what can't change is named."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from pointsman.core.model.errors import ConfigError, PolicyError
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, Exclusion
from pointsman.core.trials.arms import By
from pointsman.edge.configuration.loader import load_file, load_text
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.reload.keys import LIVE, all_keys, changed_keys, is_live, under
from pointsman.edge.serving.reload.source import ConfigSource
from pointsman.edge.serving.rollout_order import Orders, RolloutOrder
from pointsman.edge.serving.settings import FrontendSettings
from support.scripted_fleet import Fleet


class Configured(Fleet):
    """A fleet whose front end has a file."""

    def __init__(self, stack: AsyncExitStack, file: Path) -> None:
        super().__init__(stack)
        self.file = file
        self.told = 0

    def write(self, **sections: Any) -> None:
        nodes = [
            {"url": f"http://127.0.0.1:{e.port}", "name": e.name, "kind": "openai", "models": list(e.models)}
            for e in self.engines
        ]
        plane = {"listen_port": 0, "admin_port": 0, "heartbeat_interval": "500ms"} | sections.pop("plane", {})
        tree = {"control-plane": plane, "execution-group": {"nodes": nodes}, "routing": {"policy": "round_robin"}}
        self.file.write_text(json.dumps(tree | sections, indent=1))  # JSON is YAML

    async def begin(self, source: ConfigSource | None = None, **sections: Any) -> Frontend:
        self.write(**sections)
        tree = load_file(self.file)

        def told() -> None:
            self.told += 1

        if source is None:
            source = ConfigSource(tree, lambda: load_file(self.file), lambda t: FrontendSettings.of(t, {}), told)
        self.frontend = Frontend(FrontendSettings.of(tree, {}), config=source)
        await self.frontend.start()
        self._stack.push_async_callback(self.frontend.close)
        self._stack.push_async_callback(self.pool.close)
        await self.until(lambda: self._usable() == len(self.engines))
        return self.frontend

    async def workers(self, count: int = 8) -> set[str]:
        return {str((await self.chat()).header(b"x-pointsman-worker"), "ascii") for _ in range(count)}


@pytest.fixture
async def configured(tmp_path: Path) -> AsyncIterator[Configured]:
    async with AsyncExitStack() as stack:
        yield Configured(stack, tmp_path / "c.yaml")


async def test_nothing_changed(configured: Configured) -> None:
    await configured.engine("a")
    frontend = await configured.begin()
    report = await frontend.reload("test")
    assert (report.changed, report.needs_restart, configured.told) == ([], [], 1)


async def test_engines_come_and_go_and_running_requests_end(configured: Configured) -> None:
    go = asyncio.Event()

    async def slow(incoming: Any, responder: Any) -> None:
        await go.wait()
        responder.send(200, [(b"content-type", b"application/json")], b"{}")

    first = await configured.engine("a", answer=slow)
    frontend = await configured.begin()
    running = asyncio.create_task(configured.chat(stream=False))
    await configured.until(lambda: first.running == 1)
    await configured.engine("b")
    configured.engines.remove(first)
    configured.write()
    report = await frontend.reload("test")
    assert report.changed == ["execution-group.nodes"]
    await configured.until(lambda: [w.id for w in frontend.ledger.snapshot().workers if w.usable] == ["b/0"])
    assert await configured.workers() == {"b/0"}
    go.set()
    assert (await running).status == 200
    configured.at_rest()


async def test_weights_guards_policy_timeouts_limits_and_graces(configured: Configured) -> None:
    for name in ("a", "b"):
        await configured.engine(name)
    frontend = await configured.begin()
    configured.write(
        plane={
            "timeouts": {"connect": "1s", "first_byte": "7s"},
            "limits": {"max_body_bytes": "1KiB"},
            "drain_grace": "3s",
            "shutdown_grace": "4s",
            "heartbeat_interval": "250ms",
            "health": {"failures": 3},
        },
        routing={"policy": "random", "guards": {"kv_headroom": "20%"}, "shadow": ["round_robin"]},
        failover={"retry_budget": "50%"},
    )
    report = await frontend.reload("test")
    assert set(report.changed) == {
        "control-plane.timeouts.connect",
        "control-plane.timeouts.first_byte",
        "control-plane.limits.max_body_bytes",
        "control-plane.drain_grace",
        "control-plane.shutdown_grace",
        "control-plane.heartbeat_interval",
        "control-plane.health.failures",
        "routing.policy",
        "routing.guards.kv_headroom",
        "routing.shadow",
        "failover.retry_budget",
    }
    assert report.needs_restart == []
    assert frontend.policy.configured_name == "random"
    assert [shadow.policy.name for shadow in frontend.policy.shadows.all] == ["round_robin"]
    assert (frontend.drains.grace_s, frontend.graces.shutdown_s) == (3.0, 4.0)
    assert frontend.pool.connect_timeout_s == 1.0
    await configured.pool.close()
    configured.pool = type(configured.pool)()
    too_long = await configured.chat(messages=[{"role": "user", "content": "x" * 2000}])
    assert too_long.status == 413


async def test_what_the_ledger_decides_by_changes(configured: Configured) -> None:
    await configured.engine("a")
    await configured.engine("b")
    frontend = await configured.begin(plane={"topology_levels": ["rack"], "topology": {"rack": "r"}})
    request = Request("r", "m", 0.0, 10)
    configured.write(
        plane={"topology_levels": ["rack"], "topology": {"rack": "r"}},
        routing={"policy": "round_robin", "guards": {"max_topology_distance": 0}},
    )
    text = configured.file.read_text().replace('"name": "b",', '"name": "b", "topology": {"rack": "s"},')
    configured.file.write_text(text)
    await frontend.reload("test")

    def excluded() -> dict[str, int]:
        view = frontend.ledger.view(request)
        return dict(zip(view.workers, view.column(Column.EXCLUSION).tolist(), strict=True))

    await configured.until(lambda: excluded() == {"a/0": Exclusion.NONE, "b/0": Exclusion.TOO_FAR})


async def test_a_policy_that_was_set_by_hand_stays_unless_the_file_changes_it(configured: Configured) -> None:
    await configured.engine("a")
    frontend = await configured.begin()
    frontend.policy.switch("random")
    configured.write(plane={"debug_headers": True})
    assert (await frontend.reload("test")).changed == ["control-plane.debug_headers"]
    assert frontend.policy.configured_name == "random"
    configured.write(routing={"policy": "prefix"})
    await frontend.reload("test")
    assert frontend.policy.configured_name == "prefix"


async def test_of_policy_and_rollout_only_what_the_file_changes_changes(configured: Configured) -> None:
    await configured.engine("a")
    frontend = await configured.begin(routing={"policy": "prefix", "rollout": {"policy": "kv"}})
    by_hand = RolloutOrder("random", 0.1, By.REQUEST)
    frontend.policy.roll_out(by_hand)
    configured.write(routing={"policy": "least_loaded", "rollout": {"policy": "kv"}})
    assert (await frontend.reload("test")).changed == ["routing.policy"]
    assert frontend.policy.orders() == Orders("least_loaded", by_hand)
    frontend.policy.switch("power_of_two")
    configured.write(routing={"policy": "least_loaded"})
    assert (await frontend.reload("test")).changed == ["routing.rollout"]
    assert frontend.policy.orders() == Orders("power_of_two")


async def test_replacing_front_ends_with_what_can_not_be_used_is_refused(configured: Configured) -> None:
    await configured.engine("a")
    asked: list[str] = []
    configured.write()
    tree = load_file(configured.file)
    source = ConfigSource(
        tree,
        lambda: load_file(configured.file),
        lambda t: FrontendSettings.of(t, {}),
        roll_over=lambda: asked.append(""),
    )
    await configured.begin(source=source)
    configured.write(routing={"polcy": "kv"})
    answer = await configured.ask("/v1/rollover", admin=True)
    assert (answer.status, asked) == (400, [])
    assert "routing.polcy: unknown key; did you mean policy?" in json.loads(answer.body)["error"]["message"]
    configured.write()
    assert (await configured.ask("/v1/rollover", admin=True)).status == 202
    assert asked == [""]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            {"routing": {"policy": "no_such"}, "plane": {"debug_headers": True}},
            r"routing\.policy: unknown policy 'no_such'",
        ),
        ({"routing": {"polcy": "kv"}}, r"c\.yaml:\d+: routing\.polcy: unknown key"),
        (
            {"plane": {"shutdown_grace": "1s", "ready_lag": "2s"}},
            r"c\.yaml:\d+: control-plane\.ready_lag: 2s is longer",
        ),
        ({"plane": {"limits": {"max_bodies_bytes": "1MiB"}}}, r"max_bodies_bytes: 1MiB is less than max_body_bytes"),
        ({"routing": {"policy": "random", "shadow": ["session"]}}, r"routing\.(shadow|route_key)"),
        (
            {"auth": {"keys_file": "absent.keys"}, "plane": {"debug_headers": True}},
            r"auth\.keys_file: absent\.keys: can't be read",
        ),
    ],
)
async def test_what_can_not_be_used_changes_nothing(configured: Configured, spoil: Any, message: str) -> None:
    await configured.engine("a")
    frontend = await configured.begin()
    configured.write(**spoil)
    with pytest.raises((ConfigError, PolicyError), match=message):
        await frontend.reload("test")
    assert frontend.policy.configured_name == "round_robin"
    assert configured.told == 0
    answer = await configured.ask("/v1/reload", admin=True)
    assert answer.status == 400
    assert (await configured.chat()).status == 200
    metrics = (await configured.ask("/metrics", method="GET", admin=True)).body.decode()
    assert 'pointsman_reloads_total{outcome="refused"} 2.0' in metrics
    configured.write(plane={"debug_headers": True})
    assert (await frontend.reload("test")).changed == ["control-plane.debug_headers"]


async def test_what_needs_a_restart_is_named_each_time(configured: Configured) -> None:
    await configured.engine("a")
    frontend = await configured.begin()
    configured.write(plane={"listen_port": 4711, "debug_headers": True})
    answer = json.loads((await configured.ask("/v1/reload", admin=True)).body)
    assert answer == {"changed": ["control-plane.debug_headers"], "needs_restart": ["control-plane.listen_port"]}
    again = await frontend.reload("test")
    assert (again.changed, again.needs_restart) == ([], ["control-plane.listen_port"])


async def test_under_load_no_request_notices(configured: Configured) -> None:
    for name in ("a", "b"):
        await configured.engine(name)
    frontend = await configured.begin()
    failed: list[object] = []
    asked = 0
    over = False

    async def ask() -> None:
        nonlocal asked
        while not over:
            answer = await configured.chat()
            asked += 1
            if answer.status != 200 or not answer.body.endswith(b"[DONE]\n\n"):
                failed.append((answer.status, answer.body))

    clients = [asyncio.create_task(ask()) for _ in range(8)]
    policies = ("random", "least_loaded", "prefix", "round_robin")
    for number in range(12):
        if number == 4:
            await configured.engine("c")
        if number == 8:
            configured.engines.pop(0)  # goes on answering what it has
        timeouts = {"idle": f"{30 + number}s"}
        configured.write(plane={"timeouts": timeouts}, routing={"policy": policies[number % 4]})
        await frontend.reload("test")
        before = asked
        await configured.until(lambda before=before: asked > before + 20)  # type: ignore[misc]
    over = True
    await asyncio.gather(*clients)
    assert failed == []
    assert await configured.workers(12) == {"b/0", "c/0"}
    configured.at_rest()


def test_every_live_key_there_is() -> None:
    """A key that was renamed must not stay in the table."""
    keys = list(all_keys())
    for prefix in LIVE:
        assert any(under(key, prefix) for key in keys), prefix


def test_keys_of_sockets_files_and_identity_are_not_live() -> None:
    for key in ("control-plane.listen_port", "decision-log.path", "routing.route_key", "control-plane.tls.key"):
        assert not is_live(key)


def test_differences_are_told_by_key_and_never_by_value() -> None:
    old = ConfigTree()
    text = "control-plane: {timeouts: {idle: 7s}, admin_port: 9}\nrouting: {tokenizers: {m: /x}}\n"
    new = load_text(text, "t", ConfigTree)
    assert changed_keys(old, new) == [
        "control-plane.admin_port",
        "control-plane.timeouts.idle",
        "routing.tokenizers",
    ]


async def test_keys_limits_and_the_admin_key(configured: Configured, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"keys:\n- {{id: k, tenant: acme, sha256: {hashlib.sha256(b'key-of-acme').hexdigest()}}}\n")
    await configured.engine("a")
    frontend = await configured.begin()
    good = [(b"authorization", b"Bearer key-of-acme")]
    assert (await configured.chat()).status == 200
    configured.write(auth={"keys_file": str(keys), "admin_key": "admin-word"}, tenants={"default": {"concurrency": 3}})
    report = await frontend.reload("test")
    assert set(report.changed) == {"auth.keys_file", "auth.admin_key", "tenants.default.concurrency"}
    assert (await configured.chat()).status == 401
    assert (await configured.chat(headers=good)).status == 200
    assert (await configured.ask("/metrics", method="GET", admin=True)).status == 401
    admin = [(b"authorization", b"Bearer admin-word")]
    assert (await configured.ask("/metrics", method="GET", admin=True, headers=admin)).status == 200
    configured.write(auth={"keys_file": str(tmp_path / "none.yaml")})
    with pytest.raises(ConfigError, match=r"none\.yaml: can't be read"):
        await frontend.reload("test")
    assert (await configured.chat(headers=good)).status == 200
    assert (await configured.ask("/metrics", method="GET", admin=True)).status == 401
    keys.write_text("keys: []\n")
    configured.write(auth={"keys_file": str(keys)})
    await frontend.reload("test")
    assert (await configured.chat(headers=good)).status == 401
    assert (await configured.ask("/metrics", method="GET", admin=True)).status == 200
