"""What a request that ended is charged."""

from __future__ import annotations

from pointsman.edge.serving.exchange import Exchange


def delivered_tokens(exchange: Exchange) -> int:
    """Tokens of prompt and answer, by the engine's own count where its answer came to an end.

    A stream that was cut short costs its prompt and what came of it. A client that leaves before anything came pays for
    the prompt, which may have been computed for it; one whose engine failed it before that pays nothing, and what is
    sent to several engines in turn is charged once.
    """
    record, prompt_tokens = exchange.record, exchange.request.prompt_tokens
    if record is None or not exchange.sent:
        return 0
    usage = record.usage
    if usage is not None:
        return usage.prompt_tokens + usage.completion_tokens
    if exchange.status in ("finished", "cancelled") or record.events:
        return prompt_tokens + record.events
    return 0


def delivered_so_far(exchange: Exchange) -> int:
    """The same of a stream that goes on; 0 where nothing came yet."""
    events = 0 if exchange.relay is None else exchange.relay.events
    return exchange.request.prompt_tokens + events if events else 0
