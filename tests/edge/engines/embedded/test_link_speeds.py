from __future__ import annotations

import pytest

from pointsman.edge.engines.embedded.link_speeds import CodecFor
from pointsman.edge.transfer.blocks import Peer, TransferReport

PEER = Peer("P", "10.0.0.1", 7000, "t")
MB = 1_000_000


def seen(bytes_per_ms: float, size: int = 4 * MB, **changes: object) -> TransferReport:
    """A transfer of 2 ms floor over a link of that speed."""
    told = {"ms": 2 + size / bytes_per_ms, "first_byte_ms": 2.0, "transport": "tcp", "codec": "none", **changes}
    return TransferReport("P", "D", 4, size, size, **told)  # type: ignore[arg-type]


def test_what_the_operator_says_is_done() -> None:
    codec_for = CodecFor("int8")
    codec_for.learned(PEER.host, seen(1e7))
    assert codec_for(PEER, 10 * MB) == "int8"


def test_auto_waits_until_a_link_is_known_and_goes_by_its_speed() -> None:
    codec_for = CodecFor("auto")
    assert codec_for(PEER, 10 * MB) == "none"
    codec_for.learned(PEER.host, seen(6_250))  # 50 Mb/s
    assert codec_for(PEER, 10 * MB) == "f16"
    assert codec_for(Peer("Q", "10.0.0.2", 7000, "t"), 10 * MB) == "none"
    for _ in range(20):
        codec_for.learned(PEER.host, seen(1_250_000))  # 10 Gb/s
    assert codec_for(PEER, 10 * MB) == "none"


@pytest.mark.parametrize("changes", [{"transport": "shm"}, {"resumed": 1}])
def test_what_says_nothing_of_the_link_teaches_nothing(changes: dict[str, object]) -> None:
    codec_for = CodecFor("auto")
    codec_for.learned(PEER.host, seen(6_250, **changes))
    codec_for.learned(PEER.host, seen(6_250, size=1_000))
    assert codec_for(PEER, 10 * MB) == "none"


def test_coding_is_no_time_of_the_link() -> None:
    """A link on which f16 pays stays one on which it pays once f16 is used."""
    codec_for = CodecFor("auto")
    for _ in range(10):
        size, speed = 8 * MB, 250_000
        coding_ms = size / 1.3e6 + size / 1.6e6
        report = TransferReport("P", "D", 4, size, size // 2, 2 + coding_ms + size / 2 / speed, 2.0, "tcp", "f16")
        codec_for.learned(PEER.host, report)
        assert codec_for(PEER, 10 * MB) == "f16"


def test_hosts_that_are_not_met_again_are_forgotten() -> None:
    codec_for = CodecFor("auto")
    for number in range(1_000):
        codec_for.learned(f"host{number}", seen(6_250))
    assert len(codec_for._bytes_per_ms) == 256
    assert codec_for(Peer("P", "host999", 7000, "t"), 10 * MB) == "f16"
