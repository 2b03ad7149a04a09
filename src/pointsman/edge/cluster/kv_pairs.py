"""KvPairs: engines of which one should pass KV on to the other one, and can not; said once, with the reason."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pointsman.core.model.kv_shape import KvShape, mismatch
from pointsman.core.model.worker import Role, WorkerId
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.facts import EngineFacts

_log = logging.getLogger("pointsman.cluster")


@dataclass(frozen=True, slots=True)
class _Engine:
    role: Role
    models: frozenset[str]
    kv: KvShape | None


class KvPairs:
    """A FactsListener. Only engines that were told their stage are expected to pass KV on, or to take it."""

    def __init__(self) -> None:
        self._engines: dict[str, _Engine] = {}
        self._refused: dict[tuple[str, str], str] = {}

    @property
    def refused(self) -> Mapping[tuple[str, str], str]:
        """(prefill engine, decode engine) → why nothing can be moved from the one to the other."""
        return MappingProxyType(self._refused)

    def engine_known(self, source: WorkerSource, facts: EngineFacts, joined: Collection[WorkerId]) -> None:
        """An engine said what it is."""
        models = frozenset(source.models or facts.models)
        kv = facts.kv if source.moves_kv else None
        engine = _Engine(facts.role or source.role, models, kv)
        if self._engines.get(source.name) != engine:  # each is known anew every minute
            self._engines[source.name] = engine
            self._look_at(source.name)

    def engine_left(self, source: WorkerSource) -> None:
        """An engine is gone; if it comes back, all is said again."""
        self._engines.pop(source.name, None)
        for pair in [pair for pair in self._refused if source.name in pair]:
            del self._refused[pair]

    def _look_at(self, name: str) -> None:
        for other in self._engines:
            if other != name:
                self._judge(name, other)
                self._judge(other, name)

    def _judge(self, prefill: str, decode: str) -> None:
        pair = (prefill, decode)
        source, target = self._engines[prefill], self._engines[decode]
        staged = source.role is Role.PREFILL and target.role is not Role.PREFILL
        reason = _reason(source, target) if staged and source.models & target.models else None
        before = self._refused.get(pair)
        if reason is None:
            if self._refused.pop(pair, None) is not None:
                _log.info("%s and %s can pass KV on now", prefill, decode)
        elif reason != before:
            self._refused[pair] = reason
            _log.warning("%s computes no prompts for %s: %s", prefill, decode, reason)


def _reason(source: _Engine, target: _Engine) -> str | None:
    if source.kv is None:
        return "the first one passes no KV on (kv_cache_transfer is off, or it was started without a KV connector)"
    if target.kv is None:
        return "the second one takes no KV (kv_cache_transfer is off, or it was started without a KV connector)"
    return mismatch(source.kv, target.kv)
