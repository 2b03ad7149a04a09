"""Intake: from a client's body to a Request of the core, or to an error that names the field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.blocks import BlockKeys, BlockUnit, salt_seed, text_block_keys
from pointsman.core.model.request import Request
from pointsman.core.model.worker import WorkerId
from pointsman.edge.configuration.route_key import RouteKey
from pointsman.edge.serving.bodies import BodyFacts, ReadBody
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.exchange import Exchange
from pointsman.edge.serving.failover import FailoverSettings
from pointsman.edge.serving.migration.migration import OFF, Migration
from pointsman.edge.serving.request_ids import RequestIds
from pointsman.edge.serving.retries import Tries
from pointsman.edge.serving.route_keys import route_key_of, tenant_of
from pointsman.edge.serving.settings import FrontendSettings
from pointsman.edge.serving.slo_headers import SloHeaders
from pointsman.edge.serving.tenants.principal import Principal
from pointsman.edge.serving.token_keys import TokenKeys
from pointsman.edge.wire.errors import BadRequest
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder

EXPLAIN_HEADER = b"x-pointsman-explain"
WORKER_HEADER = b"x-pointsman-worker"
PREFILL_WORKER_HEADER = b"x-pointsman-prefill-worker"
MIGRATION_HEADER = b"x-pointsman-migration"
REQUEST_ID_HEADER = b"x-request-id"
MAX_REQUEST_ID_BYTES = 128
_APIS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
    "/v1/responses": "responses",
}


@dataclass(frozen=True, slots=True)
class IntakeSettings:
    """What intake is told at start."""

    route_key: RouteKey | None
    text_block_bytes: int
    debug_headers: bool
    total_timeout_s: float | None
    slo: SloHeaders = field(default_factory=lambda: SloHeaders({}))
    failover: FailoverSettings = field(default_factory=FailoverSettings)

    @classmethod
    def of(cls, settings: FrontendSettings) -> IntakeSettings:
        """Of a front end."""
        return cls(
            settings.route_key,
            settings.text_block_bytes,
            settings.debug_headers,
            settings.timeouts.total_s,
            SloHeaders(settings.slo_classes, settings.default_slo_class),
            settings.failover,
        )


class Intake:
    """Makes exchanges."""

    def __init__(
        self,
        ledger: Ledger,
        token_keys: TokenKeys,
        settings: IntakeSettings,
        clock: Clock,
        not_reached: Callable[[], list[str]],
        ids: RequestIds,
    ) -> None:
        self._ledger = ledger
        self._token_keys = token_keys
        self._not_reached = not_reached
        self.settings = settings
        """May be exchanged for others while requests run."""
        self._clock = clock
        self._ids = ids

    async def exchange(
        self,
        route: str,
        read_body: ReadBody,
        incoming: IncomingRequest,
        responder: Responder,
        loop_time_s: float,
        principal: Principal | None = None,
    ) -> Exchange:
        """Check the body and describe the request. Raises BadRequest. Waits only where a prompt is long and new.

        `principal`: who asks, where that was found out; a tenant's name in a header counts only where it was not.
        """
        arrival_ms = self._clock()
        body = read_body(incoming.body)
        self._check_model(body.model)
        settings = self.settings
        slo = settings.slo.of(incoming)
        tenant = tenant_of(incoming) if principal is None else principal.tenant
        request_id = self._ids.next()
        blocks = self._block_keys(body, tenant)
        tokenized = await self._token_keys.of(body)
        request = Request(
            id=request_id,
            model=body.model,
            arrival_ms=arrival_ms,
            prompt_tokens=tokenized.prompt_tokens or self._ledger.tokens_of_bytes(body.model, blocks.length),
            blocks=blocks,
            token_blocks=tokenized.blocks,
            sequences=body.sequences,
            streamed=body.streams,
            route_key=route_key_of(settings.route_key, incoming, tenant),
            tenant=tenant,
            api=_APIS.get(route, ""),
            max_output_tokens=body.max_output_tokens,
            slo=slo,
            pinned_worker=self._pinned(incoming, body.model, WORKER_HEADER),
        )
        migration, stays = self._migration(route, body, incoming)
        return Exchange(
            route=route,
            incoming=incoming,
            responder=responder,
            request=request,
            client_request_id=_client_request_id(incoming) or request_id.encode(),
            ends_with_done=body.ends_with_done,
            adds_usage=body.adds_usage,
            migration=migration,
            stays=stays,
            tries=Tries(settings.failover.of_route(route).retries),
            pinned_prefill=self._pinned(incoming, body.model, PREFILL_WORKER_HEADER),
            explain=settings.debug_headers and incoming.header(EXPLAIN_HEADER) == b"1",
            deadline_s=None if settings.total_timeout_s is None else loop_time_s + settings.total_timeout_s,
        )

    def _migration(self, route: str, body: BodyFacts, incoming: IncomingRequest) -> tuple[Migration | None, str]:
        """What is kept of its stream, or why nothing is."""
        if not body.streams:
            return None, ""
        if not self.settings.failover.of_route(route).migration:
            return None, f"migration is switched off for {route}"
        if incoming.header(MIGRATION_HEADER) == OFF:
            return None, "its client switched migration off"
        if body.parsed is None:
            return None, f"streams of {route} can't go on elsewhere"
        if body.sequences > 1:
            return None, "it has several answers (n, best_of or several prompts)"
        return Migration(incoming.body, body.parsed, hide_usage=body.adds_usage), ""

    def _check_model(self, model: str) -> None:
        if self._ledger.serves(model):
            return
        known = sorted(self._ledger.models())
        listed = f"known: {', '.join(known[:20])}" if known else "no model is known"
        waiting = self._not_reached()
        if waiting:
            message = f"model {model!r} is not served by any engine reached so far; {listed}; not reached: "
            raise BadRequest(503, message + "; ".join(waiting[:8]), "model", "engine_not_reached")
        raise BadRequest(404, f"model {model!r} is not served here; {listed}", "model", "model_not_found")

    def _block_keys(self, body: BodyFacts, tenant: str | None) -> BlockKeys:
        """Tenants never share keys; neither do prompts whose tools differ, since these come first in the prompt."""
        block_bytes = self.settings.text_block_bytes
        if not body.prefix_cached:
            return BlockKeys((), block_bytes, BlockUnit.BYTES, len(body.prompt))
        seed = salt_seed(body.model.encode(), (tenant or "").encode(), *body.salt)
        return text_block_keys(body.prompt, block_bytes, seed)

    def _pinned(self, incoming: IncomingRequest, model: str, header: bytes) -> WorkerId | None:
        if not self.settings.debug_headers:
            return None
        named = incoming.header(header)
        if named is None:
            return None
        workers = self._ledger.models().get(model, ())
        worker = WorkerId(named.decode("latin-1"))
        if worker not in workers:
            raise BadRequest(
                400,
                f"header {header.decode()}: {worker!r} does not serve {model!r}; those who do: {', '.join(workers)}",
                header.decode(),
                "unknown_worker",
            )
        return worker


def _client_request_id(incoming: IncomingRequest) -> bytes | None:
    given = incoming.header(REQUEST_ID_HEADER)
    return given if given and len(given) <= MAX_REQUEST_ID_BYTES else None
