"""Which codec blocks from another engine shall come with."""

from __future__ import annotations

from pointsman.edge.transfer.blocks import Peer, TransferReport
from pointsman.edge.transfer.codec_choice import USUAL_COSTS, best_codec
from pointsman.edge.transfer.codecs import NONE, compressing
from pointsman.edge.transfer.negotiation import AUTO, TCP

_MOST_HOSTS = 256
_NEW = 0.3
"""Weight of the last transfer."""
_LEAST_BYTES = 64 << 10
"""Smaller transfers say nothing about a link's bandwidth."""


class CodecFor:
    """By the operator's wish; `auto`: by the bandwidth that was seen of the host that has them."""

    def __init__(self, wish: str) -> None:
        self._wish = wish
        self._bytes_per_ms: dict[str, float] = {}
        self._costs = [USUAL_COSTS["f16"], USUAL_COSTS[compressing()]]

    def __call__(self, peer: Peer, size_bytes: int) -> str:
        """For a transfer over TCP."""
        if self._wish != AUTO:
            return self._wish
        return best_codec(size_bytes, self._bytes_per_ms.get(peer.host), self._costs)

    def learned(self, host: str, report: TransferReport) -> None:
        """A transfer ended."""
        if report.transport != TCP or report.wire_bytes < _LEAST_BYTES or report.resumed:
            return
        flowing_ms = report.ms - report.first_byte_ms
        if report.codec != NONE:
            cost = USUAL_COSTS[report.codec]
            # What encoding and decoding took was no time of the link's.
            flowing_ms -= report.bytes / cost.encode_bytes_per_ms + report.bytes / cost.decode_bytes_per_ms
        speed = report.wire_bytes / max(flowing_ms, 0.01)
        known = self._bytes_per_ms.pop(host, speed)
        self._bytes_per_ms[host] = known + _NEW * (speed - known)
        while len(self._bytes_per_ms) > _MOST_HOSTS:
            del self._bytes_per_ms[next(iter(self._bytes_per_ms))]
