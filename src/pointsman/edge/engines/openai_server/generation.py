"""One HTTP request while its answers are generated."""

from __future__ import annotations

import asyncio
import enum
import itertools
import secrets
from collections.abc import Mapping
from typing import Protocol

from pointsman.core.engine_model.sequence import Sequence
from pointsman.edge.engines.openai_server.metrics import ServerMetrics
from pointsman.edge.engines.openai_server.sampling import Chosen, SampledRequest
from pointsman.edge.engines.openai_server.served_engine import Runner, TokenSink
from pointsman.edge.engines.openai_server.spec import GenerationSpec
from pointsman.edge.engines.openai_server.stop_scanner import StopScanner
from pointsman.edge.engines.openai_server.text import ServedText

_NUMBERS = itertools.count(secrets.randbits(48))
"""Of requests: their KV may be held for others longer than their answers live, and clients' own ids come twice."""


class Outcome(enum.Enum):
    """How a generation ended, as far as its HTTP answer is concerned."""

    COMPLETE = "complete"
    CUT = "cut"
    """The connection is to be cut in the middle of the answer."""


class Output(Protocol):
    """Where the text of a generation goes. A piece may have an empty text."""

    def piece(self, choice: Choice, text: str, token: int, chosen: Chosen | None) -> None:
        """One more token of a choice; `choice.finish_reason` is set when it was the last."""

    def end(self) -> None:
        """All choices have ended."""

    def fail(self, status: int, message: str) -> None:
        """The engine can't go on with any of them."""


class Usage:
    """Token counts of a request so far."""

    __slots__ = ("cached_tokens", "completion_tokens", "prompt_tokens")

    def __init__(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = completion_tokens
        self.cached_tokens = cached_tokens

    def as_json(self) -> dict[str, object]:
        """OpenAI's usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Choice:
    """One answer: turns tokens into text and finds its end."""

    __slots__ = (
        "_end_ids",
        "_generation",
        "_min_tokens",
        "_scanner",
        "_text",
        "finish_reason",
        "index",
        "prompt",
        "sequence",
        "stop_reason",
        "tokens",
    )

    def __init__(self, generation: Generation, index: int, prompt: list[int]) -> None:
        spec = generation.spec
        self._generation = generation
        self._scanner = StopScanner(spec.stops, spec.include_stop) if spec.stops else None
        self._text = generation.text.stream(skip_special_tokens=spec.skip_special_tokens)
        self._end_ids = frozenset(spec.sampling.end_ids)
        self._min_tokens = spec.sampling.min_tokens
        self.index = index
        self.prompt = prompt
        self.sequence: Sequence | None = None
        self.tokens = 0
        """Tokens that the client is told of."""
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None

    def on_token(self, token: int, last: bool, chosen: Chosen | None = None) -> None:
        """One more token of the engine."""
        if self.finish_reason is not None:
            return
        self.tokens += 1
        generation = self._generation
        ends = token in self._end_ids and self.tokens > self._min_tokens
        # A token that ends an answer is not shown, unless it is asked for.
        text = "" if ends and not generation.spec.include_stop else self._text.feed(token)
        if ends or last:
            text += self._text.flush()
        scanner = self._scanner
        if scanner is not None:
            text = scanner.feed(text) if self.tokens > self._min_tokens else scanner.skip(text)
            if scanner.found is not None:
                self.finish_reason, self.stop_reason = "stop", scanner.found
            elif ends or last:
                text += scanner.flush()
        if self.finish_reason is None:
            if ends:
                self.finish_reason = "stop"
                self.stop_reason = token if token in generation.spec.stop_ids else None
            elif last:
                self.finish_reason = "stop" if generation.spec.ends_itself else "length"
        if self.finish_reason is not None:
            generation.choice_ends(self)
        generation.output.piece(self, text, token, chosen)
        if self.finish_reason is not None:
            generation.choice_ended(self)

    def on_error(self, error: Exception) -> None:
        """The last token could not be written, or there is none."""
        self._generation.fail(error)


class Generation:
    """All answers of one HTTP request. `done` is set when the HTTP answer is written or has to be cut."""

    def __init__(self, spec: GenerationSpec, runner: Runner, text: ServedText, metrics: ServerMetrics) -> None:
        self.spec = spec
        self.text = text
        self.output: Output
        self.done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.kv_transfer_params: Mapping[str, object] | None = None
        """Of the answer; known when its last choice ends."""
        self._runner = runner
        self._metrics = metrics
        self.choices = [
            Choice(self, number * spec.n + index, prompt)
            for number, prompt in enumerate(spec.prompts)
            for index in range(spec.n)
        ]
        self._open = len(self.choices)

    def start(self, output: Output) -> None:
        """Hand all prompts to the engine."""
        self.output = output
        spec = self.spec
        for number, prompt in enumerate(spec.prompts):
            request = SampledRequest(
                f"{spec.id}-{number}-{next(_NUMBERS):x}",
                prompt,
                spec.max_tokens,
                spec.n,
                spec.lora_name,
                spec.cache_salt,
                sampling=spec.sampling,
                kv_transfer_params=spec.kv_transfer_params,
            )
            choices = self.choices[number * spec.n : (number + 1) * spec.n]
            sinks: list[TokenSink] = list(choices)
            for choice, sequence in zip(choices, self._runner.submit(request, sinks), strict=True):
                choice.sequence = sequence

    def abort(self) -> None:
        """Nobody wants the rest: take everything out of the engine that has not ended."""
        for choice in self.choices:
            if choice.finish_reason is None:
                choice.finish_reason = "abort"
                self._metrics.ended["abort"] += 1
                if choice.sequence is not None:
                    self._runner.abort(choice.sequence)

    def cut(self) -> None:
        """End now, with the connection."""
        self._settle(Outcome.CUT)

    def complete(self) -> None:
        """The HTTP answer is written, whether or not all choices have ended."""
        self._settle(Outcome.COMPLETE)

    def fail(self, error: Exception) -> None:
        """The HTTP answer can't be written, or the engine can't go on."""
        self.abort()
        if not self.done.done():
            self.done.set_exception(error)

    def choice_ends(self, choice: Choice) -> None:
        """A choice has its finish reason, and its last piece is about to be written."""
        if choice.sequence is not None:
            self._runner.abort(choice.sequence)
        self._open -= 1
        if not self._open:
            sequences = [choice.sequence for choice in self.choices if choice.sequence is not None]
            self.kv_transfer_params = self._runner.transfer_answer(sequences)

    def choice_ended(self, choice: Choice) -> None:
        """Its last piece is written."""
        if choice.finish_reason == "abort":
            return
        self._metrics.ended[choice.finish_reason or "abort"] += 1
        if not self._open and not self.done.done():
            self.output.end()
            self.complete()

    def usage(self) -> Usage:
        """Counts so far; cached tokens are those of each prompt's first answer."""
        firsts = self.choices[:: self.spec.n]
        cached = sum(choice.sequence.cached_tokens or 0 for choice in firsts if choice.sequence is not None)
        return Usage(self.spec.prompt_tokens, sum(choice.tokens for choice in self.choices), cached)

    def _settle(self, outcome: Outcome) -> None:
        self.abort()
        if not self.done.done():
            self.done.set_result(outcome)
