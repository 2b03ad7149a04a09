"""Section `routing`: who decides, and by what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from pointsman.core.model.transfer import TransferMode
from pointsman.core.trials.arms import By
from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.duration import Duration
from pointsman.edge.configuration.guards import Guards
from pointsman.edge.configuration.rollout import Rollout
from pointsman.edge.configuration.route_key import RouteKey
from pointsman.edge.configuration.size import Size
from pointsman.edge.configuration.slo_class import SloClass


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """Who decides, and by what."""

    policy: Annotated[
        str,
        Meta(
            min_length=1,
            description="Name of the policy (`pointsman policies` lists them); `auto` is `cost`.",
        ),
    ] = "auto"
    route_key: Annotated[
        RouteKey | None, Meta(description="What says that requests belong together; the policy `session` needs it.")
    ] = None
    rollout: Annotated[
        Rollout | None,
        Meta(description="A new policy for a share of the traffic, compared with `policy`, which decides the rest."),
    ] = None
    shadow: Annotated[
        tuple[str, ...],
        Meta(description="Policies that decide each request too, without acting; each costs the time of a decision."),
    ] = ()
    guards: Annotated[Guards, Meta(description="Limits beyond which an engine gets no request, whoever decides.")] = (
        Guards()
    )
    slo_classes: Annotated[
        Mapping[str, SloClass],
        Meta(
            description="Classes that requests name in `x-slo-class`, and what they are promised, such as "
            "`{interactive: {ttft: 500ms, tpot: 50ms}}`."
        ),
    ] = {}
    default_slo_class: Annotated[
        str | None, Meta(min_length=1, description="Class of requests that name none; default: nothing is promised.")
    ] = None
    prefix_ttl: Annotated[
        Duration, Meta(description="How long a prefix is thought to be cached where it was last sent.")
    ] = Duration(3600)
    text_block_bytes: Annotated[
        int, Meta(ge=16, le=65536, description="Bytes of prompt a block key stands for, where tokens are unknown.")
    ] = 128
    tokenize: Annotated[
        bool,
        Meta(
            description="Tokenize prompts, to look them up among the blocks that engines say they hold; only where an "
            "engine sends KV events."
        ),
    ] = True
    tokenizers: Annotated[
        Mapping[str, str],
        Meta(
            description="Model name → directory or Hugging Face repository of its tokenizer; default: the model's own "
            "name, or what the engine says it loaded."
        ),
    ] = {}
    index_by_hash: Annotated[
        bool, Meta(description="Answer `POST /query_by_hash` on the admin port; costs memory for each block.")
    ] = False
    kv_transfer: Annotated[
        TransferMode,
        Meta(
            description="When KV moves between engines: where that is predicted to save time (`auto`), wherever two "
            "engines can share a request (`always`), or never (`off`); [disaggregation.md](disaggregation.md)."
        ),
    ] = TransferMode.AUTO
    kv_transfer_max_bytes: Annotated[
        Size | None, Meta(description="KV of a prompt that is larger is not moved; absent: no limit.")
    ] = None
    fallback_to_local: Annotated[
        bool,
        Meta(
            description="If a remote prefill or pull fails, the engine that answers computes the prompt itself; "
            "`false`: the request gets 503."
        ),
    ] = True
    preempt_enabled: Annotated[bool, Meta(description="Let urgent requests interrupt others.")] = False

    not_built_values: ClassVar[Mapping[str, Mapping[object, str]]] = {
        "preempt_enabled": {True: "preemption"},
    }

    def __post_init__(self) -> None:
        if self.policy == "session" and self.route_key is None:
            raise KeyConflictError("policy", f"session needs routing.route_key: {RouteKey.expected}")
        if self.default_slo_class is not None and self.default_slo_class not in self.slo_classes:
            known = ", ".join(self.slo_classes) or "none"
            raise KeyConflictError(
                "default_slo_class", f"{self.default_slo_class} is none of slo_classes; known: {known}"
            )
        if self.rollout is not None:
            self._check_rollout(self.rollout)
        for i, name in enumerate(self.shadow):
            if name in (self.policy, *self.shadow[:i]):
                again = "decides already" if name == self.policy else "is named twice"
                raise KeyConflictError(f"shadow[{i}]", f"{name} {again}; remove it")
            if name == "session" and self.route_key is None:
                raise KeyConflictError(f"shadow[{i}]", f"session needs routing.route_key: {RouteKey.expected}")

    def _check_rollout(self, rollout: Rollout) -> None:
        if rollout.policy == self.policy:
            raise KeyConflictError(
                "rollout.policy", f"{self.policy} decides all requests already (routing.policy); name another one"
            )
        if self.route_key is None and rollout.policy == "session":
            raise KeyConflictError("rollout.policy", f"session needs routing.route_key: {RouteKey.expected}")
        if self.route_key is None and rollout.by is By.SESSION:
            raise KeyConflictError("rollout.by", f"session needs routing.route_key: {RouteKey.expected}")
