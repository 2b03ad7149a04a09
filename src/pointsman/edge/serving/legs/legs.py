"""Legs: carries out plans with two engines: a prompt computed at one for another one, or fetched from where it is held.

What fails is computed where the request is answered. What one engine keeps for another one is freed when that one
will not come for it.
"""

from __future__ import annotations

import logging
from collections.abc import Set
from dataclasses import dataclass

from pointsman.core.ledger.events import PrefillEnded, PrefillFailed, TransferEnded
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.decision import Decision
from pointsman.core.model.fault import Fault
from pointsman.core.model.plan import Aggregate, Disaggregate
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.pairs import some_pair
from pointsman.edge.engines.handover.as_stream import STREAM_TYPE, as_stream
from pointsman.edge.engines.handover.protocol import Asked, Complete, HandOverError, LegRequest, Order
from pointsman.edge.engines.handover.registry import handover_of
from pointsman.edge.serving.attempt import Ending
from pointsman.edge.serving.breaks import DeadlineError, InterruptedHereError, NotMovedError
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.exchange import Exchange
from pointsman.edge.serving.failed_attempt import FailedAttempt
from pointsman.edge.serving.legs.decode_relay import DecodeRelay
from pointsman.edge.serving.legs.engine_call import EngineCall
from pointsman.edge.serving.legs.plans import another_reader
from pointsman.edge.serving.legs.sender import LegSender
from pointsman.edge.serving.legs.split import Split
from pointsman.edge.serving.legs.why import (
    FETCHED_IS_CACHED,
    LEFT_TO_THE_CLIENT,
    NOT_OF_THE_TRANSFER,
    NOT_THERE,
    ONLY_LATE,
    SURELY_A_BLOCK_TOKENS,
    TAKEN_AWAY,
    Why,
)
from pointsman.edge.serving.retries import MOST_RESENDS
from pointsman.edge.serving.tasks import OwnedTasks
from pointsman.edge.serving.timeouts import Timeouts
from pointsman.edge.telemetry.traffic import Traffic
from pointsman.edge.wire.headers import Headers
from pointsman.edge.wire.http1_client import UpstreamPool
from pointsman.edge.wire.usage import usage_of_body

HOLD_WITHIN_S = 5.0
"""For a call that only keeps what is there."""
MORE_TRIES_TO_FREE = 2
"""Where an engine does not say that it heard."""
_MOST_REFUSALS = 50
"""Different ones that are logged."""

_log = logging.getLogger("pointsman.serving")


@dataclass(frozen=True, slots=True)
class Answered:
    """The leg's answer is the client's: an error that it caused, or all that there was to say."""

    worker: WorkerId
    status: int
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class NotMoved:
    """The KV can't be moved, and nothing else is allowed: the request fails."""

    reason: str


Next = LegRequest | Answered | NotMoved | FailedAttempt | None
"""What is to be done: send the leg that answers the client, end, or go elsewhere. None: send the client's own body to
the engine that answers, which computes all of it."""


class Legs:
    """Of the requests of one front end. `timeouts` may be exchanged for others while requests run."""

    def __init__(
        self,
        ledger: Ledger,
        pool: UpstreamPool,
        sender: LegSender,
        traffic: Traffic,
        timeouts: Timeouts,
        clock: Clock,
    ) -> None:
        self.timeouts = timeouts
        self._ledger = ledger
        self._pool = pool
        self._sender = sender
        self._traffic = traffic
        self._clock = clock
        self._tasks = OwnedTasks()
        self._refusals: set[str] = set()

    @property
    def halves(self) -> Set[WorkerId]:
        """Workers that serve nothing but halves of requests."""
        return self._sender.halves

    async def close(self) -> None:
        """End what nobody waits for."""
        await self._tasks.close()

    def look(self) -> None:
        """Say whose KV is left alone, and whose is tried again. Every second or so."""
        for change in self._ledger.take_kv_changes():
            side = "gives" if change.gives else "takes"
            if change.off_ms is None:
                _log.info("%s %s KV again, as a trial", change.worker, side)
                continue
            self._traffic.kv_left_alone[side] += 1
            _log.warning(
                "%s %s no KV for %.0f s: %d transfers in a row were of no use; see docs/disaggregation.md",
                change.worker,
                side,
                change.off_ms / 1000,
                change.failures,
            )

    # ---- before anything is sent

    def split(self, exchange: Exchange, decision: Decision) -> Split | str | None:
        """What the plan wants of a second engine; None: nothing; text: why this request can't have it."""
        plan = decision.plan
        if isinstance(plan, Disaggregate):
            second, first = plan.prefill, plan.decode
        elif isinstance(plan, Aggregate) and plan.pull is not None:
            second, first = plan.pull.source, plan.worker
        else:
            return None
        other, answering = self._sender.peer(second), self._sender.peer(first)
        if other is None or answering is None:
            return "an engine of the plan passes no KV on"
        handover = handover_of(answering.kv.handshake)
        refusal = handover.refusal(self._sender.asked(exchange, exchange.incoming.body))
        if refusal is not None:
            return refusal
        local = decision.view.transfer.fallback_to_local and answering.kv.alone
        return Split(exchange.request, plan, handover, other, answering, self._clock(), local)

    def refused(self, exchange: Exchange, why: str) -> None:
        """It is decided again, for one engine."""
        exchange.whole = why
        self._traffic.transfer_fallbacks[Why.REFUSED.value] += 1
        if why not in self._refusals and len(self._refusals) < _MOST_REFUSALS:
            self._refusals.add(why)
            _log.info(
                "a request is not split: %s (said once; counted in pointsman_transfer_fallbacks_total as refused)", why
            )

    # ---- the second engine

    async def begin(self, exchange: Exchange, split: Split, body: bytes) -> Next:
        """The leg at the second engine, of a request that would be sent as `body`.

        Cancelled, that engine sees its client leave.
        """
        asked = self._sender.asked(exchange, body)
        try:
            wanted = _wanted(split, asked)
        except (HandOverError, ValueError) as error:
            return self._falls_back(exchange, split, NotMovedError(str(error), Why.UNUSABLE))
        if wanted is None:
            error_text = f"{split.other.worker} keeps nothing for others"
            return self._falls_back(exchange, split, NotMovedError(error_text, Why.NOTHING_HELD))
        limit_s = self.timeouts.first_byte_s if split.is_prefill else HOLD_WITHIN_S
        call = split.call = self._sender.leg(exchange, split.other.worker, wanted, limit_s)
        if split.is_prefill and split.handover.order is Order.TOGETHER:
            self._tasks.start(self._beside(exchange, split, call), "prefill leg")
            return self._goes_on(exchange, split, asked)
        exchange.waits_for_leg = True
        try:
            await call.run(self._pool)
            failed = await self._between(exchange, split, asked) if call.answered and split.is_prefill else None
        finally:
            exchange.waits_for_leg = False
            exchange.sent |= split.is_prefill and call.sent
        split.call = call
        if failed is None:
            return self._over(exchange, split, asked, call)
        split.answer = call.body
        self._free(split)
        if isinstance(failed.error, InterruptedHereError | DeadlineError | NotMovedError):
            return self._over(exchange, split, asked, failed)
        reason = f"the KV could not be passed on at {failed.worker}: {failed.reason}"
        return self._falls_back(exchange, split, NotMovedError(reason, Why.UNUSABLE))

    async def _between(self, exchange: Exchange, split: Split, asked: Asked) -> EngineCall | None:
        """The calls that a hand-shake needs between its legs; the one that failed."""
        for wanted in split.handover.between(asked, split.other, split.answering):
            worker = split.answering.worker if wanted.at_decode else split.other.worker
            call = split.call = self._sender.leg(exchange, worker, wanted, HOLD_WITHIN_S)
            await call.run(self._pool)
            if not call.answered:
                return call
        return None

    def _over(self, exchange: Exchange, split: Split, asked: Asked, call: EngineCall) -> Next:
        """The leg is over, and nothing was sent to the engine that answers."""
        error = call.error
        if isinstance(error, InterruptedHereError | DeadlineError):
            self._end(exchange, split, "failed")
            return FailedAttempt(split.answering.worker, str(error), None, None, trouble=error)
        if isinstance(error, NotMovedError):
            return self._falls_back(exchange, split, error)
        if call.answered:
            self._answered(exchange, split, call)
            return self._goes_on(exchange, split, asked)
        if _left_to_the_client(split, call):
            return self._as_answer(exchange, split, call, call.body)
        return self._falls_back(exchange, split, _not_moved(call), call.retry_after_ms)

    def _answered(self, exchange: Exchange, split: Split, call: EngineCall) -> None:
        now_ms = self._clock()
        if not split.done:
            split.answer = call.body
        split.fetch_from_ms = now_ms
        if not split.is_prefill:
            return
        split.prefill_ms = now_ms - split.began_ms
        usage = split.usage = usage_of_body(call.body)
        prompt, cached = (None, None) if usage is None else (usage.prompt_tokens, usage.cached_tokens)
        split.tokens = prompt
        if exchange.split is split and not split.done and self._ledger.holds(exchange.request.id):
            self._ledger.apply(PrefillEnded(exchange.request.id, now_ms, prompt, cached))

    def _goes_on(self, exchange: Exchange, split: Split, asked: Asked) -> Next:
        """The leg that answers the client, by what the second engine said."""
        handover, other, answering, answer = split.handover, split.other, split.answering, split.answer
        try:
            if not split.is_prefill:
                leg, split.tokens = handover.pull(asked, other, answering, answer or b"")
                return leg
            found = handover.decode(asked, other, answering, answer)
            if isinstance(found, LegRequest):
                return found
            return self._complete(exchange, split, asked, found)
        except (HandOverError, ValueError) as error:
            self._free(split)
            why = Why.UNUSABLE if split.is_prefill else Why.NOTHING_HELD
            useless = NotMovedError(str(error), why, no_kv=split.is_prefill)
            return self._falls_back(exchange, split, useless)

    def _complete(self, exchange: Exchange, split: Split, asked: Asked, found: Complete) -> Answered:
        call = split.call
        if call is None or not call.answered:
            raise HandOverError("the prefill leg is said to be all, and was not answered")
        said = call.body if found.answer is None else found.answer
        if asked.streamed:
            said = as_stream(said, usage=True)  # where its client asked for none it is hidden as any engine's is
        return self._as_answer(exchange, split, call, said, streamed=asked.streamed)

    def _as_answer(
        self, exchange: Exchange, split: Split, call: EngineCall, body: bytes, *, streamed: bool = False
    ) -> Answered:
        split.answer = None
        self._end(exchange, split, "answered")
        headers = [field for field in call.headers if field[0] != b"content-length"]
        if streamed:
            headers = [field for field in headers if field[0] != b"content-type"]
            headers.append((b"content-type", STREAM_TYPE))
        else:
            headers.append((b"content-length", b"%d" % len(body)))
        return Answered(call.worker, call.status, tuple(headers), body)

    # ---- both at once

    async def _beside(self, exchange: Exchange, split: Split, call: EngineCall) -> None:
        """A prefill leg while the other one runs. One that fails ends that one; one that is late harms nobody."""
        await call.run(self._pool)
        if call.answered:
            self._answered(exchange, split, call)
        elif not split.done and exchange.split is split and isinstance(exchange.relay, DecodeRelay):
            self.sent(split, exchange.relay)

    def sent(self, split: Split, relay: DecodeRelay) -> None:
        """The leg that answers is on its way. Where the other one has failed there is nothing to wait for."""
        call = split.call
        if call is not None and call.over and not call.answered:
            relay.refuse(_not_moved(call))

    # ---- the engine that answers

    def succeeded(self, exchange: Exchange, split: Split, relay: DecodeRelay) -> None:
        """Its leg began with its answer, and perhaps it is whole: the KV came."""
        split.answer = None
        if split.fetch_from_ms is not None and relay.first_ms is not None and not relay.goes_on:
            split.transfer_ms = max(0.0, relay.first_ms - split.fetch_from_ms)
        told = (split.handover.moved(part) for part in relay.parts())
        moved = split.moved = next((one for one in told if one is not None), None)
        request_id = exchange.request.id
        if moved is not None:
            self._traffic.transfer_bytes += moved.size_bytes or 0
            if moved.took_ms is not None:
                self._traffic.transfer_s.observe(moved.took_ms / 1000)
            if self._ledger.holds(request_id):
                now_ms = self._clock()
                self._ledger.apply(TransferEnded(request_id, now_ms, moved.tokens, moved.size_bytes, moved.took_ms))
        useless = moved is None and split.is_prefill and _nothing_came(split, relay)
        if useless:
            self._not_found(split)
        self._end(exchange, split, "fallback" if useless else "moved")

    def _not_found(self, split: Split) -> None:
        """The engine that answers computed what another one had computed for it, and nobody said so."""
        split.tokens, split.fallback = 0, f"{split.answering.worker} found nothing of what was computed for it"
        self._traffic.transfer_fallbacks[Why.NOT_FOUND.value] += 1
        said = f"{split.fallback} at {split.other.worker}: its answer has no cached tokens"
        if said not in self._refusals and len(self._refusals) < _MOST_REFUSALS:
            self._refusals.add(said)
            _log.warning(
                "%s; see that both have the KV connector that cache_transport names, with the same storage "
                "(said once; counted in pointsman_transfer_fallbacks_total as not_found)",
                said,
            )

    def failed(self, exchange: Exchange, split: Split, failed: FailedAttempt) -> Next:
        """Its leg came to nothing. FailedAttempt: as any attempt does; None: the same engine is asked once more."""
        error, call = failed.error, split.call
        both_failed = call is not None and call.over and call.fault is not None
        self._free_both(split)
        if isinstance(error, NotMovedError):
            if call is not None and _left_to_the_client(split, call):
                return self._as_answer(exchange, split, call, call.body)
            return self._falls_back(exchange, split, error, None if call is None else call.retry_after_ms)
        ordinary = failed.fault in NOT_OF_THE_TRANSFER or isinstance(error, InterruptedHereError | DeadlineError)
        if both_failed and call is not None and not ordinary and not split.answering.kv.alone:
            # In one moment: the one that answers failed of what the other one did not send.
            return self._falls_back(exchange, split, _not_moved(call), call.retry_after_ms)
        ordinary = ordinary or not split.answering.kv.alone
        clients = failed.ending is Ending.HELD and failed.fault is None and not split.fallback_to_local
        if ordinary or clients:
            self._end(exchange, split, "failed")
            return failed
        reason = f"{split.answering.worker} did not go on from its KV: {failed.reason}"
        no_kv = failed.fault is not None  # a 4xx may be the client's, who could have everybody left alone then
        return self._falls_back(exchange, split, NotMovedError(reason, Why.DECODE_REFUSED, no_kv=no_kv))

    # ---- endings

    def abandoned(self, exchange: Exchange, split: Split) -> None:
        """The client left, or something unexpected happened: both engines are free. Nothing where all is over."""
        if split.done:
            return
        call = split.call
        if call is not None and call.answered and split.answer is None:
            split.answer = call.body  # it came in that very moment
        self._end(exchange, split, "cancelled")
        self._free_both(split)

    def _falls_back(
        self, exchange: Exchange, split: Split, error: NotMovedError, retry_after_ms: float | None = None
    ) -> NotMoved | FailedAttempt | None:
        """The engine that answers computes all of it, if that is allowed. FailedAttempt: it can't, others are asked."""
        allowed, request_id, reason = split.fallback_to_local, exchange.request.id, str(error)
        split.fallback, halves = reason, not split.answering.kv.alone
        split.lost_ms = self._clock() - split.began_ms
        if not halves:
            exchange.whole = reason
        if split.calling is not None:
            split.calling.interrupt(NotMovedError("the other leg is not sent", Why.UNUSABLE))
        self._end(exchange, split, "fallback" if allowed else "failed")
        self._traffic.transfer_fallbacks[str(error.label)] += 1
        self._ledger.apply(
            PrefillFailed(request_id, self._clock(), reason, error.fault, retry_after_ms, no_kv=error.no_kv)
        )
        what = f"prefill at {split.other.worker}" if split.is_prefill else f"KV of {split.other.worker}"
        then = "it computes the prompt itself"
        if not allowed:
            then = "it serves halves only" if halves else "routing.fallback_to_local is false"
        _log.warning("%s: request %s goes without %s: %s; %s", split.answering.worker, request_id, what, reason, then)
        if halves:
            return _at_other(exchange, split, error)
        return None if allowed else NotMoved(f"{what} failed, and nothing else is allowed: {reason}")

    def _end(self, exchange: Exchange, split: Split, outcome: str) -> None:
        split.done = True
        self._traffic.transfers[split.kind, outcome] += 1
        exchange.legs = split.told()

    def _free_both(self, split: Split) -> None:
        if split.calling is not None:
            split.calling.interrupt(NotMovedError("the other leg failed", Why.DECODE_REFUSED))
        self._free(split)

    def _free(self, split: Split) -> None:
        """What the second engine keeps for this request is needed no more."""
        answer, split.answer = split.answer, None
        if answer is None:
            return
        try:
            wanted = split.handover.release(split.other, answer)
        except (HandOverError, ValueError):
            return  # an answer that names nothing that is kept
        if wanted is None:
            return
        asked = split.answering if wanted.at_decode else split.other
        call = self._sender.freeing(asked.worker, wanted)
        if call is not None:
            self._tasks.start(self._freeing(split, wanted, call), "free KV that is not fetched")

    async def _freeing(self, split: Split, wanted: LegRequest, call: EngineCall) -> None:
        await call.run(self._pool)
        for _ in range(MORE_TRIES_TO_FREE):
            again = self._freeing_again(split, wanted, call)
            if again is None:
                break
            call = again
            await call.run(self._pool)
        if wanted.refused and 400 <= call.status < 500:
            return
        if not call.answered and call.status != 404:  # that is gone already
            _log.warning("%s: KV that nobody fetches is kept until its lease ends: %s", call.worker, call.reason)

    def _freeing_again(self, split: Split, wanted: LegRequest, call: EngineCall) -> EngineCall | None:
        """After one that may not have been heard. None: it was, or nobody else can be told."""
        if call.fault not in NOT_THERE:
            return None
        if wanted.at_decode:
            reader = another_reader(self._ledger.view(split.request, {call.worker}), split.other.worker)
            again = None if reader is None else self._sender.freeing(reader, wanted)
            if again is not None:
                return again
        return self._sender.freeing(call.worker, wanted) if call.fault in ONLY_LATE else None

    # ---- taking legs away

    def take_away(self, exchange: Exchange, worker: WorkerId, reason: str) -> bool:
        """What a worker that drains has for another one is computed by that one, or by another pair; whether it is."""
        split = exchange.split
        if split is None or split.done or split.other.worker != worker:
            return False
        if not split.fallback_to_local and not self._other_pair(exchange, split):
            return False
        return self._broken_off(exchange, split, NotMovedError(reason, Why.DRAINED))

    def give_up(self, exchange: Exchange, split: Split, error: NotMovedError) -> bool:
        """The second engine is thought dead; whether anybody still waited for it."""
        return not split.done and self._broken_off(exchange, split, error)

    def interrupt(self, exchange: Exchange, error: InterruptedHereError) -> bool:
        """The request is taken away from the engine that answers while it waits for the other one; whether it did."""
        call = None if exchange.split is None else exchange.split.calling
        if call is None or not exchange.waits_for_leg:
            return False
        call.interrupt(error)
        return True

    def _other_pair(self, exchange: Exchange, split: Split) -> bool:
        """Where halves are served only, and somebody else could compute the prompt."""
        if split.answering.kv.alone:
            return False
        return some_pair(self._ledger.view(exchange.request, {split.other.worker, *exchange.failed_at}))

    def _broken_off(self, exchange: Exchange, split: Split, error: NotMovedError) -> bool:
        if exchange.waits_for_leg and split.calling is not None:
            split.calling.interrupt(error)
            return True
        relay = exchange.relay
        return isinstance(relay, DecodeRelay) and relay.refuse(error)


def _wanted(split: Split, asked: Asked) -> LegRequest | None:
    plan = split.plan
    if isinstance(plan, Disaggregate):
        return split.handover.prefill(asked, split.other, split.answering)
    return None if plan.pull is None else split.handover.hold(asked, split.other, plan.pull.tokens)


def _nothing_came(split: Split, relay: DecodeRelay) -> bool:
    """By its own word; engines that keep silent of cached tokens are believed to have found them."""
    usage = relay.usage
    if usage is None or split.handover.handshake not in FETCHED_IS_CACHED:
        return False
    return usage.cached_tokens == 0 and usage.prompt_tokens >= SURELY_A_BLOCK_TOKENS


def _left_to_the_client(split: Split, call: EngineCall) -> bool:
    """The client caused it: the other engine would say the same."""
    return split.is_prefill and call.over and call.error is None and call.status in LEFT_TO_THE_CLIENT


def _at_other(exchange: Exchange, split: Split, error: NotMovedError) -> FailedAttempt:
    """As an attempt that the engine for prompts failed."""
    taken = error.label in TAKEN_AWAY and exchange.tries.resends < MOST_RESENDS
    # Nobody knows whose fault it is that nothing comes; whoever waited for a minute is not kept waiting by all in turn.
    fault = Fault.LATE if error.label == Why.STUCK else error.fault
    trouble = InterruptedHereError(str(error), fault, goes_on=True) if taken else error
    return FailedAttempt(split.other.worker, str(error), fault, None, trouble=trouble, of_other=True)


def _not_moved(call: EngineCall) -> NotMovedError:
    label = Why.UNUSABLE.value if call.fault is None else call.fault.value
    return NotMovedError(call.reason, label, call.fault)
