"""Routes of the admin port for a rollout: look, begin or change, roll back."""

from __future__ import annotations

import msgspec
from aiohttp import web

from pointsman.core.model.errors import PolicyError
from pointsman.core.trials.arms import By
from pointsman.edge.configuration.share import Share
from pointsman.edge.serving.policies import ActivePolicy
from pointsman.edge.serving.rollout_order import RolloutOrder
from pointsman.edge.serving.rollout_report import RolloutDocument, live_report, shadow_report
from pointsman.edge.wire.errors import error_body

DEFAULT_SHARE = Share(0.05)


class RolloutChange(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `PUT /v1/rollout`. What is left out stays as it is, or is the default in a new one."""

    policy: str | None = None
    share: str | None = None
    """For example `25%`."""
    by: By | None = None
    worse_by: str | None = None
    auto_rollback: bool | None = None


class RollBack(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `DELETE /v1/rollout`, which may be left out."""

    reason: str = "by hand"


class RolloutRoutes:
    """`/v1/rollout`."""

    def __init__(self, policy: ActivePolicy, *, has_route_key: bool) -> None:
        self._policy = policy
        self._has_route_key = has_route_key

    def routes(self) -> list[web.RouteDef]:
        """For the admin server."""
        return [
            web.get("/v1/rollout", self._get),
            web.put("/v1/rollout", self._put),
            web.delete("/v1/rollout", self._delete),
        ]

    async def _get(self, request: web.Request) -> web.Response:
        return _json(rollout_document(self._policy, with_sums=request.query.get("sums") in ("1", "true")))

    async def _put(self, request: web.Request) -> web.Response:
        try:
            change = msgspec.json.decode(await request.read(), type=RolloutChange)
            self._policy.roll_out(self._changed(change))
        except (msgspec.MsgspecError, RecursionError, PolicyError) as error:
            return _refused(400, str(error))
        return await self._get(request)

    async def _delete(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            wanted = msgspec.json.decode(body, type=RollBack) if body else RollBack()
        except (msgspec.MsgspecError, RecursionError) as error:
            return _refused(400, str(error))
        rollout = self._policy.rollout
        if rollout is None:
            return _refused(404, "no rollout runs here")
        rollout.end(wanted.reason)
        return await self._get(request)

    def _changed(self, change: RolloutChange) -> RolloutOrder:
        now = self._policy.rollout
        if change.policy is None and now is None:
            raise PolicyError('no rollout runs here; name the policy to begin one: {"policy": "NAME"}')
        if now is not None and change.policy in (None, now.order.policy):
            # One that was rolled back runs again.
            order = msgspec.structs.replace(now.order, ended=None, ended_s=None)
        else:
            by = By.SESSION if self._has_route_key else By.REQUEST
            order = RolloutOrder(str(change.policy), DEFAULT_SHARE.part, by)
        if change.share is not None:
            order = msgspec.structs.replace(order, share=_share("share", change.share))
        if change.worse_by is not None:
            order = msgspec.structs.replace(order, worse_by=_share("worse_by", change.worse_by))
        if change.by is not None:
            order = msgspec.structs.replace(order, by=change.by)
        if change.auto_rollback is not None:
            order = msgspec.structs.replace(order, auto_rollback=change.auto_rollback)
        return order


def rollout_document(policy: ActivePolicy, *, with_sums: bool = False) -> RolloutDocument:
    """What is known of the rollout and the shadows of a front end."""
    rollout = policy.rollout
    return RolloutDocument(
        policy=policy.configured_name,
        rollout=None if rollout is None else live_report(rollout),
        shadows=[shadow_report(shadow) for shadow in policy.shadows.all],
        sums=rollout.comparison.sums if rollout is not None and with_sums else None,
    )


def _share(key: str, value: str) -> float:
    try:
        return Share.parse(value).part
    except ValueError as error:
        raise PolicyError(f"{key}: expected {error}, not {value!r}") from None


def _refused(status: int, message: str) -> web.Response:
    return web.Response(
        status=status, body=error_body(status, message, param="rollout"), content_type="application/json"
    )


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
