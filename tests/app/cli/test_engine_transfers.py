from __future__ import annotations

import dataclasses
import json
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from pointsman.app.cli import main
from pointsman.app.cli.engine_transfers import TRANSFER_OPTIONS, take_transfer_settings
from pointsman.core.model.errors import ConfigError
from pointsman.edge.engines.embedded.transfer_settings import TransferSettings, transfer_address


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.0.0.1:7000", ("10.0.0.1", 7000)),
        (":7000", ("127.0.0.1", 7000)),
        ("10.0.0.1", ("10.0.0.1", 0)),
        ("[::1]:7000", ("::1", 7000)),
        ("[::1]", ("::1", 0)),
    ],
)
def test_an_address_may_lack_one_half(text: str, found: tuple[str, int]) -> None:
    assert transfer_address(text) == found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kv-transfer", "host:x"], "--kv-transfer host:x: 'x' is no port; give HOST:PORT"),
        (["--kv-transfer", "host:70000"], "--kv-transfer host:70000: 70000 is no port; give HOST:PORT"),
        (
            ["--kv-transfer", "0.0.0.0:7000"],
            "--kv-transfer 0.0.0.0:7000: others are told to come there; give an address that they can reach",
        ),
        (["--kv-transfer", "::1:7000"], "--kv-transfer ::1:7000: an IPv6 address stands in brackets"),
        (["--kv-transfer", "off", "--kv-codec", "int8"], "--kv-codec: is for KV that moves, and --kv-transfer is off"),
        (["--kv-transport", "shm", "--kv-codec", "f16"], "--kv-codec f16: is for KV that comes over tcp"),
        (["--kv-lease-s", "0"], "--kv-lease-s 0: must be between 0.05 and 3600"),
        (["--kv-transfer", "192.0.2.1:7000"], "--kv-transfer: can't listen on 192.0.2.1:7000"),
    ],
)
def test_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["engine", "--kind", "embedded", "--port", "0", *arguments]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("pointsman: ")
    for part in message.split(": ", 1):
        assert part in error


def test_a_transport_that_is_not_there_is_no_start(capsys: pytest.CaptureFixture[str]) -> None:
    from pointsman.edge.transfer.nixl_agent import nixl_installed

    if nixl_installed():
        pytest.skip("NIXL is installed here")
    assert main.run(["engine", "--kind", "embedded", "--port", "0", "--kv-transport", "nixl"]) == 2
    assert "KV transport nixl: its package is not installed: pip install" in capsys.readouterr().err


def test_kv_may_stay() -> None:
    assert take_transfer_settings({"kv_transfer": "off"}) is None


def test_every_setting_of_transfers_is_an_option() -> None:
    fields = {field.name for field in dataclasses.fields(TransferSettings)} - {"host", "port"}
    assert {f"kv_{name}" for name in fields} | {"kv_transfer"} == TRANSFER_OPTIONS
    given: dict[str, Any] = {"kv_transfer": "10.0.0.1:7", "kv_codec": "zstd", "kv_lease_s": 5.0, "threads": 2}
    assert take_transfer_settings(given) == TransferSettings("10.0.0.1", 7, codec="zstd", lease_s=5.0)
    assert given == {"threads": 2}


@pytest.mark.parametrize("bad", [{"transport": "pigeon"}, {"codec": "rar"}, {"lease_s": 1e9}])
def test_settings_that_can_not_be_are_refused_by_name(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--kv-"):
        TransferSettings(**bad)


def test_two_processes_share_memory_where_they_may(start: Callable[..., Any]) -> None:
    """The proof is in the reader: it opened the other process's memory and found its word."""

    def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps({"prompt": "the river and the old man " * 20, "temperature": 0, **body}).encode()
        with urllib.request.urlopen(f"{url}/v1/completions", data=data, timeout=30) as answer:
            return dict(json.load(answer))

    engines = [start("engine", "--kind", "embedded", "--port", "0") for _ in range(2)]
    p, d = (engine.url("engine embedded serves") for engine in engines)
    params = ask(p, {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}})["kv_transfer_params"]
    answer = ask(d, {"max_tokens": 8, "kv_transfer_params": params})
    report = answer["kv_transfer_params"]["pointsman_transfer"]
    assert (report["transport"], report["transferred_tokens"]) == ("shm", params["remote_num_tokens"] - 1)
    assert answer["choices"] == ask(p, {"max_tokens": 8})["choices"]
