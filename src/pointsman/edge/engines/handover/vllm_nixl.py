"""vLLM's NixlConnector: the engine that decodes reads the KV from the one that computed it."""

from __future__ import annotations

from pointsman.core.model.kv_shape import HandShake
from pointsman.edge.engines.handover.fields import COMPLETIONS, prompt_only, usual_refusal
from pointsman.edge.engines.handover.kv_params import params_of, returned_params
from pointsman.edge.engines.handover.protocol import Asked, Complete, HandOverError, LegRequest, Moved, Order, Peer
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


class VllmNixl:
    """Prefill first; its answer says where the blocks are, and goes into the other leg unchanged."""

    handshake = HandShake.VLLM_NIXL
    order = Order.PREFILL_FIRST
    lease_s: float | None = LEASE_S

    def refusal(self, asked: Asked) -> str | None:
        """As all; there is nothing that only this one can't do."""
        return usual_refusal(asked)

    def prefill(self, asked: Asked, prefill: Peer, decode: Peer) -> LegRequest:
        """The prompt and one token, kept for another engine."""
        return LegRequest(prompt_only(asked, **{PARAMS: COMPUTE_FOR_ANOTHER}))

    def between(self, asked: Asked, prefill: Peer, decode: Peer) -> tuple[LegRequest, ...]:
        """Nothing."""
        return ()

    def decode(self, asked: Asked, prefill: Peer, decode: Peer, answer: bytes | None) -> LegRequest | Complete:
        """The client's body with what the prefill leg was told."""
        return LegRequest(edited(asked.body, {PARAMS: returned_params(answer)}))

    def hold(self, asked: Asked, source: Peer, tokens: int) -> LegRequest | None:
        """It keeps nothing that it is not asked to compute."""
        return None

    def pull(self, asked: Asked, source: Peer, target: Peer, answer: bytes) -> tuple[LegRequest, int]:
        """Never asked: `hold` gives nothing."""
        raise NotImplementedError("NixlConnector has no call that holds a part of a prompt")

    def release(self, source: Peer, answer: bytes) -> LegRequest | None:
        """A request that the other engine is sure to refuse: for one with KV to fetch, it tells the source to free it.

        Releases that do not do so compute nothing either. Then, and where the other engine is gone, the lease ends it.
        """
        try:
            params = params_of(answer)
            model = members(answer)["model"]
        except (HandOverError, KeyError, ValueError):
            return None
        body = {**_SURELY_REFUSED, "model": bytes(model), PARAMS: params}
        return LegRequest(joined(body), COMPLETIONS, at_decode=True, refused=True)

    def moved(self, body: bytes) -> Moved | None:
        """Only its metrics tell."""
        return None
