"""Which HandOver speaks a hand-shake."""

from __future__ import annotations

from types import MappingProxyType

from pointsman.core.model.kv_shape import HandShake
from pointsman.edge.engines.handover.blocks import Blocks
from pointsman.edge.engines.handover.llamacpp_slots import LlamaCppSlots
from pointsman.edge.engines.handover.protocol import HandOver
from pointsman.edge.engines.handover.sglang import Sglang
from pointsman.edge.engines.handover.shared_storage import SharedStorage
from pointsman.edge.engines.handover.trtllm import Trtllm
from pointsman.edge.engines.handover.vllm_mooncake import VllmMooncake
from pointsman.edge.engines.handover.vllm_nixl import VllmNixl

_ALL: tuple[HandOver, ...] = (
    VllmNixl(),
    VllmMooncake(),
    SharedStorage(),
    Sglang(),
    Trtllm(),
    LlamaCppSlots(),
    Blocks(),
)

HAND_OVERS = MappingProxyType({each.handshake: each for each in _ALL})


def handover_of(handshake: HandShake) -> HandOver:
    """The one of a hand-shake."""
    return HAND_OVERS[handshake]
