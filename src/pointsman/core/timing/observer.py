"""From what a front end sees of one worker's requests to intervals that step times can be learned from.

A front end sees when it sent a request, when the first token came, now and then that some more tokens came, and the
end. One sequence that decodes all the time, the *pacer*, tells how many steps the engine took: a token a step. Between
two of the pacer's reports the sequences decoding and their KV tokens are averaged over time, and prompts count where
their first token fell. An interval is not closed while a prompt waits for its first token, or a prompt half done would
be counted on one side and computed on the other; after `LONGEST_STEPS` it is closed all the same.

Where nobody reports tokens before the end, as in logs, each request is an interval of its own. Those of C requests side
by side tell partly the same, so each has a weight of 1/√C. Prompts that were computed while nothing decoded are
intervals, too: alone from the moment that the idle worker got them, or one after the other while more of them wait.

Every event costs a few additions, whatever is in flight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pointsman.core.model.errors import LedgerError
from pointsman.core.timing.interval import Interval

SHORTEST_STEPS = 16
"""An interval has a step more or less at each end; this many make that little."""
LONGEST_STEPS = 64
SHORTEST_SPAN_STEPS = 8
"""Of a request whose tokens were only counted at its end."""
SHORTEST_STEP_MS = 0.1
"""No engine's step is shorter: tokens that are less apart were held up on their way and came together."""
_SAME_STEP_MS = 1.0
"""First tokens that come together were computed together."""
_NO_DECODES = 0.05
"""Mean sequences decoding below which a time counts as prefill only."""


@dataclass(slots=True)
class _Mark:
    """The sums as they stood at one moment."""

    at_ms: float
    sequences_ms: float
    context_ms: float
    age_ms2: float
    prefill_tokens: float
    prefill_squares: float


@dataclass(slots=True)
class _Sequence:
    """One request in flight."""

    started_ms: float
    prompt_tokens: int
    new_tokens: int
    sequences: int
    streamed: bool
    context_tokens: float = 0.0
    """KV tokens as last known; 0 before the first token."""
    known_ms: float = 0.0
    reported: int = 0
    """Tokens reported after the first one."""
    mark: _Mark | None = None
    """At its first token; None = still waiting for it."""


@dataclass(slots=True)
class _Group:
    """Prompts of which the first tokens came together, while nothing decoded and more waited before."""

    begin_ms: float
    end_ms: float
    sequences_ms: float
    """The sum as it stood at the end."""
    tokens: float = 0.0
    squares: float = 0.0
    requests: int = 0
    """0 = nobody knows when it began: it only says when the one after it can have begun."""


@dataclass(frozen=True, slots=True)
class ObservedLoad:
    """What is in flight at one worker, as a front end knows it."""

    sequences: int
    """Decoding."""
    context_tokens: float
    """KV tokens that they read in a step."""
    waiting: int
    """Requests whose first token has not come."""
    waiting_prefill_tokens: int
    """Their prompt tokens that were not thought cached."""


class WorkerObserver:
    """Watches one worker. Its clock may start anywhere, and time that runs backwards is taken to stand still.

    Methods return an Interval when one is complete. `budget_tokens`: prompt tokens that the engine computes in a step.
    """

    __slots__ = (
        "_age_ms2",
        "_budget",
        "_context",
        "_context_ms",
        "_covered_ms",
        "_decoding",
        "_group",
        "_known_sum_ms",
        "_last_ms",
        "_lone",
        "_mark",
        "_origin_ms",
        "_paced",
        "_pacer",
        "_prefill_squares",
        "_prefill_tokens",
        "_requests",
        "_sequences_ms",
        "_unpaced",
        "_waiting",
        "_waiting_since_ms",
        "_waiting_tokens",
    )

    def __init__(self, budget_tokens: int = 8192) -> None:
        self._budget = budget_tokens
        self._requests: dict[str, _Sequence] = {}
        self._pacer: _Sequence | None = None
        self._mark: _Mark | None = None
        """Where the pacer's interval began."""
        self._lone: str | None = None
        """The request that an idle worker got, while no other came."""
        self._group: _Group | None = None
        self._covered_ms = 0.0
        """Up to when intervals tell what happened."""
        self._start_over(0.0)

    def started(
        self,
        request_id: str,
        at_ms: float,
        prompt_tokens: int,
        *,
        cached_tokens: int = 0,
        sequences: int = 1,
        streamed: bool = True,
    ) -> None:
        """A request was sent to the worker. Raises LedgerError for an id in flight.

        One that is not `streamed` shows nothing before its end: it is taken to have its prompt computed at once and to
        decode from now on, and has neither `first_token` nor `tokens`.
        """
        if request_id in self._requests:
            raise LedgerError(f"request {request_id} is at the worker already")
        if not self._requests:
            self._start_over(at_ms)
            self._lone = request_id
        else:
            self._lone = None
        now_ms = self._advance(at_ms)
        new_tokens = max(0, prompt_tokens - cached_tokens)
        sequence = self._requests[request_id] = _Sequence(now_ms, prompt_tokens, new_tokens, sequences, streamed)
        if not streamed:
            self._lone = None
            self._decodes(sequence, now_ms)
            return
        if not self._waiting:
            self._waiting_since_ms = now_ms
        self._waiting += 1
        self._waiting_tokens += new_tokens

    def first_token(self, request_id: str, at_ms: float, *, computed: bool = True) -> Interval | None:
        """The first token of a request came: its prompt is computed. LedgerError if that is known or it never began.

        `computed` False: not by this worker, or nobody watched when it was.
        """
        sequence = self._requests.get(request_id)
        if sequence is None or sequence.mark is not None:
            raise LedgerError(f"request {request_id} does not wait for its first token here")
        now_ms = self._advance(at_ms)
        waited_for = self._waiting_since_ms
        self._waiting -= 1
        self._waiting_tokens -= sequence.new_tokens
        if not computed:
            sequence.new_tokens = 0
        interval = self._prefill_only(request_id, sequence, now_ms, waited_for)
        self._decodes(sequence, now_ms)
        return interval

    def tokens(self, request_id: str, count: int, at_ms: float) -> Interval | None:
        """`count` more tokens of a request came since the last report."""
        sequence = self._requests.get(request_id)
        if sequence is None or sequence.mark is None or not sequence.streamed:
            raise LedgerError(f"request {request_id} does not generate here, as far as one sees")
        now_ms = self._advance(at_ms)
        sequence.reported += count
        sequence.context_tokens += count
        self._context += count
        self._known_sum_ms += sequence.sequences * (now_ms - sequence.known_ms)
        sequence.known_ms = now_ms
        if sequence is not self._pacer:
            if self._pacer is None and sequence.sequences == 1:
                self._unpaced += count
                if not self._waiting or self._unpaced >= LONGEST_STEPS:
                    self._pacer, self._mark, self._paced = sequence, self._marked(now_ms), 0
            return None
        self._paced += count
        if self._paced < SHORTEST_STEPS or (self._waiting and self._paced < LONGEST_STEPS):
            return None
        return self._close(now_ms)

    def ended(self, request_id: str, at_ms: float, *, output_tokens: int | None = None) -> Interval | None:
        """A request ended, however. `output_tokens`: all that it generated, where the engine said so."""
        sequence = self._requests.pop(request_id, None)
        if sequence is None:
            raise LedgerError(f"request {request_id} is not at the worker")
        now_ms = self._advance(at_ms)
        if sequence.mark is None:
            self._waiting -= 1
            self._waiting_tokens -= sequence.new_tokens
            # Nobody knows how much of its prompt was computed: what is open tells nothing.
            self._pacer, self._group, self._lone = None, None, None
            return None
        self._decoding -= sequence.sequences
        self._context -= sequence.context_tokens
        self._known_sum_ms -= sequence.sequences * sequence.known_ms
        unreported = 0 if output_tokens is None else max(0, output_tokens - 1 - sequence.reported)
        if sequence is self._pacer:
            self._pacer, self._unpaced = None, 0
            self._paced += unreported
            if self._paced < SHORTEST_STEPS or self._waiting:
                return None
            return self._close(now_ms)
        told = sequence.reported or self._pacer is not None or not sequence.streamed or sequence.sequences > 1
        if told or unreported < SHORTEST_SPAN_STEPS:
            if self._requests:
                return None
            group, self._group = self._group, None
            return self._closed_group(group)
        elapsed_ms = now_ms - sequence.mark.at_ms
        alone = min(1.0, max(0.0, (now_ms - max(self._covered_ms, sequence.mark.at_ms)) / max(elapsed_ms, 1e-9)))
        return self._interval(sequence.mark, now_ms, unreported, alone)

    def load(self, now_ms: float, step_ms: float | None = None) -> ObservedLoad:
        """What is in flight. With `step_ms`, tokens that nobody reported yet are added at a token a step."""
        context = self._context
        if step_ms:
            now_ms = max(now_ms - self._origin_ms, self._last_ms)
            context += (self._decoding * now_ms - self._known_sum_ms) / step_ms
        return ObservedLoad(self._decoding, context, self._waiting, self._waiting_tokens)

    def forget(self) -> None:
        """The worker left or started anew: nothing is in flight, and what is open is dropped."""
        self._requests.clear()
        self._start_over(0.0)

    # ---- sums

    def _decodes(self, sequence: _Sequence, now_ms: float) -> None:
        """Its prompt is computed, from now on it decodes."""
        self._prefill_tokens += sequence.new_tokens
        self._prefill_squares += _squares(sequence)
        self._decoding += sequence.sequences
        sequence.context_tokens = float(sequence.sequences * (sequence.prompt_tokens + 1))
        self._context += sequence.context_tokens
        self._known_sum_ms += sequence.sequences * now_ms
        sequence.known_ms = now_ms
        sequence.mark = self._marked(now_ms)

    def _start_over(self, at_ms: float) -> None:
        # From an idle moment on all sums begin at 0: they stay small, and so do their rounding errors.
        self._origin_ms = at_ms
        self._last_ms = 0.0
        self._decoding = self._waiting = self._waiting_tokens = 0
        self._context = self._known_sum_ms = 0.0
        self._sequences_ms = self._context_ms = self._age_ms2 = 0.0
        self._prefill_tokens = self._prefill_squares = 0.0
        self._pacer = self._mark = self._lone = self._group = None
        self._paced = self._unpaced = 0
        self._waiting_since_ms = self._covered_ms = 0.0

    def _advance(self, at_ms: float) -> float:
        now_ms = at_ms - self._origin_ms
        last_ms = self._last_ms
        elapsed_ms = now_ms - last_ms
        if elapsed_ms <= 0:
            return last_ms
        if self._decoding:
            self._sequences_ms += self._decoding * elapsed_ms
            self._context_ms += self._context * elapsed_ms
            self._age_ms2 += elapsed_ms * (self._decoding * (last_ms + now_ms) / 2 - self._known_sum_ms)
        self._last_ms = now_ms
        return now_ms

    def _marked(self, now_ms: float) -> _Mark:
        return _Mark(
            now_ms,
            self._sequences_ms,
            self._context_ms,
            self._age_ms2,
            self._prefill_tokens,
            self._prefill_squares,
        )

    def _close(self, now_ms: float) -> Interval | None:
        mark, steps = self._mark, self._paced
        if mark is None or now_ms <= mark.at_ms:
            return None
        self._mark, self._paced = self._marked(now_ms), 0
        return self._interval(mark, now_ms, steps, 1.0)

    def _interval(self, mark: _Mark, now_ms: float, steps: int, alone: float) -> Interval | None:
        elapsed_ms = now_ms - mark.at_ms
        if elapsed_ms <= 0 or elapsed_ms < steps * SHORTEST_STEP_MS:
            return None
        steps_per_ms = steps / elapsed_ms
        sequence_steps = (self._sequences_ms - mark.sequences_ms) * steps_per_ms
        # Sequences get a token a step, reported or not: their age since the last report is context, too.
        age = (self._age_ms2 - mark.age_ms2) * steps_per_ms
        context = (self._context_ms - mark.context_ms + age) * steps_per_ms
        self._covered_ms = max(self._covered_ms, now_ms)
        return Interval(
            elapsed_ms,
            float(steps),
            max(0.0, sequence_steps),
            max(0.0, context),
            self._prefill_tokens - mark.prefill_tokens,
            self._prefill_squares - mark.prefill_squares,
            weight=max(alone, min(1.0, math.sqrt(steps / max(sequence_steps, 1e-9)))),
            end_ms=now_ms + self._origin_ms,
        )

    # ---- prompts while nothing decodes

    def _prefill_only(self, request_id: str, sequence: _Sequence, now_ms: float, waited_for: float) -> Interval | None:
        tokens, squares = float(sequence.new_tokens), _squares(sequence)
        if self._lone == request_id:
            # Alone at an idle worker: the time includes the way there and back.
            self._lone = None
            self._group = _Group(now_ms, now_ms, self._sequences_ms)
            if now_ms <= sequence.started_ms or not tokens:
                return None
            return Interval(
                now_ms - sequence.started_ms,
                self._steps_of(tokens),
                prefill_tokens=tokens,
                prefill_squares=squares,
                starts=1.0,
                end_ms=now_ms + self._origin_ms,
            )
        group = self._group
        if group is not None and now_ms - group.end_ms <= _SAME_STEP_MS:
            if group.requests:
                group.tokens += tokens
                group.squares += squares
            return None
        done = self._closed_group(group)
        self._group = None
        if group is None:
            self._group = _Group(now_ms, now_ms, self._sequences_ms)
        elif waited_for <= group.end_ms + _SAME_STEP_MS and self._decoded(group, now_ms) < _NO_DECODES:
            self._group = _Group(group.end_ms, now_ms, self._sequences_ms, tokens, squares, 1)
        else:
            self._group = _Group(now_ms, now_ms, self._sequences_ms)
        return done

    def _decoded(self, group: _Group, now_ms: float) -> float:
        """Mean sequences decoding since a group's end."""
        return (self._sequences_ms - group.sequences_ms) / max(now_ms - group.end_ms, 1e-9)

    def _closed_group(self, group: _Group | None) -> Interval | None:
        if group is None or not group.requests or not group.tokens:
            return None
        return Interval(
            group.end_ms - group.begin_ms,
            self._steps_of(group.tokens),
            prefill_tokens=group.tokens,
            prefill_squares=group.squares,
            end_ms=group.end_ms + self._origin_ms,
        )

    def _steps_of(self, tokens: float) -> float:
        return max(1.0, tokens / self._budget)


def _squares(sequence: _Sequence) -> float:
    cached = sequence.prompt_tokens - sequence.new_tokens
    return float(sequence.prompt_tokens) ** 2 - float(cached) ** 2
