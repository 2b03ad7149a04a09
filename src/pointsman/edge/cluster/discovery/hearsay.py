"""Hearsay: a front end that starts while etcd is away takes from others what they know of etcd's engines."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

import msgspec

from pointsman.edge.cluster.replicas.bus import Bus, ReplicaId

_log = logging.getLogger("pointsman.cluster")

TOPIC = "etcd"


class HearsRecords(Protocol):
    """The part of EtcdDiscovery that is needed here."""

    @property
    def known(self) -> Mapping[bytes, bytes]:
        """As EtcdDiscovery's."""
        ...

    def hear(self, records: Mapping[bytes, bytes]) -> bool:
        """As EtcdDiscovery's."""
        ...


class _Known(msgspec.Struct):
    prefix: str
    records: list[tuple[bytes, bytes]]


class Hearsay:
    """Tells those that are new, and listens. What is heard counts until etcd was read; then those engines are kept."""

    def __init__(self, bus: Bus, prefix: str, discovery: HearsRecords) -> None:
        self._prefix = prefix
        self._discovery = discovery
        bus.subscribe(TOPIC, self._heard, self._gone, self._whole)

    def _heard(self, replica: ReplicaId, payload: bytes) -> None:
        try:
            known = msgspec.json.decode(payload, type=_Known)
        except msgspec.MsgspecError as error:
            _log.error("front end %s says what can't be read of etcd; is it of another version? %s", replica, error)
            return
        if known.prefix == self._prefix and self._discovery.hear(dict(known.records)):
            _log.warning(
                "etcd %s: not read so far; %d engines as front end %s knows them",
                self._prefix,
                len(known.records),
                replica,
            )

    def _gone(self, replica: ReplicaId) -> None:
        """What it knew may be so all the same."""

    def _whole(self) -> bytes | None:
        records = list(self._discovery.known.items())
        return msgspec.json.encode(_Known(self._prefix, records)) if records else None
