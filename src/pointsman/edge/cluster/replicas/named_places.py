"""NamedPlaces: places with a host's name, as places with its address.

ZeroMQ asks for the address of a name in the one thread that carries all messages: while no answer came, nobody would be
heard, and nobody would hear us.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Collection

from pointsman.edge.configuration.replica_place import ReplicaPlace

_log = logging.getLogger("pointsman.cluster")

_AGAIN_S = 10.0
_AGAIN_FAILED_S = 2.0
_PATIENCE_S = 5.0


class NamedPlaces:
    """Make it inside a running event loop. `found` is told all places with addresses, whenever they change."""

    def __init__(self, found: Callable[[Collection[str]], None], again_s: float = _AGAIN_S) -> None:
        self._found = found
        self._again_s = again_s
        self._wanted: dict[str, None] = {}
        self._addresses: dict[str, str] = {}
        """Name's place → the place with its address."""
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._unknown: dict[str, str] = {}

    @property
    def trouble(self) -> str | None:
        """Which names have no address now, and why."""
        return "; ".join(f"{place}: {why}" for place, why in self._unknown.items()) or None

    def follow(self, places: Collection[str]) -> None:
        """These from now on, and no others."""
        self._wanted = dict.fromkeys(places)
        for place in [known for known in self._asking if known not in self._wanted]:
            self._asking.pop(place).cancel()
            self._addresses.pop(place, None)
            self._unknown.pop(place, None)
        for place in self._wanted:
            if place not in self._asking and _has_name(place):
                self._asking[place] = asyncio.create_task(self._ask(ReplicaPlace(place)), name=f"address of {place}")
        self._tell()

    def close(self) -> None:
        """Ask no more."""
        for task in self._asking.values():
            task.cancel()
        self._asking.clear()

    def _tell(self) -> None:
        named = {place: self._addresses.get(place) if _has_name(place) else place for place in self._wanted}
        self._found([address for address in named.values() if address is not None])

    async def _ask(self, place: ReplicaPlace) -> None:
        while True:
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    addresses = await addresses_of(place.host, place.port)
            except OSError as error:  # a TimeoutError is one
                why = "nobody answers" if isinstance(error, TimeoutError) else str(error.strerror or error)
                if place not in self._unknown:
                    _log.warning("replicas: the address of %s can't be found: %s; asked again and again", place, why)
                self._unknown[place] = f"its address can't be found: {why}"
                await asyncio.sleep(_AGAIN_FAILED_S)
                continue
            if self._unknown.pop(place, None) is not None:
                _log.info("replicas: the address of %s is found", place)
            places = [place.with_host(address) for address in addresses]
            if self._addresses.get(place) not in places:  # of several in changing order one is kept
                self._addresses[place] = places[0]
                self._tell()
            await asyncio.sleep(self._again_s)


async def addresses_of(host: str, port: int) -> list[str]:
    """At least one. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def _has_name(place: str) -> bool:
    if not place.startswith("tcp:"):
        return False
    try:
        ipaddress.ip_address(ReplicaPlace(place).host)
    except ValueError:
        return True
    return False
