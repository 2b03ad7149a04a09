"""Which network interface an address belongs to, and what it says of its speed (Linux; elsewhere nothing is known)."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import msgspec

_SYSFS = Path("/sys/class/net")
_IF_INET6 = Path("/proc/net/if_inet6")
_SIOCGIFADDR = 0x8915
_ADDRESS_AT = 20
"""In the answer to SIOCGIFADDR."""


class Interface(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one side of a connection."""

    name: str
    gbit_per_s: float | None = None
    """Its nominal speed; None: it says none."""
    is_virtual: bool = False
    """It has no card behind it, such as a container's: its speed is a number that the kernel makes up."""


def interface_of(address: str, addresses: Mapping[str, str] | None = None, sysfs: Path = _SYSFS) -> Interface | None:
    """The interface with that IP address; None: it is not known. `addresses`: names of interfaces by address."""
    plain = _plain(address)
    name = (own_addresses() if addresses is None else addresses).get(plain)
    if name is None:
        return None
    folder = sysfs / name
    return Interface(name, _gbit_per_s(folder), not _has_card(folder))


def own_addresses() -> dict[str, str]:
    """Names of this machine's interfaces by their addresses; of several IPv4 addresses of one only the first."""
    found: dict[str, str] = {}
    if not sys.platform.startswith("linux"):
        return found
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has no IPv4 address
            found[socket.inet_ntoa(answer[_ADDRESS_AT : _ADDRESS_AT + 4])] = name
    return found | _own_ipv6(_IF_INET6)


def _own_ipv6(table: Path) -> dict[str, str]:
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return {}
    rows = [line.split() for line in lines]
    return {_plain(str(ipaddress.IPv6Address(int(row[0], 16)))): row[5] for row in rows if len(row) == 6}


def _plain(address: str) -> str:
    """Without a zone, and IPv4 as such where it stands in an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = getattr(parsed, "ipv4_mapped", None)
    return str(mapped or parsed)


def _gbit_per_s(folder: Path) -> float | None:
    try:
        mbit_per_s = int((folder / "speed").read_text())
    except (OSError, ValueError):
        return None
    return mbit_per_s / 1000 if mbit_per_s > 0 else None


def _has_card(folder: Path) -> bool:
    """Itself, or what it stands upon: a bond's cards, a VLAN's one."""
    if (folder / "device").exists():
        return True
    try:
        return any(lower.name.startswith("lower_") and _has_card(lower) for lower in folder.iterdir())
    except OSError:
        return False
