"""Keys: who is let in, what others are told, and that the tenant is the key's."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.keys_file import KeysFile
from pointsman.edge.configuration.tenants import Tenants
from pointsman.edge.configuration.watched_files import Stamp, stamp_of
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import FrontendSettings
from pointsman.edge.serving.tenants import keys_watch
from pointsman.edge.serving.tenants.counts import TenantCounts
from pointsman.edge.serving.tenants.credentials import UnusableCredentialsError, presented_key
from pointsman.edge.serving.tenants.keys_watch import KeysWatch
from pointsman.edge.serving.tenants.tenancy import TenancySettings
from support.scripted_fleet import Fleet

from .conftest import KEYS, keys_text

ONE, TWO, BLUE = (key for _, key in KEYS.values())
CHAT = "/v1/chat/completions"


def bearer(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer " + key.encode())]


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([], None),
        ([(b"authorization", b"Bearer k")], b"k"),
        ([(b"authorization", b"bearer  k ")], b"k"),
        ([(b"x-api-key", b"k")], b"k"),
        ([(b"api-key", b"k")], b"k"),
        ([(b"x-api-key", b"k"), (b"authorization", b"Bearer k")], b"k"),
        ([(b"authorization", b"Bearer ")], None),
    ],
)
def test_where_a_key_may_stand(headers, key) -> None:
    assert presented_key(tuple(headers)) == key


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Basic secret-x")],
        [(b"authorization", b"secret-x")],
        [(b"x-api-key", b"secret-x"), (b"api-key", b"secret-y")],
        [(b"authorization", b"Bearer secret-x"), (b"authorization", b"Bearer secret-y")],
    ],
)
def test_what_is_no_key_is_refused_without_being_repeated(headers) -> None:
    with pytest.raises(UnusableCredentialsError) as raised:
        presented_key(tuple(headers))
    assert "secret" not in str(raised.value)


async def open_with_keys(fleet: Fleet, keys_file: Path, tenants: Tenants | None = None, **settings) -> Frontend:
    if not fleet.engines:
        await fleet.engine("a")
    return await fleet.open(tenancy=TenancySettings(keys_file, tenants or Tenants()), **settings)


async def test_only_who_has_a_key_is_let_in(fleet: Fleet, keys_file: Path) -> None:
    frontend = await open_with_keys(fleet, keys_file)
    for headers in (bearer(ONE), [(b"x-api-key", TWO.encode())], [(b"api-key", BLUE.encode())]):
        assert (await fleet.chat(headers=headers)).status == 200
    messages = {}
    for name, headers in {"missing": [], "unknown": bearer("nobodys"), "malformed": [(b"authorization", b"x")]}.items():
        answer = await fleet.chat(headers=headers)
        error = json.loads(answer.body)["error"]
        assert answer.status == 401
        assert answer.header(b"www-authenticate") == b'Bearer realm="pointsman"'
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        messages[name] = error["message"]
    assert "nobodys" not in str(messages)
    counts = frontend.tenancy.counts
    assert counts.key_faults == {"missing": 1, "unknown": 1, "malformed": 1}
    assert counts.requests == {"acme": 2, "blue": 1}
    assert counts.keys == {"a1": 1, "a2": 1, "b1": 1}
    assert frontend.traffic.responses[CHAT, 401] == 3
    assert len(fleet.engines[0].requests) == 3
    fleet.at_rest()


async def test_an_expired_key_gets_the_answer_of_an_unknown_one(fleet: Fleet, tmp_path: Path, caplog) -> None:
    path = tmp_path / "k.yaml"
    path.write_text(keys_text().replace("{id: b1,", "{id: b1, expires: 2020-01-01,"))
    frontend = await open_with_keys(fleet, path)
    expired, unknown = await fleet.chat(headers=bearer(BLUE)), await fleet.chat(headers=bearer("nobodys"))
    assert (expired.status, expired.body) == (unknown.status, unknown.body) == (401, unknown.body)
    assert frontend.tenancy.counts.key_faults == {"expired": 1, "unknown": 1}
    assert "API key expired (key b1)" in caplog.text
    assert "unknown" not in caplog.text, "one line in ten seconds is enough"
    report = frontend.status().tenants
    assert report is not None
    assert report.keys is not None
    assert (report.keys.keys, report.keys.expired, report.keys.fault) == (3, 1, None)


async def test_what_is_open_and_what_is_not(fleet: Fleet, keys_file: Path) -> None:
    await open_with_keys(fleet, keys_file)
    for path in ("/health", "/live", "/ready"):
        assert (await fleet.ask(path, method="GET")).status == 200
    for path in ("/v1/models", "/v1/models/m"):
        assert (await fleet.ask(path, method="GET")).status == 401
        assert (await fleet.ask(path, method="GET", headers=bearer(ONE))).status == 200
    assert (await fleet.ask("/v1/models?api_key=" + ONE, method="GET")).status == 401
    assert (await fleet.ask("/nothing", b"{}")).status == 404


async def test_readiness_tells_strangers_no_addresses(fleet: Fleet, keys_file: Path) -> None:
    engine = await fleet.engine("a")
    frontend = await open_with_keys(fleet, keys_file)
    await engine.close()
    await fleet.until(lambda: not any(worker.usable for worker in frontend.ledger.snapshot().workers))
    answer = await fleet.ask("/ready", method="GET")
    assert (answer.status, json.loads(answer.body)) == (503, {"status": "no usable worker"})


async def test_a_client_cannot_claim_another_tenant(fleet: Fleet, keys_file: Path) -> None:
    """Nor its cache: keys of equal prompts are equal within a tenant and differ between tenants."""
    frontend = await open_with_keys(fleet, keys_file)
    blocks = {}
    for name, headers in {
        "one": bearer(ONE),
        "two": bearer(TWO),
        "blue": bearer(BLUE),
        "spoofing blue": [*bearer(BLUE), (b"x-tenant-id", b"acme")],
    }.items():
        assert (
            await fleet.chat(headers=headers, messages=[{"role": "user", "content": "the same " * 100}])
        ).status == 200
        record = next(iter(frontend.decisions))
        blocks[name] = (record.request.tenant, record.request.blocks.keys)
    assert len(blocks["one"][1]) > 3
    assert blocks["one"] == blocks["two"]
    assert blocks["spoofing blue"] == blocks["blue"]
    assert blocks["blue"][0] == "blue"
    assert not set(blocks["blue"][1]) & set(blocks["one"][1])
    assert all(request.header(b"x-tenant-id") is None for request in fleet.engines[0].requests)


async def test_the_engine_sees_no_secret_of_a_client(fleet: Fleet, keys_file: Path) -> None:
    await open_with_keys(fleet, keys_file)
    canary = b"canary-" + ONE.encode()
    names = (
        b"cookie",
        b"cookie2",
        b"proxy-authorization",
        b"x-goog-api-key",
        b"x-auth-token",
        b"x-access-token",
        b"x-amz-security-token",
        b"x-forwarded-access-token",
        b"x-csrf-token",
        b"x-client-secret",
        b"openai-api-key",
        b"ocp-apim-subscription-key",
        b"x-auth-key",
        b"x-functions-key",
        b"x-auth",
        b"x-goog-iap-jwt-assertion",
        b"cf-access-jwt-assertion",
        b"x-amzn-oidc-data",
        b"x-amzn-oidc-accesstoken",
        b"x-forwarded-idtoken",
    )
    headers = [*bearer(ONE), (b"x-api-key", ONE.encode()), (b"api-key", ONE.encode())]
    headers += [(name, canary) for name in names]
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
    answer = await fleet.ask(f"{CHAT}?api_key={ONE}&key={ONE}", body, headers=headers)
    assert answer.status == 200
    (seen,) = fleet.engines[0].requests
    assert ONE.encode() not in b"".join(name + value for name, value in seen.headers) + seen.target


def put(file: Path, text: str) -> None:
    """At once: the front end looks at it all the time."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


class TestReload:
    async def test_a_changed_file_is_in_force_without_a_restart(self, fleet: Fleet, keys_file: Path) -> None:
        frontend = await open_with_keys(fleet, keys_file)
        watch = frontend.tenancy.watch
        assert watch is not None
        put(keys_file, keys_text(c1=("cyan", "key-of-cyan")))
        await watch.look()
        assert (await fleet.chat(headers=bearer("key-of-cyan"))).status == 200
        assert (await fleet.chat(headers=bearer(ONE))).status == 401

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "# no keys\n",
            "keys: [",
            "[" * 3000,
            "keys:\n- {id: a}",
            None,
            "keys:\n- {id: a, tenant: t, sha256: key-of-me}",
        ],
    )
    async def test_a_broken_file_keeps_the_old_keys_loudly(self, fleet: Fleet, keys_file: Path, text, caplog) -> None:
        frontend = await open_with_keys(fleet, keys_file)
        watch = frontend.tenancy.watch
        assert watch is not None
        keys_file.unlink() if text is None else put(keys_file, text)
        await asyncio.gather(*(watch.look() for _ in range(3)))
        await watch.look()
        assert (await fleet.chat(headers=bearer(ONE))).status == 200
        said = [r.getMessage() for r in caplog.records if "the keys read before stay in force" in r.getMessage()]
        assert len(said) == 1
        assert str(keys_file) in said[0]
        assert "key-of" not in caplog.text
        metrics = (await fleet.ask("/metrics", method="GET", admin=True)).body.decode()
        assert "pointsman_keys_file_broken 1.0" in metrics
        assert 'pointsman_keys_reloads_total{outcome="broken"} 1.0' in metrics
        report = frontend.status().tenants
        assert report is not None
        assert report.keys is not None
        assert str(keys_file) in (report.keys.fault or "")
        put(keys_file, keys_text())
        await watch.look()
        assert watch.fault is None

    async def test_a_file_that_changes_while_it_is_looked_at_is_taken(self, keys_file: Path, monkeypatch) -> None:
        """Between the look that finds a change and the reading, as by two writes in a row."""
        taken: list[KeysFile] = []
        watch = KeysWatch(keys_file, taken.append, TenantCounts())
        keys_file.write_text(keys_text(a1=("acme", "key-of-acme-one"), b1=("blue", "key-of-blue")))
        stamps = 0

        def changed_after_the_first(paths) -> Stamp:
            nonlocal stamps
            stamps += 1
            stamp = stamp_of(paths)
            if stamps == 1:
                keys_file.write_text(keys_text(b1=("blue", "key-of-blue")))
            return stamp

        monkeypatch.setattr(keys_watch, "stamp_of", changed_after_the_first)
        for _ in range(2):
            await watch.look()
        assert [key.id for key in taken[-1].keys] == ["b1"]

    async def test_a_file_that_is_being_written_is_taken_when_it_rests(self, keys_file: Path, monkeypatch) -> None:
        taken: list[KeysFile] = []
        watch = KeysWatch(keys_file, taken.append, TenantCounts())
        whole = keys_text(a1=("acme", "key-of-acme-one"), b1=("blue", "key-of-blue"))
        keys_file.write_text(whole[: whole.index("- {id: b1")])
        stamps = 0

        def written_on_after_the_second(paths) -> Stamp:
            nonlocal stamps
            stamps += 1
            if stamps == 3:
                keys_file.write_text(whole)
            return stamp_of(paths)

        monkeypatch.setattr(keys_watch, "stamp_of", written_on_after_the_second)
        for _ in range(2):
            await watch.look()
        assert [[key.id for key in file.keys] for file in taken] == [["a1", "b1"]]

    async def test_the_watch_outlives_what_nobody_expected(self, keys_file: Path, monkeypatch, caplog) -> None:
        taken: list[KeysFile] = []
        monkeypatch.setattr(keys_watch, "LOOK_EVERY_S", 0.01)
        watch = KeysWatch(keys_file, taken.append, TenantCounts())

        def fails(path: Path) -> KeysFile:
            raise ZeroDivisionError("key-of-acme-one")

        with monkeypatch.context() as patched:
            patched.setattr(keys_watch, "load_keys", fails)
            watch.start()
            keys_file.write_text(keys_text(b1=("blue", "key-of-blue")))
            async with asyncio.timeout(30):
                while watch.fault is None:
                    await asyncio.sleep(0.01)
        assert "ZeroDivisionError" in watch.fault
        keys_file.write_text(keys_text(c1=("cyan", "key-of-cyan")))
        async with asyncio.timeout(30):
            while not taken:
                await asyncio.sleep(0.01)
        await watch.close()
        assert (watch.fault, [key.id for key in taken[-1].keys]) == (None, ["c1"])
        assert "key-of" not in caplog.text

    async def test_a_front_end_does_not_start_without_its_keys(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="can't be read"):
            Frontend(FrontendSettings(tenancy=TenancySettings(tmp_path / "no.yaml")))

    async def test_other_settings(self, fleet: Fleet, keys_file: Path) -> None:
        await fleet.engine("a")
        frontend = await fleet.open()
        assert (await fleet.chat()).status == 200
        await frontend.tenancy.reload(TenancySettings(keys_file))
        assert (await fleet.chat()).status == 401
        with pytest.raises(ConfigError):
            await frontend.tenancy.reload(TenancySettings(keys_file.with_name("none.yaml")))
        assert (await fleet.chat(headers=bearer(ONE))).status == 200
        keys_file.write_text("keys: [")
        for _ in range(2):
            with pytest.raises(ConfigError, match="this is no valid YAML"):
                await frontend.tenancy.reload(TenancySettings(keys_file))
        assert (await fleet.chat(headers=bearer(ONE))).status == 200
        await frontend.tenancy.reload(TenancySettings())
        assert (await fleet.chat()).status == 200


async def test_without_keys_beyond_loopback_one_line_says_so(fleet: Fleet, caplog) -> None:
    await fleet.engine("a")
    frontend = await fleet.open()
    assert "nobody is asked for a key" not in caplog.text
    frontend.tenancy.start("0.0.0.0")
    assert "nobody is asked for a key" in caplog.text


async def test_a_reload_that_takes_the_keys_away_says_what_that_means(fleet: Fleet, keys_file: Path, caplog) -> None:
    await fleet.engine("a")
    frontend = await fleet.open()
    frontend.tenancy.start("0.0.0.0")
    await frontend.tenancy.reload(TenancySettings(keys_file))
    caplog.clear()
    await frontend.tenancy.reload(TenancySettings())
    assert "listening on 0.0.0.0, and nobody is asked for a key" in caplog.text


class TestLongBodies:
    """Who has no key can't fill our memory: a long body is refused at its head."""

    @staticmethod
    async def ask(frontend: Frontend, key: str, framing: bytes, body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(frontend.url.rpartition(":")[2]))
        head = f"POST {CHAT} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {key}\r\n".encode()
        writer.write(head + framing + b"\r\n\r\n" + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return answer

    @pytest.mark.parametrize(
        "framing",
        [b"content-length: 5000000", b"transfer-encoding: chunked", b"content-length: 5000000\r\nexpect: 100-continue"],
    )
    async def test_unread_without_a_key(self, fleet: Fleet, keys_file: Path, framing: bytes) -> None:
        frontend = await open_with_keys(fleet, keys_file)
        answer = await self.ask(frontend, "nobodys", framing, b"")
        assert answer.startswith(b"HTTP/1.1 401")
        assert b"www-authenticate: Bearer" in answer
        assert frontend.tenancy.counts.key_faults == {"unknown": 1}

    async def test_read_with_one(self, fleet: Fleet, keys_file: Path) -> None:
        frontend = await open_with_keys(fleet, keys_file)
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 100_000}]}).encode()
        answer = await self.ask(frontend, ONE, b"content-length: %d" % len(body), body)
        assert answer.startswith(b"HTTP/1.1 200")
        assert frontend.tenancy.counts.keys == {"a1": 1}
