"""Canary: one small generation, streamed to its end, that shows whether tokens flow out of a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pointsman.core.ledger.events import CanaryResult
from pointsman.edge.engines.facts import EngineFacts
from pointsman.edge.engines.http import EngineCallError, EngineHttp, StreamAnswer, Trouble
from pointsman.edge.wire.sse import StreamScanner

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TOKENS = 2
"""Generated: the second one shows that decoding goes on."""
_PROMPT_TOKENS = [1, 1, 1, 1]
"""Less than a block, so that nothing of it stays in a prefix cache."""
_PROMPT_TEXT = "1 2 3"
_SALT = "pointsman-canary"
_SALTED_KINDS = frozenset({"vllm"})
_STREAM = "text/event-stream"
_BUSY = frozenset({429, 503, 529})
_LATE = frozenset({408, 504})
_NO_ROUTE = frozenset({404, 405, 501})
"""501: engines that serve a model which generates nothing."""
_SHOWN = 200

Clock = Callable[[], float]
"""Now, in ms."""


@dataclass(slots=True)
class CanaryTarget:
    """One worker, and how to ask it. `path` changes once where the engine has no completions."""

    http: EngineHttp
    kind: str
    model: str
    path: str = COMPLETIONS
    headers: dict[str, str] = field(default_factory=dict)
    token_ids: bool = False
    """It takes token ids as a prompt."""

    @classmethod
    def of(cls, http: EngineHttp, facts: EngineFacts, models: tuple[str, ...], rank: int) -> CanaryTarget | None:
        """The target that one rank is; None where it serves no model that could be asked."""
        base = [name for name in models if name not in facts.lora] or list(models)
        can = facts.capabilities
        if not base or (can.completions is False and can.chat is False):
            return None
        headers = {can.rank_header: str(rank)} if can.rank_header is not None and len(facts.ranks) > 1 else {}
        path = CHAT if can.completions is False else COMPLETIONS
        return cls(http, facts.kind, base[0], path, headers, can.token_id_prompts is True)

    def body(self) -> dict[str, object]:
        """Of the request."""
        prompt: dict[str, object] = {"prompt": _PROMPT_TOKENS if self.token_ids else _PROMPT_TEXT}
        if self.path == CHAT:
            prompt = {"messages": [{"role": "user", "content": _PROMPT_TEXT}]}
        salt = {"cache_salt": _SALT} if self.kind in _SALTED_KINDS else {}
        return {"model": self.model, **prompt, "max_tokens": TOKENS, "temperature": 0, "stream": True, **salt}


@dataclass(frozen=True, slots=True)
class CanaryOutcome:
    """How one went."""

    result: CanaryResult
    reason: str
    total_ms: float | None = None
    """How long it took, where it passed."""


async def send_canary(target: CanaryTarget, limit_s: float, now_ms: Clock) -> CanaryOutcome:
    """Ask once; twice where the engine has no completions. Takes no longer than `limit_s`, whatever the engine does."""
    began_ms = now_ms()
    outcome = await _ask(target, limit_s, now_ms, began_ms)
    if outcome is None:
        target.path = CHAT
        left_s = max(0.001, limit_s - (now_ms() - began_ms) / 1000.0)
        outcome = await _ask(target, left_s, now_ms, began_ms)
    return outcome or CanaryOutcome(CanaryResult.REFUSED, "it has neither completions nor chat")


async def _ask(target: CanaryTarget, limit_s: float, now_ms: Clock, began_ms: float) -> CanaryOutcome | None:
    """None: the engine has no such route."""
    scanner = StreamScanner()
    try:
        answer = await target.http.post_stream(
            target.path, target.body(), scanner.feed, headers=target.headers, limit_s=limit_s
        )
    except EngineCallError as error:
        return _no_answer(error, scanner)
    if answer.status in _NO_ROUTE and target.path == COMPLETIONS:
        return None
    return _judge(answer, scanner, now_ms() - began_ms)


def _no_answer(error: EngineCallError, scanner: StreamScanner) -> CanaryOutcome:
    reason = str(error)
    if error.trouble is Trouble.TIMED_OUT:
        came = f" after {scanner.events} events" if scanner.events else ""
        return CanaryOutcome(CanaryResult.LATE, f"{reason}{came}")
    if error.trouble is Trouble.UNREACHABLE:
        return CanaryOutcome(CanaryResult.UNREACHABLE, reason)
    if error.trouble is Trouble.NOT_ASKED:
        return CanaryOutcome(CanaryResult.BUSY, reason)
    if error.trouble is Trouble.LOST:
        return CanaryOutcome(CanaryResult.LOST, reason)
    return CanaryOutcome(CanaryResult.FAILED, reason)


def _judge(answer: StreamAnswer, scanner: StreamScanner, total_ms: float) -> CanaryOutcome:
    status = answer.status
    if status in _BUSY:
        return CanaryOutcome(CanaryResult.BUSY, f"it answered {status}")
    if status in _LATE:
        return CanaryOutcome(CanaryResult.LATE, f"it answered {status}")
    if 400 <= status < 500 or status in _NO_ROUTE:
        said = answer.start.decode("utf-8", "replace").strip()[:_SHOWN]
        return CanaryOutcome(CanaryResult.REFUSED, f"it answered {status} to a canary: {said or 'nothing'}")
    if status != 200:
        return CanaryOutcome(CanaryResult.FAILED, f"it answered {status}")
    if answer.content_type != _STREAM:
        # It does not stream; it did answer.
        return CanaryOutcome(CanaryResult.REFUSED, f"it answered {answer.content_type or 'no type'}, not a stream")
    scanner.flush()
    if scanner.error:
        return CanaryOutcome(CanaryResult.FAILED, "its stream held an error")
    if not scanner.events:
        return CanaryOutcome(CanaryResult.FAILED, "its stream held no token")
    if not scanner.done:
        return CanaryOutcome(CanaryResult.FAILED, "its stream ended without [DONE]")
    return CanaryOutcome(CanaryResult.PASSED, f"{scanner.events} events in {total_ms:.0f} ms", total_ms)
