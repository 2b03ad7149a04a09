"""Certificates: notices when files of certificates change, and has them read again."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.watched_files import Stamp, stamp_of
from pointsman.edge.serving.metric_families import counter, gauge
from pointsman.edge.serving.tls import ListenTls
from pointsman.edge.telemetry import names

LOOK_EVERY_S = 2.0

_log = logging.getLogger("pointsman.serving")


class Renews(Protocol):
    """Certificates that other servers are checked by or shown: engines, etcd, admin ports."""

    def files(self) -> list[Path]:
        """All that are read."""
        ...

    def renew(self) -> list[str]:
        """Read them again; what is wrong with some, for which what was read before holds."""
        ...


class Certificates(Collector):
    """Of the ports and of what is called. A broken file changes nothing, loudly."""

    def __init__(self, ports: Iterable[ListenTls | None], *called: Renews) -> None:
        self._ports = tuple(port for port in ports if port is not None)
        self._called = called
        self._stamps: dict[Path, Stamp] = {}
        """Of each file, when it was looked at last."""
        self.faults: tuple[str, ...] = ()
        """What is wrong with files as they are now; what was read before holds."""
        self.reloads: Counter[str] = Counter()
        """By what came of it: read, broken."""
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look every other second, in a thread: a file may be on a disk that hangs."""
        self._task = asyncio.create_task(self._run(), name="certificates")

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception as error:
                # The watch must outlive whatever stands in a file: it is what takes new certificates.
                fault = f"certificates can't be read, for a reason that nobody expected ({type(error).__name__})"
                if self.faults != (fault,):
                    _log.exception("the certificates read before stay in force")
                self.faults = (fault,)
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Have the files read again if one has changed, came or went.

        What came was read when it was added, and may have changed since then; what went may have been broken.
        """
        async with self._turn:
            await self._look()

    async def _look(self) -> None:
        files = [
            *(file for port in self._ports for file in port.files()),
            *(file for one in self._called for file in one.files()),
        ]
        stamps = await asyncio.to_thread(_stamps_of, files) if files else {}
        before, self._stamps = self._stamps, stamps
        if stamps == before:
            return
        faults = await asyncio.to_thread(self._renew)
        changed = any(before.get(file, stamp) != stamp for file, stamp in stamps.items())
        if changed or faults:
            self.reloads["broken" if faults else "read"] += 1
        if faults and faults != self.faults:
            _log.error("the certificates read before stay in force: %s", "; ".join(faults))
        elif changed and not faults:
            _log.info("certificates were read again; connections from now on use them")
        self.faults = faults

    def _renew(self) -> tuple[str, ...]:
        # Several may read the same files.
        return tuple(dict.fromkeys((*(fault for one in self._called for fault in one.renew()), *self._renew_ports())))

    def _renew_ports(self) -> Iterator[str]:
        for port in self._ports:
            try:
                port.renew()
            except ConfigError as error:
                yield str(error)

    def collect(self) -> Iterator[MetricFamily]:
        """Their metrics; none where there are no files."""
        if self._stamps:
            yield counter(names.CERTIFICATE_RELOADS, ("outcome",), (((o,), n) for o, n in self.reloads.items()))
            yield gauge(names.CERTIFICATES_BROKEN, (), [((), 1 if self.faults else 0)])
        if self._ports:
            yield counter(names.TLS_HANDSHAKES, ("port", "outcome"), self._handshakes())

    def _handshakes(self) -> Iterator[tuple[tuple[str, str], int]]:
        for port in self._ports:
            for outcome, number in port.handshakes.counts.items():
                yield (port.name, str(outcome)), number


def _stamps_of(files: Iterable[Path]) -> dict[Path, Stamp]:
    return {file: stamp_of((file,)) for file in files}
