"""`kv_transfer_params`: the object by which an engine that computed a prompt says where its KV can be read."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, UnsetType

from pointsman.edge.engines.handover.protocol import HandOverError


class _Answer(msgspec.Struct):
    kv_transfer_params: Raw | UnsetType = UNSET


class _Told(msgspec.Struct):
    """What is looked at; the object itself goes on as it came."""

    do_remote_prefill: bool = False
    remote_block_ids: Raw | UnsetType = UNSET
    """A list of block ids (older releases), or one of such lists a group of layers."""
    remote_engine_id: str | None = None
    remote_request_id: str | None = None
    remote_host: str | None = None
    remote_port: int | None = None
    remote_num_tokens: int | None = None
    transfer_mode: str | None = None


_answer = msgspec.json.Decoder(_Answer)
_told = msgspec.json.Decoder(_Told)
_NOTHING = (b"null", b"[]", b"[[]]")
_READ = ("remote_engine_id", "remote_host", "remote_port")


def returned_params(answer: bytes | None) -> bytes:
    """The object of a prefill leg's answer, unchanged. Raises HandOverError where nothing can be read with it."""
    params, told = _params(answer)
    if not told.do_remote_prefill:
        raise HandOverError(
            "the engine that computed the prompt keeps nothing to be read (do_remote_prefill is not set)"
        )
    missing = [name for name in _READ if getattr(told, name) is None]
    blocks = told.remote_block_ids
    if not isinstance(blocks, Raw) or bytes(blocks).translate(None, b" \t\r\n") in _NOTHING:
        missing.append("remote_block_ids")
    if missing:
        raise HandOverError(f"kv_transfer_params of the prefill leg's answer lack {', '.join(missing)}")
    if told.transfer_mode not in (None, "pull"):
        raise HandOverError(
            f"the engine that computed the prompt writes KV itself (transfer_mode {told.transfer_mode!r}), which needs "
            "the other one to be known before; start it with the connector that is read from (NixlConnector)"
        )
    return params


def held_tokens(answer: bytes) -> int:
    """How many tokens can be read with an answer's object. Raises HandOverError where it is none."""
    return _params(answer)[1].remote_num_tokens or 0


def held_name(answer: bytes) -> str | None:
    """By which name the engine that keeps the KV knows it; None where the answer does not say."""
    try:
        return _params(answer)[1].remote_request_id
    except HandOverError:
        return None


def params_of(answer: bytes | None) -> bytes:
    """The object of any answer that has one, unchanged. Raises HandOverError where there is none."""
    return _params(answer)[0]


def _params(answer: bytes | None) -> tuple[bytes, _Told]:
    if answer is None:
        raise HandOverError("there is no answer of a prefill leg")
    try:
        value = _answer.decode(answer).kv_transfer_params
        if not isinstance(value, Raw) or bytes(value) == b"null":
            raise HandOverError(
                "the prefill leg's answer has no kv_transfer_params: the engine was started without a KV connector, or "
                "the request was aborted"
            )
        params = bytes(value)
        return params, _told.decode(params)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HandOverError(f"the prefill leg's answer is not as documented: {error}") from None
