"""Probe plan: the requests with which a live engine is measured: few, of many lengths, alone and together."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from pointsman.core.model.errors import CalibrationError

_WORDS = (
    *("able", "back", "ball", "bird", "blue", "boat", "body", "book", "call", "case", "city", "cold", "come", "dark"),
    *("data", "deal", "deep", "door", "down", "draw", "drop", "east", "edge", "even", "face", "fact", "fall", "farm"),
    *("fast", "feet", "fill", "find", "fire", "fish", "five", "flat", "flow", "food", "foot", "form", "four", "free"),
    *("full", "game", "gave", "girl", "give", "glad", "gold", "good", "gray", "grew", "hair", "half", "hall", "hand"),
    *("hard", "have", "head", "hear", "heat", "held", "help", "here", "high", "hill", "hold", "home", "hope", "hour"),
    *("idea", "iron", "just", "keep", "kind", "knew", "know", "lady", "lake", "land", "last", "late", "lead", "left"),
    *("less", "life", "lift", "line", "list", "live", "long", "look", "lost", "loud", "love", "made", "main", "make"),
)
SHORT_TOKENS = 64
"""Of the shortest prompts."""
_ALONE_OUTPUT_TOKENS = 24
_OUTPUT_TOKENS = 48
_REPEATS = 2


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a plan."""

    words: int
    """About as many tokens; the engine says how many they were."""
    output_tokens: int


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """Rounds one after the other. A round's requests run side by side: each is sent when the one before it had its
    first token, so that it is clear what each step computed. The next round begins when all have ended."""

    rounds: tuple[tuple[Ask, ...], ...]

    @property
    def requests(self) -> int:
        """In all rounds."""
        return sum(len(asks) for asks in self.rounds)

    @property
    def tokens(self) -> int:
        """Prompts and answers, about."""
        return sum(ask.words + ask.output_tokens for asks in self.rounds for ask in asks)


def probe_plan(*, most_prompt_tokens: int, most_sequences: int, most_tokens: int) -> ProbePlan:
    """A plan that grows from one short request to `most_sequences` at once, and costs `most_tokens` at most.

    First rounds tell the fixed time of a step and the time of a prompt token, later ones what sequences and their
    context add: each size comes with short prompts and with long ones. Raises CalibrationError for limits that leave
    nothing to learn.
    """
    if most_prompt_tokens < SHORT_TOKENS:
        raise CalibrationError(
            f"prompts of up to {most_prompt_tokens} tokens tell nothing; allow at least {SHORT_TOKENS}"
        )
    rounds: list[tuple[Ask, ...]] = [(Ask(SHORT_TOKENS, _ALONE_OUTPUT_TOKENS),)]  # warms up, and is not looked at
    rest = most_tokens - rounds[0][0].words - rounds[0][0].output_tokens
    for asks in _wanted(most_prompt_tokens, most_sequences):
        cost = sum(ask.words + ask.output_tokens for ask in asks)
        if cost > rest:
            continue
        rounds.append(asks)
        rest -= cost
    plan = ProbePlan(tuple(rounds))
    if plan.requests < 2 * _REPEATS + 1:
        raise CalibrationError(f"{most_tokens:,} tokens are too few to learn anything; allow at least 5,000")
    return plan


def _wanted(most_prompt_tokens: int, most_sequences: int) -> Iterator[tuple[Ask, ...]]:
    lengths = []
    length = SHORT_TOKENS
    while length < most_prompt_tokens:
        lengths.append(length)
        length *= 2
    lengths.append(most_prompt_tokens)
    for length in lengths:
        for _ in range(_REPEATS):
            yield (Ask(length, _ALONE_OUTPUT_TOKENS),)
    sequences = 2
    while sequences <= most_sequences:
        yield (Ask(SHORT_TOKENS, _OUTPUT_TOKENS),) * sequences
        yield (Ask(max(SHORT_TOKENS, most_prompt_tokens // 2), _OUTPUT_TOKENS),) * sequences
        sequences *= 2


def random_text(words: int, rng: random.Random) -> str:
    """Words that no engine has cached: from the first one on they are drawn anew."""
    return " ".join(rng.choice(_WORDS) for _ in range(words))
