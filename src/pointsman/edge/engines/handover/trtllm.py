"""TensorRT-LLM, context first: the answer of the context leg goes into the request of the generation leg."""

from __future__ import annotations

import re

import msgspec
from msgspec import UNSET, Raw, UnsetType

from pointsman.core.model.kv_shape import HandShake
from pointsman.edge.engines.handover.fields import COMPLETIONS
from pointsman.edge.engines.handover.protocol import Asked, Complete, HandOverError, LegRequest, Peer
from pointsman.edge.engines.handover.usual import UsualHandOver
from pointsman.edge.wire.members import edited, joined, members

PARAMS = "disaggregated_params"
_GOES_ON = ("length", "not_finished")
"""Reasons for which a context leg ends although there is more to say."""
_KNOWS_USAGE = (1, 3)
"""`ctx_usage` is refused as unknown by older ones: their schema is strict."""


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    disaggregated_params: Raw | UnsetType = UNSET


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    prompt_token_ids: Raw | UnsetType = UNSET
    usage: Raw | UnsetType = UNSET


class _Ids(msgspec.Struct):
    """Larger than 2^53 as a rule: they are looked at, and go on as they were written."""

    ctx_request_id: int | None = None
    disagg_request_id: int | None = None


_answer = msgspec.json.Decoder(_Answer)
_ids = msgspec.json.Decoder(_Ids)


class Trtllm(UsualHandOver):
    """Nothing of other engines is ever sent: bodies with unknown fields are refused."""

    handshake = HandShake.TRTLLM
    lease_s: float | None = None
    """Not told; an engine's `kv_transfer_timeout_ms` frees what nobody fetches."""

    def prefill(self, asked: Asked, prefill: Peer, decode: Peer) -> LegRequest:
        """The client's body as a context request, not streamed. Its answer ends after the first token by itself."""
        params = b'{"request_type":"context_only","disagg_request_id":%d}' % asked.number
        return LegRequest(edited(asked.body, {"stream": b"false", PARAMS: params}, ("stream_options",)))

    def decode(self, asked: Asked, prefill: Peer, decode: Peer, answer: bytes | None) -> LegRequest | Complete:
        """The client's body with what the context leg was told, and token ids for its prompt."""
        told, choice = _read(answer)
        if choice.finish_reason not in _GOES_ON:
            return Complete(_as_a_client_gets_it(answer or b""))
        params: dict[str, Raw | bytes] = {**members(_params(choice)), "request_type": b'"generation_only"'}
        if isinstance(told.usage, Raw) and _knows_usage(decode.kv.version):
            params["ctx_usage"] = told.usage
        put = {PARAMS: joined(params)}
        if isinstance(told.prompt_token_ids, Raw) and bytes(told.prompt_token_ids) != b"null":
            name = "prompt" if asked.path == COMPLETIONS else "prompt_token_ids"
            put[name] = bytes(told.prompt_token_ids)
        return LegRequest(edited(asked.body, put))


def _read(answer: bytes | None) -> tuple[_Answer, _Choice]:
    if answer is None:
        raise HandOverError("there is no answer of a context leg")
    try:
        told = _answer.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HandOverError(f"the context leg's answer is not as documented: {error}") from None
    if len(told.choices) != 1:
        raise HandOverError(f"the context leg's answer has {len(told.choices)} choices, expected one")
    return told, told.choices[0]


def _params(choice: _Choice) -> bytes:
    value = choice.disaggregated_params
    if not isinstance(value, Raw) or bytes(value) == b"null":
        raise HandOverError(
            "the context leg's answer has no disaggregated_params: start the engine with cache_transceiver_config"
        )
    try:
        ids = _ids.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HandOverError(f"the context leg's disaggregated_params are not as documented: {error}") from None
    missing = [name for name in ("ctx_request_id", "disagg_request_id") if getattr(ids, name) is None]
    if missing:
        raise HandOverError(f"the context leg's disaggregated_params lack {' and '.join(missing)}")
    return bytes(value)


def _knows_usage(version: str | None) -> bool:
    match = re.match(r"(\d+)\.(\d+)", version or "")
    return match is None or (int(match[1]), int(match[2])) >= _KNOWS_USAGE


def _as_a_client_gets_it(answer: bytes) -> bytes:
    """Without what only the two engines need to know."""
    parts: dict[str, Raw | bytes] = dict(members(answer))
    parts.pop("prompt_token_ids", None)
    (choice,) = msgspec.json.decode(bytes(parts["choices"]), type=list[Raw])
    parts["choices"] = b"[%b]" % edited(bytes(choice), drop=(PARAMS,))
    return joined(parts)
