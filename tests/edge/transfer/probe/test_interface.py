from __future__ import annotations

from pathlib import Path

import pytest

from pointsman.edge.transfer.probe.interface import Interface, interface_of, own_addresses

ADDRESSES = {"10.0.0.1": "eth1", "fe80::1": "bond0", "10.0.0.3": "veth7", "127.0.0.1": "lo"}


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    for name, speed, has_card in (("eth1", "100000", True), ("veth7", "10000", False), ("lo", "", False)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(speed)
        if has_card:
            (tmp_path / name / "device").mkdir()
    (tmp_path / "bond0" / "lower_eth1").mkdir(parents=True)
    (tmp_path / "bond0" / "lower_eth1" / "device").mkdir()
    (tmp_path / "bond0" / "speed").write_text("50000\n")
    return tmp_path


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.1", Interface("eth1", 100.0)),
        ("::ffff:10.0.0.1", Interface("eth1", 100.0)),
        ("fe80::1%3", Interface("bond0", 50.0)),
        ("10.0.0.3", Interface("veth7", 10.0, True)),
        ("127.0.0.1", Interface("lo", None, True)),
        ("10.9.9.9", None),
        ("not an address", None),
    ],
)
def test_an_address_has_the_interface_that_carries_it(sysfs: Path, address: str, expected: Interface | None) -> None:
    assert interface_of(address, ADDRESSES, sysfs) == expected


@pytest.mark.parametrize("speed", ["-1", "0", "unknown", None])
def test_an_interface_without_a_speed_says_none(tmp_path: Path, speed: str | None) -> None:
    (tmp_path / "eth1" / "device").mkdir(parents=True)
    if speed is not None:
        (tmp_path / "eth1" / "speed").write_text(speed)
    assert interface_of("10.0.0.1", ADDRESSES, tmp_path) == Interface("eth1")


def test_this_machine_has_a_loopback_interface() -> None:
    assert own_addresses()["127.0.0.1"].startswith("lo")
