"""FileDiscovery: engines that a file names. It is looked at again and again, for it may be replaced in many ways."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import stat
from collections.abc import Callable
from pathlib import Path

from pointsman.core.model.errors import ConfigError
from pointsman.edge.cluster.discovery.discovery import DiscoveryStatus, Offer, ReadRecord
from pointsman.edge.cluster.discovery.record import NoAddressError, WorkerRecord, record_of_node
from pointsman.edge.cluster.discovery.standing import NO_ADDRESS, Standing
from pointsman.edge.cluster.members import WorkerSource, checked
from pointsman.edge.configuration.loader import read_text
from pointsman.edge.configuration.nodes import Node, SequenceNode, parse_documents

ORIGIN = "file"
MOST_BYTES = 16 * 2**20
_FULL_READ_LOOKS = 20
"""So often it is read although nothing seems changed: some file systems keep times of whole seconds."""

_log = logging.getLogger("pointsman.cluster")

_Signature = tuple[int, int, int, int]


class FileDiscovery:
    """A YAML or JSON file with a list of engines.

    What changed is used when two looks in a row saw the same, so a file that is being written counts only when it is
    whole. One that can't be used as a whole changes nothing, and says why.
    """

    def __init__(
        self,
        path: Path,
        read: ReadRecord,
        offer: Offer,
        now_ms: Callable[[], float],
        *,
        interval_s: float = 0.5,
    ) -> None:
        self._path = path
        self._read = read
        self._offer = offer
        self._interval_s = interval_s
        self._standing = Standing(ORIGIN, str(path), now_ms)
        self._sources: tuple[WorkerSource, ...] = ()
        self._looks = 0
        self._signature: _Signature | None = None
        self._seen: bytes | None = None
        """Digest at the last look."""
        self._used: bytes | None = None
        """Digest of what was last taken or refused."""

    @property
    def status(self) -> DiscoveryStatus:
        """As it stands now."""
        return self._standing.status(len(self._sources))

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            try:
                await self.look()
            except Exception as error:
                _log.exception("%s: could not be looked at, for a reason that nobody expected", self._path)
                self._standing.lose(repr(error))
            await asyncio.sleep(self._interval_s)

    async def look(self) -> None:
        """One look."""
        try:
            text = await asyncio.to_thread(self._text_if_changed)
        except (ConfigError, OSError) as error:
            self._signature = self._seen = self._used = None
            self._standing.lose(error.strerror or str(error) if isinstance(error, OSError) else str(error))
            return
        if text is None:
            return
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        first = self._looks == 1
        if digest == self._used and not self._standing.lost:
            self._seen = digest
        elif digest == self._seen or first:
            self._use(text, digest)
        else:
            self._seen, self._signature = digest, None

    def _text_if_changed(self) -> str | None:
        """None: nothing changed since the last look, which needed no second one."""
        self._looks += 1
        found = self._path.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe would never end
            raise ConfigError(f"{self._path}: is no ordinary file")
        signature = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        if signature == self._signature and self._looks % _FULL_READ_LOOKS:
            return None
        text = read_text(self._path, "a list of engines", MOST_BYTES)
        self._signature = signature
        return text

    def _use(self, text: str, digest: bytes) -> None:
        again = digest == self._used
        self._seen = self._used = digest
        if again:  # it was away meanwhile, or is still wrong
            self._signature = None
        try:
            sources = self._parsed(text)
        except ConfigError as error:
            self._standing.lose(str(error))
            return
        self._standing.connect()
        if sources != self._sources or self._looks == 1:
            self._sources = sources
            self._offer(sources)

    def _parsed(self, text: str) -> tuple[WorkerSource, ...]:
        documents = parse_documents(text, str(self._path))
        if not documents:
            raise ConfigError(f"{self._path}: is empty; write [] for no engines")
        if len(documents) > 1 or not isinstance(documents[0], SequenceNode):
            raise ConfigError(
                f"{documents[-1].place}: expected one list of engines, such as '- url: http://10.0.0.1:8000'"
            )
        sources = []
        ignored = set()
        for number, item in enumerate(documents[0].values):
            try:
                sources.append(self._source(item, number))
            except NoAddressError as error:
                ignored.add(str(item.place))
                self._standing.ignore(str(item.place), NO_ADDRESS, str(error))
        self._standing.use(ignored)
        return checked(sources)

    def _source(self, item: Node, number: int) -> WorkerSource:
        record = record_of_node(item, f"[{number}]", WorkerRecord)
        try:
            return self._read(record)
        except ConfigError as error:
            raise ConfigError(f"{item.place}: {error}") from None
