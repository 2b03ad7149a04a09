"""How long traffic must go on before a fleet shows whether it keeps up with it."""

from __future__ import annotations

from pointsman.app.advice.question import Question

_ANSWERS = 2.0
"""A fleet fills up for as long as an answer takes; for as long again it is looked at full."""
_WAITS = 10.0
"""A fleet that lacks a tenth is found out once its queue is as long as the limit on the first token."""


def settling_ms(question: Question) -> float:
    """Arrivals have to go on for about so long; what ends sooner looks easier than the same traffic for an hour.

    A fleet begins empty. Until the first answers end it only fills up, and until its queue is longer than the SLO
    allows nobody misses it, so a short trace fits into fewer workers than it would if it went on.
    """
    requests, slo, profile = question.trace.requests, question.slo, question.profiles.decode
    prompt = sum(request.prompt_tokens for request in requests) / len(requests)
    outputs = sum(request.output_tokens for request in requests)
    # Who is there at any moment has a longer answer than who comes: each counts as long as it stays.
    output = sum(request.output_tokens**2 for request in requests) / max(outputs, 1)
    context = max(1.0, prompt + output / 2)
    # The most that a worker can hold at once makes the slowest steps; slower ones than the SLO allows don't count.
    sequences = max(1.0, min(question.setup.max_num_seqs, profile.kv_tokens / context))
    token_ms = profile.step.step_ms(sequences, sequences * context, 0)
    answer_ms = output * (token_ms if slo.tpot_ms is None else min(token_ms, slo.tpot_ms))
    if slo.e2e_ms is not None:
        answer_ms = min(answer_ms, slo.e2e_ms)
    return _ANSWERS * answer_ms + _WAITS * (slo.ttft_ms or 0.0)
