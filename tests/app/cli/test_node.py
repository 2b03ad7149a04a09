from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pointsman.app.cli import main
from pointsman.edge.configuration.secret import Secret
from pointsman.edge.node.client import NodeClient
from support.running import Running


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "0.0.0.0:0"], "set POINTSMAN_NODE_TOKEN (or --token-env)"),
        (["--listen", "8090"], "expected HOST:PORT"),
        (["--listen", "a:99999"], "expected HOST:PORT"),
        (["--listen", "127.0.0.1:65535"], "there is no port after 65535; give --probe-port"),
        (["--token-env", "NO_SUCH"], "NO_SUCH: that environment variable is not set"),
    ],
)
def test_wrong_input_is_named(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POINTSMAN_NODE_TOKEN", raising=False)
    assert main.run(["node", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_token_that_no_header_can_hold_is_refused_without_being_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POINTSMAN_NODE_TOKEN", "schlüssel")
    assert main.run(["node"]) == 2
    error = capsys.readouterr().err
    assert "POINTSMAN_NODE_TOKEN: expected printable ASCII text" in error
    assert "schl" not in error


def test_a_node_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    arguments = ("node", "--name", "here", "--listen", "127.0.0.1:0")
    node = Running(arguments, tmp_path, {"POINTSMAN_NODE_TOKEN": "a-token"})
    try:
        url = node.url("node at http://127.0.0.1:")

        async def name() -> str:
            async with NodeClient(Secret("a-token")) as client:
                return (await client.facts(url)).name

        assert asyncio.run(name()) == "here"
        assert node.stop() == 0
    finally:
        node.close()
