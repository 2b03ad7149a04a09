"""The topic `ledger` as bytes: what one front end tells of its requests in flight and of the prompts that it sent."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

import msgspec

from pointsman.core.model.errors import PointsmanError
from pointsman.core.model.replica import PromptTold, ReplicaNews, WorkerShare
from pointsman.core.model.token_keys import KeySpec
from pointsman.core.model.worker import WorkerId

TOPIC = "ledger"
_MOST = 2**53
"""Larger numbers are nonsense, and sums of them would not fit."""


class ReplicaNewsError(PointsmanError):
    """What a replica told of its requests makes no sense."""


class _Prompt(msgspec.Struct, array_like=True, frozen=True):
    worker: str
    model: str
    text: bytes
    """Keys as unsigned 64-bit numbers, little-endian."""
    tokens: bytes
    block_tokens: int = 0
    bigram: bool = False
    taken_back: bool = False


class _News(msgspec.Struct, array_like=True, frozen=True):
    shares: dict[str, WorkerShare]
    prompts: list[_Prompt] = []
    arrivals: dict[str, int] = {}
    whole: bool = False


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_News)


def encode_news(news: ReplicaNews) -> bytes:
    """What goes over the bus."""
    prompts = [
        _Prompt(
            prompt.worker,
            prompt.model,
            _packed(prompt.text_keys),
            _packed(prompt.token_keys),
            prompt.spec.block_size_tokens if prompt.spec else 0,
            prompt.spec is not None and prompt.spec.bigram,
            prompt.taken_back,
        )
        for prompt in news.prompts
    ]
    shares = {str(worker): share for worker, share in news.shares.items()}
    return _ENCODER.encode(_News(shares, prompts, dict(news.arrivals), news.whole))


def decode_news(payload: bytes) -> ReplicaNews:
    """What came. Raises ReplicaNewsError that says what is wrong."""
    try:
        news = _DECODER.decode(payload)
    except msgspec.MsgspecError as error:
        raise ReplicaNewsError(f"it can't be read: {error}") from None
    for worker, share in news.shares.items():
        if max(share) > _MOST or min(share._replace(slo_due_in_ms=0)) < 0 or share.slo_due_in_ms < -_MOST:
            raise ReplicaNewsError(f"it has {share} at {worker}")
    if news.arrivals and (min(news.arrivals.values()) < 0 or max(news.arrivals.values()) > _MOST):
        raise ReplicaNewsError(f"its requests by model are {news.arrivals}")
    return ReplicaNews(
        {WorkerId(worker): share for worker, share in news.shares.items()},
        [_prompt(prompt) for prompt in news.prompts],
        news.arrivals,
        news.whole,
    )


def _prompt(prompt: _Prompt) -> PromptTold:
    return PromptTold(
        WorkerId(prompt.worker),
        prompt.model,
        _unpacked(prompt.text),
        _unpacked(prompt.tokens),
        KeySpec(prompt.block_tokens, prompt.bigram) if prompt.block_tokens > 0 else None,
        prompt.taken_back,
    )


def _packed(keys: Sequence[int]) -> bytes:
    return _little_endian(array("Q", keys)).tobytes() if keys else b""


def _unpacked(packed: bytes) -> Sequence[int]:
    if len(packed) % 8:
        raise ReplicaNewsError(f"{len(packed)} bytes of keys are no whole keys")
    keys = array("Q")
    keys.frombytes(packed)
    return _little_endian(keys).tolist()


def _little_endian(keys: array[int]) -> array[int]:
    if sys.byteorder == "big":
        keys.byteswap()
    return keys
