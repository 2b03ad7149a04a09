"""vLLM's MooncakeConnector: the engine that computed the KV writes it to the one that decodes; both legs at once."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from pointsman.core.model.kv_shape import HandShake
from pointsman.edge.engines.handover.fields import prompt_only
from pointsman.edge.engines.handover.protocol import Asked, Complete, HandOverError, LegRequest, Order, Peer
from pointsman.edge.engines.handover.usual import UsualHandOver
from pointsman.edge.engines.handover.vllm_nixl import PARAMS
from pointsman.edge.wire.members import edited

BOOTSTRAP_PORT = 8998
"""`VLLM_MOONCAKE_BOOTSTRAP_PORT` where nothing else is said."""
_ENDS_EARLY = ("stop", "stop_token_ids", "min_tokens")
"""A prompt whose one token ends the answer is not kept for anybody: only an answer that was cut is."""


class VllmMooncake(UsualHandOver):
    """Both sides know a transfer by an id that the front end invents."""

    handshake = HandShake.VLLM_MOONCAKE
    order: Order = Order.TOGETHER
    lease_s: float | None = 480.0
    """`VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT`."""

    def prefill(self, asked: Asked, prefill: Peer, decode: Peer) -> LegRequest:
        """The prompt and one token, whatever token that is."""
        params = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": _transfer_id(asked)}
        body = prompt_only(asked, ignore_eos=b"true", **{PARAMS: msgspec.json.encode(params)})
        return LegRequest(edited(body, drop=_ENDS_EARLY))

    def decode(self, asked: Asked, prefill: Peer, decode: Peer, answer: bytes | None) -> LegRequest | Complete:
        """The client's body with the id, and where the other engine is. Raises HandOverError where that is unknown."""
        names = prefill.kv.engine_ids
        if prefill.rank >= len(names):
            raise HandOverError(
                f"{prefill.worker}: its engine id is not known; its bootstrap server (port "
                f"{prefill.kv.port or BOOTSTRAP_PORT}) has to answer /query when it joins"
            )
        params = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "transfer_id": _transfer_id(asked),
            "remote_engine_id": names[prefill.rank],
            "remote_bootstrap_addr": bootstrap_url(prefill.url, prefill.kv.port),
        }
        return LegRequest(edited(asked.body, {PARAMS: msgspec.json.encode(params)}))


def bootstrap_url(url: str, port: int | None) -> str:
    """Where the bootstrap server of the engine at a URL is; plain HTTP, whatever the engine speaks."""
    host = urlsplit(url).hostname or ""
    return f"http://{f'[{host}]' if ':' in host else host}:{port or BOOTSTRAP_PORT}"


def _transfer_id(asked: Asked) -> str:
    return f"pointsman-{asked.number}"
