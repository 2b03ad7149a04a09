"""vLLM's NixlConnector: the engine that decodes reads the KV from the one that computed it."""

from __future__ import annotations

from pointsman.core.model.kv_shape import HandShake
from pointsman.edge.engines.handover.fields import COMPLETIONS, prompt_only
from pointsman.edge.engines.handover.kv_params import params_of, returned_params
from pointsman.edge.engines.handover.protocol import Asked, Complete, HandOverError, LegRequest, Peer
from pointsman.edge.engines.handover.usual import UsualHandOver
from pointsman.edge.wire.members import edited, joined, members

PARAMS = "kv_transfer_params"
COMPUTE_FOR_ANOTHER = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
_SURELY_REFUSED = {"prompt": b"[0]", "max_tokens": b"1", "logprobs": b"1000000"}
"""No engine tells so many logprobs; one that did would compute one token."""
LEASE_S = 30.0
"""`kv_lease_duration`; the side that decodes renews it while the request waits there."""


class TransferParams(UsualHandOver):
    """The prefill leg's answer says where the blocks are, and goes into the other leg unchanged."""

    lease_s: float | None = LEASE_S

    def prefill(self, asked: Asked, prefill: Peer, decode: Peer) -> LegRequest:
        """The prompt and one token, kept for another engine."""
        return LegRequest(prompt_only(asked, **{PARAMS: COMPUTE_FOR_ANOTHER}))

    def decode(self, asked: Asked, prefill: Peer, decode: Peer, answer: bytes | None) -> LegRequest | Complete:
        """The client's body with what the prefill leg was told."""
        return LegRequest(edited(asked.body, {PARAMS: returned_params(answer)}))


class VllmNixl(TransferParams):
    """As vLLM has it."""

    handshake = HandShake.VLLM_NIXL

    def release(self, source: Peer, answer: bytes) -> LegRequest | None:
        """A request that the other engine is sure to refuse: for one with KV to fetch, it tells the source to free it.

        Releases that do not do so compute nothing either. Then, and where no engine that could read it is there, the
        lease ends it.
        """
        try:
            params = params_of(answer)
            model = members(answer)["model"]
        except (HandOverError, KeyError, ValueError):
            return None
        body = {**_SURELY_REFUSED, "model": bytes(model), PARAMS: params}
        return LegRequest(joined(body), COMPLETIONS, at_decode=True, refused=True)
