"""Times of one request predicted from step coefficients and what its engine is doing.

The engine takes decodes first in each step, then prompts, first come first served, up to its token budget: a prompt is
computed in `ceil((tokens before it + its own) / (budget − decodes))` steps, each of which decodes, too. A request that
comes while a step runs waits for its end, half a step on the average; prompts that wait already are in that step, as
far as it has room.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pointsman.core.timing.step import StepCoefficients

DEFAULT_BUDGET_TOKENS = 8192
"""Of a served vLLM."""


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine is doing when a request comes."""

    sequences: float = 0.0
    """Decoding."""
    context_tokens: float = 0.0
    """KV tokens that they read in a step."""
    waiting_prefill_tokens: float = 0.0
    """Prompt tokens not yet computed that go first."""
    waiting: float = 0.0
    """Requests that these belong to; each decodes from its first token on."""
    budget_tokens: int = DEFAULT_BUDGET_TOKENS
    """Tokens a step, decodes and prompts together."""
    in_step: bool = True
    """A step is being computed, if there is anything to compute. False right between two steps."""

    @property
    def room_tokens(self) -> float:
        """Prompt tokens a step."""
        return max(1.0, self.budget_tokens - self.sequences)


def prefill_steps(load: Load, new_tokens: float) -> int:
    """Steps until a prompt of `new_tokens` uncached tokens is computed, after the one that runs; at least one."""
    return max(1, math.ceil((load.waiting_prefill_tokens - _in_step_tokens(load) + new_tokens) / load.room_tokens))


def ttft_ms(
    coefficients: StepCoefficients,
    load: Load,
    new_tokens: float,
    *,
    cached_tokens: float = 0.0,
    overhead_ms: float = 0.0,
    capacity_ms: float = 0.0,
) -> float:
    """Time to the first token of a prompt, `cached_tokens` of which are in the engine's cache.

    `overhead_ms`: the way to the engine and back. `capacity_ms`: waiting for KV or a place, see `capacity_wait_ms`.
    """
    steps = prefill_steps(load, new_tokens)
    in_step = _in_step_tokens(load)
    ahead = load.waiting_prefill_tokens - in_step
    joined = _joined(load, steps)
    mean_prompt = load.waiting_prefill_tokens / load.waiting if load.waiting else 0.0
    sequences = load.sequences + joined
    context = load.context_tokens + load.sequences * (steps - 1) / 2 + joined * mean_prompt
    squares = mean_prompt * ahead + (cached_tokens + new_tokens) ** 2 - cached_tokens**2
    computed_ms = steps * coefficients.step_ms(sequences, context, 0.0)
    computed_ms += coefficients.d_ms_per_prefill_token * (ahead + new_tokens)
    computed_ms += coefficients.q_ms_per_square_token * squares
    running_ms = 0.0
    if load.in_step and (load.sequences or load.waiting_prefill_tokens):
        running_ms = coefficients.step_ms(load.sequences, load.context_tokens, in_step, mean_prompt * in_step)
    return overhead_ms + capacity_ms + running_ms / 2 + computed_ms


def _in_step_tokens(load: Load) -> float:
    """Waiting tokens that the running step computes."""
    return min(load.waiting_prefill_tokens, load.room_tokens) if load.in_step else 0.0


def _joined(load: Load, steps: int) -> float:
    """Mean number of the requests before a prompt that decode already, over the steps until it is computed.

    They are computed one after the other, as many tokens a step as there is room, and decode from then on.
    """
    if not load.waiting:
        return 0.0
    ahead = load.waiting_prefill_tokens / load.room_tokens
    first = 1 if load.in_step else 0
    last = first + steps
    whole = max(first, min(last, math.floor(ahead) + 1))
    # Sum over the steps j of min(1, j/ahead).
    sum_of_shares = float(last - whole)
    if whole > first:
        sum_of_shares += (whole * (whole - 1) - first * (first - 1)) / 2 / ahead
    return load.waiting * sum_of_shares / steps


def tpot_ms(coefficients: StepCoefficients, load: Load, prefill_tokens_per_step: float = 0.0) -> float:
    """Time between two tokens with the load as it is, and that many prompt tokens of others in each step."""
    return coefficients.step_ms(load.sequences, load.context_tokens, prefill_tokens_per_step)


def closed_loop_tpot_ms(
    coefficients: StepCoefficients, sequences: float, prompt_tokens: float, output_tokens: float
) -> float:
    """Mean time between tokens when `sequences` clients send one request after the other.

    Each brings `prompt_tokens` uncached tokens of prefill for `output_tokens` tokens of decoding.
    """
    context = sequences * (prompt_tokens + output_tokens / 2)
    per_step = sequences * prompt_tokens / output_tokens
    squares = sequences * prompt_tokens**2 / output_tokens
    return coefficients.step_ms(sequences, context, per_step, squares)


def e2e_ms(
    coefficients: StepCoefficients,
    load: Load,
    new_tokens: float,
    output_tokens: float,
    *,
    cached_tokens: float = 0.0,
    overhead_ms: float = 0.0,
    prefill_tokens_per_step: float = 0.0,
) -> float:
    """Time to the last token, when as many sequences decode beside it all the time as do now.

    Those that end are taken to be replaced by like ones, so only its own context grows.
    """
    first_ms = ttft_ms(coefficients, load, new_tokens, cached_tokens=cached_tokens, overhead_ms=overhead_ms)
    steps = max(0.0, output_tokens - 1)
    sequences = load.sequences + load.waiting + 1
    context = load.context_tokens + load.waiting_prefill_tokens + cached_tokens + new_tokens + output_tokens / 2
    return first_ms + steps * coefficients.step_ms(sequences, context, prefill_tokens_per_step)


def capacity_wait_ms(
    coefficients: StepCoefficients, load: Load, short_tokens: float, mean_output_tokens: float
) -> float:
    """Time until sequences that end have freed `short_tokens` KV tokens, those of the requests ahead included.

    In the long run each sequence ends once in `mean_output_tokens` steps and frees its context. Infinite if nothing
    decodes.
    """
    if short_tokens <= 0:
        return 0.0
    if load.context_tokens <= 0:
        return math.inf
    freed_per_step = load.context_tokens / max(1.0, mean_output_tokens)
    return short_tokens / freed_per_step * tpot_ms(coefficients, load)
