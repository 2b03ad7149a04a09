from __future__ import annotations

import pytest

from pointsman.edge.cluster.kv_source import KvSource, NoKvSource, kv_sources, reachable
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.configuration.execution_group import KvEventEndpoints
from pointsman.edge.engines.facts import Capabilities, EngineFacts, KvEventSource


def facts(*sources: KvEventSource, ranks: tuple[int, ...] = (0,), kind: str = "vllm", told: bool = True) -> EngineFacts:
    events = sources if told else None
    return EngineFacts(kind, "1", ("m",), ranks=ranks, capabilities=Capabilities(kv_events=events))


def source(url: str = "http://10.0.0.7:8000", **said: object) -> WorkerSource:
    return WorkerSource("a", url, kv_events=KvEventEndpoints(**said) if said else None)


@pytest.mark.parametrize(
    ("kind", "version", "hinted"),
    [
        ("sglang", "0.5.9", True),
        ("sglang", "v0.4.10.post2", True),
        ("sglang", "0.5.23", False),
        ("sglang", "0.6.0rc1", False),
        ("sglang", "main", False),
        ("sglang", None, False),
        ("vllm", "0.5.9", False),
    ],
)
def test_what_an_old_sglang_may_not_tell(kind, version, hinted):
    events = (KvEventSource(0, "tcp://*:5557"),)
    (where,) = kv_sources(source(), EngineFacts(kind, version, ("m",), capabilities=Capabilities(kv_events=events)))
    assert ("cache_salt" in where.hint) is hinted


@pytest.mark.parametrize(
    ("endpoint", "host", "where"),
    [
        ("tcp://*:5557", "10.0.0.7", "tcp://10.0.0.7:5557"),
        ("tcp://0.0.0.0:5557", "gpu-a", "tcp://gpu-a:5557"),
        ("tcp://[::]:5557", "fd00::7", "tcp://[fd00::7]:5557"),
        ("tcp://:::5557", "fd00::7", "tcp://[fd00::7]:5557"),
        ("tcp://10.1.1.1:5557", "10.0.0.7", "tcp://10.1.1.1:5557"),
        ("tcp://127.0.0.1:5557", "localhost", "tcp://127.0.0.1:5557"),
        ("ipc:///run/kv", "127.0.0.1", "ipc:///run/kv"),
    ],
)
def test_where_an_endpoint_is(endpoint, host, where):
    assert reachable(endpoint, host) == where


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("tcp://127.0.0.1:5557", "names its own loopback address; give it tcp://\\*:5557"),
        ("tcp://localhost:5557", "loopback"),
        ("inproc://kv", "use an endpoint tcp://\\*:PORT or ipc://PATH"),
        ("tcp://*", "use an endpoint"),
    ],
)
def test_an_endpoint_that_nobody_reaches(endpoint, message):
    with pytest.raises(ValueError, match=message):
        reachable(endpoint, "10.0.0.7")


def test_each_rank_has_its_own():
    told = [KvEventSource(rank, f"tcp://*:{5557 + rank}", f"tcp://*:{6557 + rank}", "kv") for rank in (0, 1)]
    assert kv_sources(source(), facts(*told, ranks=(0, 1))) == (
        KvSource("a/0", "tcp://10.0.0.7:5557", "tcp://10.0.0.7:6557", "kv", rank=0),
        KvSource("a/1", "tcp://10.0.0.7:5558", "tcp://10.0.0.7:6558", "kv", rank=1),
    )


def test_a_lone_rank_may_have_any_number():
    (where,) = kv_sources(source(), facts(KvEventSource(3, "tcp://*:5560"), ranks=(3,)))
    assert where == KvSource("a/3", "tcp://10.0.0.7:5560")


def test_what_is_said_wins_over_what_is_told():
    told = facts(KvEventSource(0, "tcp://*:1", "tcp://*:2", "told"), KvEventSource(1, "tcp://*:3"), ranks=(0, 1))
    said = source(endpoint="tcp://10.9.9.9:7000", replay_endpoint="tcp://10.9.9.9:8000", topic="")
    assert [(where.endpoint, where.replay_endpoint, where.topic) for where in kv_sources(said, told)] == [
        ("tcp://10.9.9.9:7000", "tcp://10.9.9.9:8000", ""),
        ("tcp://10.9.9.9:7001", "tcp://10.9.9.9:8001", ""),
    ]
    (where,) = kv_sources(source(topic="said"), facts(KvEventSource(0, "tcp://*:1", "tcp://*:2", "told")))
    assert where == KvSource("a/0", "tcp://10.0.0.7:1", "tcp://10.0.0.7:2", "said")
    (where,) = kv_sources(source(endpoint="tcp://*:7000"), facts(told=False, kind="trtllm"))
    assert where == KvSource("a/0", "tcp://10.0.0.7:7000")


def test_an_engine_that_connects_needs_us_to_bind():
    told = facts(KvEventSource(0, "tcp://10.0.0.1:5557", connects=True), kind="sglang")
    (nothing,) = kv_sources(source(), told)
    assert isinstance(nothing, NoKvSource)
    assert "bind: true" in nothing.reason
    (where,) = kv_sources(source(endpoint="tcp://*:5557", bind=True), told)
    assert where == KvSource("a/0", "tcp://*:5557", bind=True)


@pytest.mark.parametrize(
    ("told", "reason", "expected"),
    [
        (facts(), "sends no KV events: start the engine with --kv-events-config", False),
        (facts(told=False), "does not tell where it sends KV events", False),
        (facts(told=False, kind="llamacpp"), "engines of the kind llamacpp send no KV events", True),
        (facts(KvEventSource(0, "inproc://kv")), "use an endpoint", False),
    ],
)
def test_why_there_are_no_events(told, reason, expected):
    (nothing,) = kv_sources(source(), told)
    assert isinstance(nothing, NoKvSource)
    assert reason in nothing.reason
    assert nothing.expected is expected
