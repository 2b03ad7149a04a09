from __future__ import annotations

from dataclasses import replace

import pytest

from pointsman.core.ledger.events import WorkerJoined
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.errors import ConfigError
from pointsman.core.model.worker import Role
from pointsman.edge.cluster.members import WorkerSource, checked, same_url
from pointsman.edge.engines.facts import Capabilities, EngineFacts

FACTS = EngineFacts(
    kind="vllm",
    version="1",
    models=("m",),
    ranks=(0, 1),
    max_context_tokens=4096,
    block_size_tokens=32,
    kv_capacity_tokens=9600,
    max_batch=8,
)


def test_a_spec_is_what_the_engine_says():
    spec = WorkerSource("gpu-a", "http://a:1").spec(FACTS, 1)

    assert (spec.id, spec.rank, spec.url, spec.kind, spec.models) == ("gpu-a/1", 1, "http://a:1", "vllm", ("m",))
    assert (spec.kv_capacity_tokens, spec.block_size_tokens, spec.max_context_tokens) == (9600, 32, 4096)
    assert (spec.max_batch_size, spec.queue_depth_threshold) == (8, None)


@pytest.mark.parametrize("number", [2**63, 10**30, -1, 0])
def test_numbers_beyond_reason_are_as_good_as_not_told(number):
    facts = replace(
        FACTS, kv_capacity_tokens=number, block_size_tokens=number, max_context_tokens=number, max_batch=number
    )
    spec = WorkerSource("a", "http://a:1").spec(facts, 0)
    told = (spec.kv_capacity_tokens, spec.block_size_tokens, spec.max_context_tokens, spec.max_batch_size)
    assert told == (None, None, None, None)
    ledger = Ledger()
    ledger.apply(WorkerJoined(spec, 0.0))
    assert ledger.snapshot().workers[0].kv_capacity_tokens == 0


def test_what_the_configuration_says_wins():
    source = WorkerSource(
        "a",
        "http://a:1",
        role=Role.PREFILL,
        gpu_count=2,
        max_batch_size=4,
        queue_depth_threshold=9,
        models=("alias",),
        kv_capacity_tokens=100,
    )

    spec = source.spec(FACTS, 0)

    assert (spec.role, spec.gpu_count, spec.max_batch_size, spec.queue_depth_threshold) == (Role.PREFILL, 2, 4, 9)
    assert (spec.models, spec.kv_capacity_tokens) == (("alias",), 100)


def test_a_rank_header_is_only_for_engines_with_several_ranks():
    facts = replace(FACTS, capabilities=Capabilities(rank_header="X-data-parallel-rank", stream_usage=None))
    source = WorkerSource("a", "http://a:1")

    assert source.spec(facts, 1).rank_header == "X-data-parallel-rank"
    assert source.spec(replace(facts, ranks=(0,)), 0).rank_header is None
    assert source.spec(facts, 0).stream_usage is True
    assert source.spec(replace(facts, capabilities=Capabilities(stream_usage=False)), 0).stream_usage is False


def test_the_key_is_not_printed():
    assert "sesame" not in repr(WorkerSource("a", "http://a:1", api_key="sesame"))


def test_adapters_weight_cap_and_distance_are_the_workers():
    facts = EngineFacts("vllm", None, ("m", "sql", "chat"), lora=("sql", "chat"))
    source = WorkerSource("a", "http://a:1", weight=0.5, max_in_flight=4, topology_distance=2)

    spec = source.spec(facts, 0)

    assert (spec.weight, spec.max_in_flight, spec.topology_distance) == (0.5, 4, 2)
    assert spec.adapters == ("sql", "chat")
    assert replace(source, models=("m", "chat")).spec(facts, 0).adapters == ("chat",)


@pytest.mark.parametrize("url", ["", None, "10.0.0.1:8000", "http://", "http://None:8000", "http://null", "ftp://a"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ConfigError, match="engine 'a': URL"):
        checked([WorkerSource("a", url)])


def test_ports_that_only_look_like_the_default_one_make_other_engines():
    urls = [
        "http://a",
        "http://a:8080",
        "http://a:443",
        "https://a",
        "https://a:80",
        "http://[::80]",
        "http://[::]:180",
    ]
    assert len({same_url(url) for url in urls}) == len(urls)


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ([WorkerSource("a", "http://a:1"), WorkerSource("a", "http://b:1")], "the name 'a'"),
        ([WorkerSource("a", "http://a:1"), WorkerSource("b", "http://A:1/")], "the URL"),
        ([WorkerSource("a", "http://a"), WorkerSource("b", "http://a:80")], "the URL"),
        ([WorkerSource("a", "https://[::1]:443"), WorkerSource("b", "https://[::1]/")], "the URL"),
        ([WorkerSource("", "http://a:1")], "not empty"),
        ([WorkerSource("a/b", "http://a:1")], "no slash"),
        ([WorkerSource("a", "http://a:1", kind="tgi")], "kind 'tgi' is unknown"),
        ([WorkerSource("a", "nowhere")], "engine 'a'"),
    ],
)
def test_sources_that_cannot_be_used(sources, words):
    with pytest.raises(ConfigError, match=words):
        checked(sources)
