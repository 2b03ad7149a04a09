from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pointsman.edge.transfer.codec_choice import USUAL_COSTS, CodecCost, best_codec
from pointsman.edge.transfer.codecs import codec, codec_names, compressing, most_bytes
from pointsman.edge.transfer.errors import TransferError
from pointsman.edge.transfer.layout import BlockLayout

LAYOUT = BlockLayout("model", "<f4", 2, 2, 4, 8)
BLOCKS = hnp.arrays(np.float32, LAYOUT.shape, elements=st.floats(-(2.0**100), 2.0**100, width=32))


def through(name: str, block: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    data = codec(name).encode(block)
    assert len(data) <= most_bytes(LAYOUT)
    return codec(name).decoded(data, LAYOUT)


@given(block=BLOCKS)
@settings(max_examples=40)
def test_lossless_codecs_give_the_same_bits_back(block: np.ndarray) -> None:  # type: ignore[type-arg]
    for name in ("none", compressing()):
        assert codec(name).lossless
        assert through(name, block).tobytes() == block.tobytes()


@given(block=hnp.arrays(np.float32, LAYOUT.shape, elements=st.floats(-60_000, 60_000, width=32)))
@settings(max_examples=40)
def test_lossy_codecs_keep_to_their_precision(block: np.ndarray) -> None:  # type: ignore[type-arg]
    assert np.allclose(through("f16", block), block, rtol=2**-11, atol=6e-8)
    largest = np.abs(block).max(axis=(-2, -1), keepdims=True)
    assert (np.abs(through("int8", block) - block) <= largest / 254 * 1.001 + 1e-37).all()


def test_what_float16_does_not_reach_becomes_its_largest_value() -> None:
    block = np.full(LAYOUT.shape, 1e9, np.float32)
    assert (through("f16", block) == 65504).all()


def test_zeros_stay_zeros() -> None:
    zeros = np.zeros(LAYOUT.shape, np.float32)
    for name in codec_names():
        assert (through(name, zeros) == 0).all()


@pytest.mark.parametrize("name", ["none", "f16", "int8", "zstd"])
@pytest.mark.parametrize("data", [b"", b"abc", bytes(100), bytes(5000)])
def test_what_no_codec_wrote_is_refused(name: str, data: bytes) -> None:
    with pytest.raises(TransferError, match=f"can't be decoded from {name}"):
        codec(name).decoded(data, LAYOUT)


def test_a_compressed_bomb_is_not_unpacked() -> None:
    big = BlockLayout("model", "<f4", 2, 2, 4, 8 << 15)
    bomb = codec(compressing()).encode(np.zeros(big.shape, np.float32))
    assert len(bomb) < 50_000
    with pytest.raises(TransferError, match="its size is another one"):
        codec(compressing()).decoded(bomb, LAYOUT)


def test_an_unknown_codec_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(TransferError, match="'lz4' is not known here; there are none, f16, int8, zstd"):
        codec("lz4")


def test_a_codec_pays_on_slow_links_only() -> None:
    cost = CodecCost("half", 0.5, 1e6, 1e6)
    # 1 MB: 2 ms of coding save half of the bytes, so it pays below half a MB in 2 ms.
    assert best_codec(1e6, 0.24e6, [cost]) == "half"
    assert best_codec(1e6, 0.26e6, [cost]) == "none"
    assert best_codec(1e6, None, [cost]) == "none"


def test_the_best_of_several_depends_on_the_link() -> None:
    costs = [USUAL_COSTS["f16"], USUAL_COSTS["int8"]]
    assert best_codec(1e7, 6.25e3, costs) == "int8"  # 50 Mb/s
    assert best_codec(1e7, 1.25e6, costs) == "none"  # 10 Gb/s
