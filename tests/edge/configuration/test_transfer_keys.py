"""Keys that say when KV moves between engines, and which stages an engine computes."""

from __future__ import annotations

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.core.model.transfer import USUAL_RULES, TransferMode, TransferRules
from pointsman.core.model.worker import Role
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.serving.settings import FrontendSettings

NODES = """\
execution-group:
  nodes:
  - {url: "http://p:1", node_role: prefill, models: [m]}
  - {url: "http://q:1", node_role: ROLE, models: MODELS}
"""


def loaded(text: str) -> ConfigTree:
    return load_text(text, "c.yaml", ConfigTree)


def test_the_word_off_is_no_truth_value_here() -> None:
    assert loaded("routing:\n  kv_transfer: off").routing.kv_transfer is TransferMode.OFF
    node = "execution-group:\n  nodes:\n  - {url: 'http://a:1', kv_cache_transfer: off}"
    (source,) = FrontendSettings.of(loaded(node)).sources
    assert not source.moves_kv


def test_rules_come_from_routing() -> None:
    assert FrontendSettings.of(loaded("")).transfer == USUAL_RULES
    text = "routing: {kv_transfer: always, kv_transfer_max_bytes: 2GiB, fallback_to_local: false}"
    assert FrontendSettings.of(loaded(text)).transfer == TransferRules(TransferMode.ALWAYS, 2 * 2**30, False)


def test_an_engine_says_role_place_and_transport() -> None:
    text = """\
control-plane: {topology_levels: [host, rack, zone]}
execution-group:
  nodes:
  - {url: "http://a:1", node_role: decode, topology: {host: h1, zone: z}, cache_transport: nixl}
  - {url: "http://b:1"}
"""
    one, other = FrontendSettings.of(loaded(text)).sources
    assert (one.role, one.place, one.cache_transport, one.moves_kv) == (Role.DECODE, ("h1", "", "z"), "nixl", True)
    assert (other.role, other.place, other.cache_transport) == (Role.BOTH, (), None)


@pytest.mark.parametrize(
    ("role", "models", "missing"),
    [
        ("decode", "[m]", None),
        ("both", "[m, n]", None),
        ("decode", "none", None),
        ("decode", "[n]", "nodes[0].node_role: prefill, and nobody decodes model m"),
        ("prefill", "[m]", "nodes[0].node_role: prefill, and nobody decodes model m"),
        ("prefill", "none", "nodes[0].node_role: prefill, and nobody decodes model m"),
    ],
)
def test_what_is_prefilled_has_to_be_decoded_by_somebody(role: str, models: str, missing: str | None) -> None:
    text = NODES.replace("ROLE", role).replace("MODELS", models)
    if missing is None:
        loaded(text)
        return
    with pytest.raises(ConfigError) as caught:
        loaded(text)
    assert missing in str(caught.value)


def test_engines_that_decode_may_be_found_elsewhere() -> None:
    text = NODES.replace("ROLE", "prefill").replace("MODELS", "[m]")
    loaded(text + "discovery: {file: engines.yaml}\n")
