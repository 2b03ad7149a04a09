"""OutputLengths: how long answers will be, learned from those that ended.

Requests are alike by model, tenant and API. Each kind keeps a histogram of lengths whose buckets grow by a fifth. One
that saw little is filled up with that of its (model, API), that one with its model's, and that with a guess. A
histogram, not a mean: what is expected below a request's own limit is the mean of min(length, limit), and what is still
to come of an answer that is long already depends on the tail.

Only answers that ended count. One that its limit cut off was at least so long: its weight is spread over what is
longer, in the proportions expected there (Efron's redistribution to the right).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_PER_OCTAVE = 4
_OCTAVES = 20
_BUCKETS = 1 + _PER_OCTAVE * _OCTAVES
"""The first one is for no token at all."""
_MEMORY = 500.0
"""Answers that a histogram rests on: the influence of older ones fades."""
_GROWTH = 1 / (1 - 1 / _MEMORY)
"""Instead of making all older answers lighter, each one is heavier than the one before by this."""
_HEAVIEST = 1e9
_BORROWED = 5.0
"""Answers that the more general histogram counts as."""
_GUESS_MEDIAN, _GUESS_SPREAD = 125.0, 1.2
"""Of a log-normal guess; its mean is about 256 tokens."""
_MOST_KINDS = 1_024
_FRESH = 32
"""A kind's expectation is computed anew after so many answers that it rests on, sooner while there are few."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ExpectedLength:
    """A distribution of lengths in tokens, of one answer. Never changed."""

    answers_seen: float
    """That it rests on, older ones counting less."""
    _weights: list[float]
    _means: list[float]
    _weight_above: list[float]
    """Of all later buckets."""
    _tokens_below: list[float]
    """Weight × tokens of all earlier ones."""

    def tokens(self, limit: int | None = None) -> float:
        """Mean of min(length, limit)."""
        return self._tokens_below[-1] if limit is None else self._up_to(limit)

    def remaining(self, generated: float, limit: int | None = None) -> float:
        """Mean of the tokens still to come of an answer that has so many and goes on."""
        if limit is not None and generated >= limit:
            return 0.0
        at = _bucket(generated)
        above = self._weight_above[at] + (self._weights[at] if self._means[at] > generated else 0.0)
        # Beyond all that was ever thought of: half as long again.
        left = (self.tokens(limit) - self._up_to(generated)) / above if above > 0.0 else generated / 2
        return left if limit is None else min(left, limit - generated)

    def _up_to(self, tokens: float) -> float:
        at = _bucket(tokens)
        return (
            self._tokens_below[at] + self._weights[at] * min(self._means[at], tokens) + self._weight_above[at] * tokens
        )


@dataclass(slots=True)
class _Kind:
    """Requests that are alike."""

    weights: Numbers = field(default_factory=lambda: np.zeros(_BUCKETS))
    tokens: Numbers = field(default_factory=lambda: np.zeros(_BUCKETS))
    """Weight × length."""
    unit: float = 1.0
    """Weight of the next answer."""
    whole: float = 0.0
    """Weight of all."""
    observed: int = 0
    """Answers, all of them."""
    expected: ExpectedLength | None = None
    good_for: int = 0
    """`expected` holds until so many answers of its model were observed."""

    @property
    def seen(self) -> float:
        """Answers that it rests on, older ones counting less."""
        return self.whole / self.unit

    def observe(self, bucket: int, tokens: float) -> None:
        """An answer of that length."""
        self._begin()
        self.weights[bucket] += self.unit
        self.tokens[bucket] += self.unit * tokens

    def observe_spread(self, weights: Numbers, tokens: Numbers) -> None:
        """An answer of one of these lengths: probability of each bucket, and × its tokens."""
        self._begin()
        self.weights += self.unit * weights
        self.tokens += self.unit * tokens

    def _begin(self) -> None:
        self.unit *= _GROWTH
        if self.unit > _HEAVIEST:
            self.weights /= self.unit
            self.tokens /= self.unit
            self.whole /= self.unit
            self.unit = 1.0
        self.whole += self.unit
        self.observed += 1


class OutputLengths:
    """Owned by the ledger. Bounded: kinds that were not asked for lately are forgotten first."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[tuple[str, ...], _Kind] = OrderedDict()

    def expected(self, model: str, tenant: str | None, api: str) -> ExpectedLength:
        """What is expected of one answer to such a request."""
        general, kind = self._kind(model), self._kind(*_key(model, tenant, api))
        if kind.expected is None or general.observed >= kind.good_for:
            kind.expected = self._mixed(model, tenant, api)
            kind.good_for = general.observed + max(1, min(_FRESH, general.observed // 8))
        return kind.expected

    def ended(self, model: str, tenant: str | None, api: str, tokens: float, *, cut_off: bool = False) -> None:
        """An answer of that length ended; `cut_off`: by a limit, else it would have been longer."""
        kinds = [self._kind(*key) for key in _levels(model, tenant, api)]
        if not cut_off:
            bucket = _bucket(tokens)
            for kind in kinds:
                kind.observe(bucket, tokens)
            return
        spread = _spread_above(tokens, *self._shares(model, tenant, api))
        for kind in kinds:
            kind.observe_spread(*spread)

    def __len__(self) -> int:
        return len(self._kinds)

    def _kind(self, *key: str) -> _Kind:
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind()
            if len(self._kinds) > _MOST_KINDS:
                self._kinds.popitem(last=False)
        else:
            self._kinds.move_to_end(key)
        return kind

    def _shares(self, model: str, tenant: str | None, api: str) -> tuple[Numbers, Numbers]:
        """Probability of each bucket, and × its mean length."""
        weights, tokens = _GUESS
        for key in _levels(model, tenant, api):
            kind = self._kind(*key)
            borrowed = _BORROWED * kind.unit
            weights = (kind.weights + borrowed * weights) / (kind.whole + borrowed)
            tokens = (kind.tokens + borrowed * tokens) / (kind.whole + borrowed)
        return weights, tokens

    def _mixed(self, model: str, tenant: str | None, api: str) -> ExpectedLength:
        weights, tokens = self._shares(model, tenant, api)
        sums = np.concatenate([[0.0], np.cumsum(tokens)])
        above = np.concatenate([np.cumsum(weights[::-1])[::-1][1:], [0.0]])
        means = np.divide(tokens, weights, out=np.zeros(_BUCKETS), where=weights > 0)
        seen = self._kind(model).seen
        return ExpectedLength(seen, weights.tolist(), means.tolist(), above.tolist(), sums.tolist())


def _key(model: str, tenant: str | None, api: str) -> tuple[str, ...]:
    return (model, api) if tenant is None else (model, api, tenant)


def _levels(model: str, tenant: str | None, api: str) -> list[tuple[str, ...]]:
    """Kinds that a request belongs to, the most general one first."""
    levels: list[tuple[str, ...]] = [(model,), (model, api)]
    return levels if tenant is None else [*levels, (model, api, tenant)]


def _bucket(tokens: float) -> int:
    if tokens < 1:
        return 0
    return min(_BUCKETS - 1, 1 + int(_PER_OCTAVE * math.log2(tokens)))


def _spread_above(least: float, shares: Numbers, tokens: Numbers) -> tuple[Numbers, Numbers]:
    """One answer that would have been longer than `least`, wherever it is expected to be then."""
    weights, sums = np.zeros(_BUCKETS), np.zeros(_BUCKETS)
    first = _bucket(least) + 1
    whole = float(shares[first:].sum())
    if whole <= 0.0:
        weights[-1] = 1.0
        sums[-1] = 1.5 * least
    else:
        weights[first:] = shares[first:] / whole
        sums[first:] = tokens[first:] / whole
    return weights, sums


def _guess() -> tuple[Numbers, Numbers]:
    edges = [0.0, *(2 ** (i / _PER_OCTAVE) for i in range(_BUCKETS - 1)), math.inf]
    below = [0.0, *(_normal(math.log(edge / _GUESS_MEDIAN) / _GUESS_SPREAD) for edge in edges[1:-1]), 1.0]
    weights = np.diff(np.array(below))
    weights[1] += weights[0]  # an answer has a token
    weights[0] = 0.0
    middles = np.array([0.0, *(2 ** ((i + 0.5) / _PER_OCTAVE) for i in range(_BUCKETS - 1))])
    return weights, weights * middles


def _normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


_GUESS = _guess()
