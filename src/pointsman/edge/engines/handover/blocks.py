"""The embedded engine's hand-shake: vLLM's shape, and parts of a prompt that are held, fetched and freed by calls."""

from __future__ import annotations

from typing import Annotated

import msgspec

from pointsman.core.model.kv_shape import HandShake
from pointsman.edge.engines.handover.kv_params import held_name, held_tokens, params_of
from pointsman.edge.engines.handover.protocol import Asked, HandOverError, LegRequest, Moved, Peer
from pointsman.edge.engines.handover.vllm_nixl import PARAMS, TransferParams
from pointsman.edge.wire.members import edited, joined, members

HOLD_PATH, RELEASE_PATH = "/kv/hold", "/kv/release"
_OF_THE_PROMPT = (
    "model",
    "prompt",
    "messages",
    "tools",
    "tool_choice",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "cache_salt",
)
"""Members that decide which tokens a prompt has, and whose cache may be used."""


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Transfer(msgspec.Struct):
    transferred_tokens: _Count | None = None
    transferred_bytes: _Count | None = None
    transfer_ms: Annotated[float, msgspec.Meta(ge=0)] | None = None
    transport: Annotated[str, msgspec.Meta(max_length=32)] | None = None


class _Params(msgspec.Struct):
    pointsman_transfer: _Transfer | None = None


class _Answer(msgspec.Struct):
    kv_transfer_params: _Params | None = None


_answer = msgspec.json.Decoder(_Answer)


class Blocks(TransferParams):
    """As vLLM's, or a part held by anybody and fetched."""

    handshake = HandShake.BLOCKS

    def hold(self, asked: Asked, source: Peer, tokens: int) -> LegRequest | None:
        """Has it keep the leading blocks that it has, at most so many tokens."""
        parts = {name: value for name, value in members(asked.body).items() if name in _OF_THE_PROMPT}
        put: dict[str, msgspec.Raw | bytes] = {**parts, "max_tokens": b"%d" % tokens}
        if asked.prompt_ids is not None:
            for name in ("prompt", "messages"):
                put.pop(name, None)
            put["token_ids"] = msgspec.json.encode(list(asked.prompt_ids))
        return LegRequest(joined(put), HOLD_PATH)

    def pull(self, asked: Asked, source: Peer, target: Peer, answer: bytes) -> tuple[LegRequest, int]:
        """The client's body with what is held. Raises HandOverError where nothing is."""
        wrapped = _wrapped(answer)
        tokens = held_tokens(wrapped)
        if tokens <= 0:
            raise HandOverError(f"{source.worker} holds nothing of the prompt any more")
        return LegRequest(edited(asked.body, {PARAMS: params_of(wrapped)})), tokens

    def release(self, source: Peer, answer: bytes) -> LegRequest | None:
        """Frees what is held under the name that the answer gave it."""
        name = held_name(_wrapped(answer))
        return None if name is None else LegRequest(msgspec.json.encode({"remote_request_id": name}), RELEASE_PATH)

    def moved(self, body: bytes) -> Moved | None:
        """From the `pointsman_transfer` of an answer's or an event's `kv_transfer_params`."""
        try:
            params = _answer.decode(body).kv_transfer_params
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        told = params.pointsman_transfer if params is not None else None
        if told is None:
            return None
        return Moved(told.transferred_tokens, told.transferred_bytes, told.transfer_ms, told.transport)


def _wrapped(answer: bytes) -> bytes:
    """`/kv/hold` answers with the object itself, a prefill leg with a completion that has it as a member."""
    try:
        return answer if PARAMS in members(answer) else b'{"%b":%b}' % (PARAMS.encode(), answer)
    except ValueError as error:
        raise HandOverError(f"the answer of the engine that holds KV is not as documented: {error}") from None
