"""Choosing the next token from logits: pure functions, one row at a time.

Chance is a function of the request's seed and the token's position, so an answer that goes on elsewhere draws as if it
had not moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pointsman.edge.engines.embedded.weights import Array
from pointsman.edge.engines.openai_server.sampling import Chosen, Sampling

__all__ = ["Chosen", "Sampling", "choose", "likeliest", "log_softmax"]

Floats = NDArray[np.float64]

_NEVER = np.float32(-np.inf)
_TINY, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


def choose(logits: Array, sampling: Sampling, prompt: Sequence[int], answer: Sequence[int]) -> Chosen:
    """The token that follows `prompt` and `answer`, of which `logits` [vocabulary] are."""
    wanted = sampling.logprobs
    adjusted = logits if sampling.plain else _adjusted(logits, sampling, prompt, answer)
    if sampling.temperature == 0.0:
        token = int(adjusted.argmax())
    else:
        token = _draw(adjusted, sampling, len(prompt) + len(answer))
    if wanted is None:
        return Chosen(token)
    return told(logits, token, wanted)


def told(logits: Array, token: int, wanted: int) -> Chosen:
    """A token with its logprob, and as many of the likeliest ones as are `wanted`."""
    logprobs = log_softmax(logits)
    return Chosen(token, float(logprobs[token]), likeliest(logprobs, wanted))


def log_softmax(logits: Array) -> Floats:
    """Logarithms of the probabilities, in float64."""
    values = logits.astype(np.float64)
    values -= values.max()
    found: Floats = values - np.log(np.exp(values).sum())
    return found


def likeliest(logprobs: Floats, count: int) -> tuple[tuple[int, float], ...]:
    """The likeliest tokens; of equal ones those with the lower id first."""
    count = min(count, len(logprobs))
    if not count:
        return ()
    # Not all are sorted: that would take ten times as long, for each token of a prompt that is echoed.
    among = np.flatnonzero(logprobs >= np.partition(logprobs, -count)[-count])
    order = among[np.argsort(-logprobs[among], kind="stable")][:count]
    return tuple((int(token), float(logprobs[token])) for token in order)


def _adjusted(logits: Array, sampling: Sampling, prompt: Sequence[int], answer: Sequence[int]) -> Array:
    values = logits.copy()
    if sampling.repetition_penalty != 1.0:
        seen = np.unique(np.concatenate([np.asarray(prompt, np.intp), np.asarray(answer, np.intp)]))
        old = values[seen]
        # A penalty of any size leaves numbers: two infinities have no difference.
        penalty = np.float32(min(max(sampling.repetition_penalty, _TINY), _MOST))
        with np.errstate(over="ignore"):
            values[seen] = np.where(old > 0, old / penalty, old * penalty).clip(-_MOST, _MOST)
    if (sampling.presence_penalty or sampling.frequency_penalty) and answer:
        counts = Counter(answer)
        tokens = np.fromiter(counts, np.intp, len(counts))
        times = np.fromiter(counts.values(), np.float32, len(counts))
        values[tokens] -= np.float32(sampling.frequency_penalty) * times + np.float32(sampling.presence_penalty)
    for token, bias in sampling.logit_bias.items():
        values[token] += np.float32(bias)
    if sampling.end_ids and len(answer) < sampling.min_tokens:
        values[list(sampling.end_ids)] = _NEVER
    return values


def _draw(logits: Array, sampling: Sampling, position: int) -> int:
    values = logits.astype(np.float64) / sampling.temperature
    # From the likeliest on: what filters leave is a beginning of this order.
    order = np.argsort(-values, kind="stable")
    if sampling.top_k > 0:
        order = order[: sampling.top_k]
    likely = values[order]
    shares = np.exp(likely - likely[0])
    if sampling.min_p > 0.0:
        shares = shares[: max(1, int(np.count_nonzero(shares >= sampling.min_p)))]
    cumulated = np.cumsum(shares)
    if sampling.top_p < 1.0:
        most = int(np.searchsorted(cumulated, sampling.top_p * cumulated[-1])) + 1
        cumulated = cumulated[:most]
    at = _chance(sampling.seed, position) * cumulated[-1]
    place = min(int(np.searchsorted(cumulated, at, side="right")), len(cumulated) - 1)
    return int(order[place])


def _chance(seed: int, position: int) -> float:
    """Between 0 and 1, of a counter-based generator: position n needs none before it."""
    return float(np.random.Generator(np.random.Philox(key=seed & 0xFFFF_FFFF_FFFF_FFFF, counter=position)).random())
