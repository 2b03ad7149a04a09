"""What came of a request, as rollouts compare it."""

from __future__ import annotations

from pointsman.core.trials.tally import End, Result
from pointsman.edge.serving.exchange import Exchange
from pointsman.edge.telemetry.token_times import mean_itl_ms

_TIMED_OUT = 504


def result_of(exchange: Exchange, now_ms: float) -> Result:
    """Of an exchange that ended and still has its relay.

    A client that left, or a time-out, before the first token counts as a TTFT of as long as it waited: a policy that
    keeps clients waiting until they leave would look good by those who stayed.
    """
    relay, request = exchange.relay, exchange.request
    end = End(exchange.status) if exchange.status else End.FAILED
    first_ms = None if relay is None else relay.first_ms
    if first_ms is not None:
        ttft_ms: float | None = first_ms - request.arrival_ms
    elif request.streamed and (end is End.CANCELLED or exchange.http_status == _TIMED_OUT):
        ttft_ms = now_ms - request.arrival_ms
    else:
        ttft_ms = None
    if relay is None or end is not End.FINISHED:
        return Result(end=end, at_ms=now_ms, prompt_tokens=request.prompt_tokens, ttft_ms=ttft_ms)
    usage = relay.usage
    counted = None if usage is None else usage.completion_tokens
    tokens = counted or relay.events
    return Result(
        end=end,
        at_ms=now_ms,
        prompt_tokens=(usage.prompt_tokens if usage is not None else None) or request.prompt_tokens,
        cached_tokens=None if usage is None else usage.cached_tokens,
        ttft_ms=ttft_ms,
        itl_ms=mean_itl_ms(first_ms, relay.last_ms, counted, relay.events, request.sequences),
        pace_ms=(relay.last_ms - request.arrival_ms) / tokens if tokens else None,
    )
