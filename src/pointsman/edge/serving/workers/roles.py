"""Roles: which stages engines compute, where that is changed while they run. What is there ends as it began."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pointsman.core.ledger.events import RoleChanged
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.errors import PointsmanError
from pointsman.core.model.transfer import TransferMode
from pointsman.core.model.view import Exclusion
from pointsman.core.model.worker import Role, WorkerSpec, engine_of
from pointsman.edge.cluster.discovery.registrations import RoleOrder
from pointsman.edge.engines.facts import EngineFacts
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.drains import UnknownEngineError

_log = logging.getLogger("pointsman.serving")

DOES = {
    Role.PREFILL: "computes prompts for others only",
    Role.DECODE: "answers requests and computes no prompt for others",
    Role.BOTH: "computes all stages",
}


class TakenError(PointsmanError):
    """It can't be as asked for: another engine or place has a say in it, or the engine itself."""


_ANSWERS_NOBODY = (Exclusion.DRAINING.name.lower(), Exclusion.UNREACHABLE.name.lower())
"""States of workers that new requests do not get to, whatever their role."""


class Roles:
    """Of one front end. The registrar holds the orders, the ledger what they come to.

    Args:
        facts: what an engine says of itself; None: nobody knows.
    """

    def __init__(
        self,
        ledger: Ledger,
        emit: Callable[[RoleChanged], None],
        facts: Callable[[str], EngineFacts | None],
        now_ms: Clock,
    ) -> None:
        self._ledger = ledger
        self._emit = emit
        self._facts = facts
        self._now_ms = now_ms
        self._told: dict[str, Role] = {}
        """By engine: as whoever named it says."""
        self._look = False
        self._alone: set[str] = set()
        """Models that are prefilled, and that nobody decodes."""
        self._idle: set[str] = set()
        """Engines for prompts of others, while no KV is moved."""
        self._off = False

    def described(self, spec: WorkerSpec, order: RoleOrder | None) -> None:
        """A worker joined or changed; `order`: the one that holds for it."""
        self._told[engine_of(spec.id)] = spec.role
        self._look = True
        if order is not None and order.role is not None and order.role != spec.role.value:
            self._emit(RoleChanged(spec.id, self._now_ms(), Role(order.role)))

    def told(self, engine: str) -> Role:
        """Its role as whoever named it says. Raises UnknownEngineError for one that was not reached so far."""
        role = self._told.get(engine)
        if role is None or not self._ledger.at_engine(engine):
            known = sorted(name for name in self._told if self._ledger.at_engine(name))
            raise UnknownEngineError(f"no engine {engine!r} was reached; there are {', '.join(known) or 'none'}")
        return role

    def check(self, engine: str, role: Role) -> None:
        """Raises TakenError where it can't have that role."""
        facts = self._facts(engine)
        if facts is not None and facts.role is not None and facts.role is not role:
            raise TakenError(f"{engine} was started for {facts.role} alone; start it again for another stage")
        if role is not Role.PREFILL:
            return
        workers = self._ledger.snapshot().workers
        for worker in workers:
            if engine_of(worker.id) != engine:
                continue
            if worker.spec.kv is None or not worker.spec.kv.gives:
                raise TakenError(f"{engine} passes no KV on, as far as it tells: it can compute no prompts for others")
            for model in worker.spec.models:
                others = [
                    one
                    for one in workers
                    if model in one.spec.models and one.spec.role is not Role.PREFILL and engine_of(one.id) != engine
                ]
                if not others:
                    raise TakenError(f"{engine} is the last that decodes {model}: give another engine that role first")
                if all(one.state in _ANSWERS_NOBODY for one in others):
                    why = ", ".join(sorted(f"{engine_of(one.id)} is {one.state}" for one in others))
                    raise TakenError(f"{engine} is the last that decodes {model} just now: {why}")

    def do(self, order: RoleOrder) -> None:
        """Carry an order out, as far as its engine is there and is described as it was then."""
        told = self._told.get(order.name)
        if told is None or order.was != told.value:
            return
        role = told if order.role is None else Role(order.role)
        workers = self._ledger.at_engine(order.name)
        for worker in workers:
            self._emit(RoleChanged(worker, self._now_ms(), role))
        if workers:
            self._look = True
            _log.info("%s: %s from now on (role %s)", order.name, DOES[role], role)

    def look(self) -> None:
        """Say once which models nobody decodes, and who gets nothing as no KV is moved. Every second or so."""
        off = self._ledger.transfer.mode is TransferMode.OFF
        if not self._look and off is self._off:
            return
        self._look, self._off = False, off
        prefilled: set[str] = set()
        decoded: set[str] = set()
        idle: set[str] = set()
        workers = self._ledger.snapshot().workers
        there = {engine_of(worker.id) for worker in workers}  # fleets that scale have ever new names
        self._told = {name: role for name, role in self._told.items() if name in there}
        for worker in workers:
            (prefilled if worker.spec.role is Role.PREFILL else decoded).update(worker.spec.models)
            if off and worker.spec.role is Role.PREFILL:
                idle.add(engine_of(worker.id))
        alone = prefilled - decoded
        for model in sorted(alone - self._alone):
            _log.warning("%s: all its engines compute prompts for others only, so nobody answers (node_role)", model)
        for engine in sorted(idle - self._idle):
            _log.warning("%s: %s (role prefill), and gets none: routing.kv_transfer is off", engine, DOES[Role.PREFILL])
        self._alone, self._idle = alone, idle
