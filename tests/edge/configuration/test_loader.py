"""The loader: what it reads, and that each fault names file, line, key and what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.core.model.worker import Role
from pointsman.edge.configuration.duration import Duration
from pointsman.edge.configuration.loader import load_file, load_text
from pointsman.edge.configuration.route_key import RouteKey
from pointsman.edge.configuration.size import Size
from pointsman.edge.configuration.tree import ConfigTree


def load(text: str) -> ConfigTree:
    return load_text(text, "c.yaml", ConfigTree)


def test_everything_at_once() -> None:
    tree = load(
        """
control-plane:
  listen_port: 9000
  timeouts: {connect: 2s, total: none}
  limits: {max_body_bytes: 1MiB}
  tls: {certificate: a.pem, key: b.pem}
execution-group:
  nodes:
    - url: http://a:8000/
      gpu_count: 2
      max_batch_size: 32
      models: [m1, none]
      node_role: both
    - {url: "https://b", name: big, kind: sglang, api_key: canary-1, queue_depth_threshold: 24}
routing: {policy: session, route_key: "header:X-Session", prefix_ttl: 30m}
metrics: {collect_queue_depth: false}
"""
    )
    plane, nodes = tree.control_plane, tree.execution_group.nodes
    assert (plane.listen_port, plane.admin_port) == (9000, 8081)
    assert (plane.timeouts.connect, plane.timeouts.total) == (Duration(2), None)
    assert plane.limits.max_body_bytes == Size(2**20)
    assert plane.tls is not None
    assert plane.tls.key == "b.pem"
    assert [node.engine_name for node in nodes] == ["a:8000", "big"]
    assert nodes[0].models == ("m1", "none")
    assert (nodes[0].gpu_count, nodes[0].node_role, nodes[0].kind) == (2, Role.BOTH, None)
    assert nodes[1].api_key is not None
    assert "canary-1" not in repr(tree)
    assert tree.routing.route_key == RouteKey.parse("header:x-session")
    assert (tree.routing.policy, tree.routing.prefix_ttl) == ("session", Duration(1800))
    assert not tree.metrics.collect_queue_depth


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "routing:\n", "control-plane: {}\nexecution-group:\n  nodes: []\n", "~"]
)
def test_empty_is_the_defaults(text: str) -> None:
    assert load(text) == ConfigTree()


def test_defaults() -> None:
    tree = ConfigTree()
    assert (tree.routing.policy, tree.routing.text_block_bytes) == ("auto", 128)
    assert (tree.control_plane.listen_host, tree.control_plane.admin_host) == ("127.0.0.1", "127.0.0.1")
    assert not tree.control_plane.debug_headers


def test_an_alias_is_read_like_what_it_stands_for() -> None:
    tree = load("control-plane:\n  timeouts: {connect: &t 3s, idle: *t}\n")
    assert tree.control_plane.timeouts.idle == Duration(3)


NODE = "execution-group:\n  nodes:\n  - url: http://a:1\n"

FAULTS = [
    ("routing:\n  polcy: x", "c.yaml:2: routing.polcy: unknown key; did you mean policy?"),
    ("x: 1", "c.yaml:1: x: unknown key; known here: control-plane, execution-group, "),
    ("\ncontrol_plane: {}", "c.yaml:2: control_plane: unknown key; did you mean control-plane?"),
    (
        "control-plane:\n  listen_port: 70000",
        "c.yaml:2: control-plane.listen_port: expected an integer from 0 to 65535, not",
    ),
    ("control-plane:\n  listen_port: yes", "expected an integer from 0 to 65535, not True"),
    ("control-plane:\n  listen_port: 1.5", "expected an integer from 0 to 65535, not 1.5"),
    ("control-plane:\n  listen_port:", "c.yaml:2: control-plane.listen_port: has no value; expected an integer"),
    ("control-plane:\n  listen_port: [1]", "c.yaml:2: control-plane.listen_port: expected an integer"),
    ("control-plane:\n  debug_headers: 1", "expected true or false, not 1"),
    ("control-plane:\n  listen_port: 8081", "c.yaml:1: control-plane.admin_port: 8081 is listen_port too"),
    ("control-plane:\n  listen_port: 1\n  admin_port: 1", "c.yaml:3: control-plane.admin_port: 1 is listen_port too"),
    ("control-plane: 5", "c.yaml:1: control-plane: expected a mapping with keys such as listen_host"),
    ("control-plane:\n  heartbeat_interval: 5", "heartbeat_interval: expected a duration above 0 with its unit"),
    ("control-plane:\n  timeouts:\n    idle: none", "c.yaml:3: control-plane.timeouts.idle: expected a duration"),
    ("control-plane:\n  limits:\n    max_body_bytes: big", "max_body_bytes: expected a size above 0"),
    ("control-plane:\n  tls:\n    key: a", "c.yaml:2: control-plane.tls.certificate is missing"),
    ("control-plane:\n  health_canary: maybe", "c.yaml:2: control-plane.health_canary: expected true or false"),
    (
        "execution-group:\n  nodes:\n  - url:",
        "c.yaml:3: execution-group.nodes[0].url: has no value; expected the base URL",
    ),
    ("execution-group:\n  nodes:\n  - {name: x}", "c.yaml:3: execution-group.nodes[0].url is missing"),
    ("execution-group:\n  nodes:\n  - x", "c.yaml:3: execution-group.nodes[0]: expected a mapping"),
    ("execution-group:\n  nodes:\n  -", "c.yaml:3: execution-group.nodes[0].url is missing"),
    ("execution-group:\n  nodes: {url: x}", "c.yaml:2: execution-group.nodes: expected a list"),
    (NODE + "  - url: http://a:1/", "c.yaml:4: execution-group.nodes[1].url: is the URL of nodes[0] too"),
    (
        NODE + "  - {url: 'http://b:1', name: 'a:1'}",
        "c.yaml:4: execution-group.nodes[1].name: nodes[0] is called 'a:1' too",
    ),
    (
        NODE + "    api_key_env: X\n    api_key: word",
        "c.yaml:5: execution-group.nodes[0].api_key: api_key_env is given too",
    ),
    (
        NODE + "    node_role: prefill",
        "c.yaml:4: execution-group.nodes[0].node_role: prefill, and nobody decodes what it serves: give another",
    ),
    (NODE + "    node_role: boss", "expected one of prefill, decode, both, not 'boss'"),
    (NODE + "    cache_transport: pigeon", "expected one of nixl, mooncake, shared-storage, shm, tcp, or none"),
    (NODE + "    kv_cache_transfer: maybe", "expected one of off, auto, always, not 'maybe'"),
    ("routing:\n  kv_transfer: on", "c.yaml:2: routing.kv_transfer: expected one of off, auto, always, not True"),
    ("routing:\n  kv_transfer_max_bytes: much", "routing.kv_transfer_max_bytes: expected a size above 0"),
    (NODE + "    kind: foo", "expected one of vllm, sglang, trtllm, llamacpp, openai, or none, not 'foo'"),
    (NODE + f"    kv_capacity_tokens: {2**63}", "kv_capacity_tokens: expected an integer from 1 to 1000000000000"),
    (NODE + f"    max_in_flight: {2**63}", "max_in_flight: expected an integer from 1 to 1000000000"),
    (NODE + f"    max_batch_size: {2**63}", "max_batch_size: expected an integer from 1 to 1000000000"),
    (NODE + f"    queue_depth_threshold: {2**63}", "queue_depth_threshold: expected an integer from 1 to 1000000000"),
    (NODE + "    models: []", "models: is empty; name at least 1, or remove the key"),
    (NODE + "    models: [1]", "c.yaml:4: execution-group.nodes[0].models[0]: expected text, not 1"),
    (NODE + "    gpu_count: -1", "expected an integer from 0 to 1000000000, not -1"),
    (NODE + "    max_batch_size: 0", "expected an integer from 1 to 1000000000, or none, not 0"),
    (NODE + "    name: 'a b'", "expected text of letters, digits and . _ : [ ] -"),
    ("etcd: {fleet: 'a:b'}", "etcd.fleet: expected text of letters, digits and . _ -"),
    ('routing:\n  policy: "k\\nv"', "c.yaml:2: routing.policy: expected text without line breaks and other control"),
    (
        NODE + '    models: ["m\\0"]',
        "nodes[0].models[0]: expected text without line breaks and other control characters",
    ),
    (NODE + '    api_key: "s\\nx"', "c.yaml:4: execution-group.nodes[0].api_key: expected printable ASCII text; char"),
    (
        NODE + "    api_key: schlüssel",
        "c.yaml:4: execution-group.nodes[0].api_key: expected printable ASCII text; char",
    ),
    (NODE + '    api_key: "  "', "c.yaml:4: execution-group.nodes[0].api_key: expected text that is not empty"),
    (
        'execution-group:\n  nodes:\n  - url: "http://a\\x01b:1"',
        "c.yaml:3: execution-group.nodes[0].url: expected the b",
    ),
    ("routing:\n  policy: session", "c.yaml:2: routing.policy: session needs routing.route_key"),
    ("routing:\n  preempt_enabled: true", "routing.preempt_enabled: true: preemption: not built yet"),
    ("routing:\n  text_block_bytes: 8", "expected an integer from 16 to 65536, not 8"),
    ("metrics:\n  export_interval: 10s", "export_interval: pushing metrics"),
    ("routing: {}\nrouting: {}", "c.yaml:2: routing is given twice (first on line 1)"),
    ("a: [", "c.yaml:1: this is no valid YAML"),
    ("routing: {}\n---\nrouting: {}", "c.yaml:2: this is no valid YAML"),
    ("routing:\n\tpolicy: x", "c.yaml:2: this is no valid YAML"),
    ("routing: *x", "this is no valid YAML: found undefined alias"),
    ("routing: &x {policy: *x}", "c.yaml:1: this alias contains itself"),
    ("routing: {policy: !!python/object:os.system {}}", "expected text"),
    ("routing: {policy: !!python/name:os.system ''}", "could not determine a constructor"),
    ("routing: {policy: 2020-99-99}", "can't be read"),
    ("? [a]\n: b", "a key must be plain text"),
    ("- routing", "c.yaml:1: expected sections, such as 'routing:', at the top"),
    ("\x01", "c.yaml: this is no valid YAML"),
]


@pytest.mark.parametrize(("text", "message"), FAULTS)
def test_fault(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [NODE + "    api_key: [word]", "execution-group: {nodes: [{url: 'http://u:word@a'}]}"])
def test_secrets_are_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert "word" not in str(caught.value).replace("password", "")


def test_file(tmp_path: Path) -> None:
    file = tmp_path / "pointsman.yaml"
    file.write_bytes(b"\xef\xbb\xbfrouting: {policy: random}\n")
    assert load_file(file).routing.policy == "random"
    file.write_bytes(b"routing:\n  policy: \xff\n")
    with pytest.raises(ConfigError, match=r"pointsman\.yaml:2: is not UTF-8 text"):
        load_file(file)
    with pytest.raises(ConfigError, match=r"absent\.yaml: can't be read: No such file"):
        load_file(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="can't be read: Is a directory"):
        load_file(tmp_path)


def test_a_mapping_of_the_users_own_keys() -> None:
    tree = load("routing:\n  tokenizers:\n    Qwen/Qwen2.5-7B: /models/qwen\n    tiny: someone/tiny\n")
    assert tree.routing.tokenizers == {"Qwen/Qwen2.5-7B": "/models/qwen", "tiny": "someone/tiny"}
    assert load("routing: {tokenizers: {}}").routing.tokenizers == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("routing:\n  tokenizers: /models/qwen\n", r"c.yaml:2.*tokenizers: expected keys and values, each value text"),
        ("routing:\n  tokenizers:\n", r"c.yaml:2.*tokenizers: has no value; expected keys and values, each value text"),
        ("routing:\n  tokenizers:\n    tiny: [a]\n", r"c.yaml:3.*routing.tokenizers.tiny: expected text"),
        ("routing:\n  tokenizers:\n    tiny:\n", r"c.yaml:3.*routing.tokenizers.tiny: has no value; expected text"),
        ("routing:\n  tokenizers:\n    tiny: 5\n", r"c.yaml:3.*routing.tokenizers.tiny: expected text"),
    ],
)
def test_a_mapping_refuses(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load(text)


def test_what_is_nested_too_deeply_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"^c\.yaml: this is nested too deeply$"):
        load_text("[" * 3000, "c.yaml", ConfigTree)
