"""The page on configuration is made from the types, complete, and its example works."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pointsman.app.cli.configuration_doc import EXAMPLE, document, main
from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.execution_group import Node
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.routing import Routing
from pointsman.edge.configuration.tree import ConfigTree

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == document()


def test_the_example_is_on_the_page_and_loads() -> None:
    assert f"```yaml\n{EXAMPLE}```" in document()
    tree = load_text(EXAMPLE, "example", ConfigTree)
    assert [node.engine_name for node in tree.execution_group.nodes] == ["10.0.0.1:8000", "big"]


@pytest.mark.parametrize("section", [Node, Routing])
def test_each_key_has_a_row(section: type[msgspec.Struct]) -> None:
    rows = document().splitlines()
    for field in msgspec.structs.fields(section):
        row = next(row for row in rows if row.startswith(f"| `{field.encode_name}` |"))
        assert not row.endswith("|  |")


def test_what_is_not_built_is_named() -> None:
    text = document()
    assert "Not built yet: `true`." in text
    assert "Not built yet, refused by name: `export_interval`" in text


DESIGNED = """\
control-plane: {listen_port: 8080, admin_port: 8081, heartbeat_interval: 5s, health_check_enabled: true}
execution-group:
  nodes:
    - {url: http://10.0.0.1:8000, node_role: both, gpu_count: 2, max_batch_size: 32, queue_depth_threshold: 24}
routing: {policy: auto, route_key: "header:x-tenant", fallback_to_local: true, preempt_enabled: false}
metrics: {collect_queue_depth: true, collect_kv_cache_miss: true}
"""


def test_keys_that_operators_know_load() -> None:
    assert len(load_text(DESIGNED, "c.yaml", ConfigTree).execution_group.nodes) == 1


@pytest.mark.parametrize(
    ("known", "later"),
    [
        ("preempt_enabled: false", "preempt_enabled: true"),
        ("collect_queue_depth: true", "export_interval: 10s"),
    ],
)
def test_those_that_nothing_is_built_for_are_refused_by_name(known: str, later: str) -> None:
    with pytest.raises(ConfigError, match=f"{later.partition(':')[0]}: .*not built yet"):
        load_text(DESIGNED.replace(known, later), "c.yaml", ConfigTree)


def test_check_and_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "configuration.md"
    assert main(["--check", str(page)]) == 1
    assert "is out of date: run" in capsys.readouterr().err
    assert main([str(page)]) == 0
    assert main(["--check", str(page)]) == 0
    page.write_text("old")
    assert main(["--check", str(page)]) == 1
    assert main([]) == 2
