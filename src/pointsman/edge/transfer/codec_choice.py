"""Whether a codec pays: encoding, fewer bytes on the link, decoding, against all bytes on the link."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pointsman.edge.transfer.codecs import NONE


@dataclass(frozen=True, slots=True)
class CodecCost:
    """What a codec is to be reckoned with."""

    name: str
    ratio: float
    """Bytes on the wire for one of KV."""
    encode_bytes_per_ms: float
    """Of KV, on one core."""
    decode_bytes_per_ms: float

    def ms(self, size_bytes: float, bytes_per_ms: float) -> float:
        """Of a transfer over a link of that speed, its floor left out."""
        coding = size_bytes / self.encode_bytes_per_ms + size_bytes / self.decode_bytes_per_ms
        return coding + size_bytes * self.ratio / bytes_per_ms


USUAL_COSTS = {
    cost.name: cost
    for cost in (
        CodecCost("f16", 0.5, 1.3e6, 1.6e6),
        CodecCost("int8", 0.251, 2.5e6, 3.5e6),
        CodecCost("zstd", 0.86, 0.6e6, 0.7e6),
        CodecCost("zlib", 0.86, 0.055e6, 0.5e6),
    )
}
"""Measured (docs/transfer.md)."""


def best_codec(size_bytes: float, bytes_per_ms: float | None, costs: Iterable[CodecCost]) -> str:
    """The codec with which a transfer takes least; `none` where none pays, or nothing is known of the link."""
    if bytes_per_ms is None:
        return NONE
    best, least_ms = NONE, size_bytes / bytes_per_ms
    for cost in costs:
        ms = cost.ms(size_bytes, bytes_per_ms)
        if ms < least_ms:
            best, least_ms = cost.name, ms
    return best
