"""Migration: what is kept of one stream so that it can go on elsewhere, and how it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from pointsman.core.model.migration import Mechanism
from pointsman.edge.serving.engine_links import EngineLink
from pointsman.edge.serving.migration.abilities import abilities
from pointsman.edge.serving.migration.ask import EngineAskError, ask_engine
from pointsman.edge.serving.migration.continued import (
    CONTINUE_PATH,
    continued_body,
    limit_of,
    stops_of,
    unknown_field,
)
from pointsman.edge.serving.migration.converted import ConvertedStream, Seam, head_of, usage_event
from pointsman.edge.serving.migration.replayed import ReplayedStream
from pointsman.edge.serving.migration.said import Said
from pointsman.edge.serving.migration.seam import Decode, NoSeamError, find_seam, is_clean
from pointsman.edge.serving.migration.sse_events import DONE
from pointsman.edge.serving.migration.tracked import TrackedStream
from pointsman.edge.serving.migration.transcript import Transcript
from pointsman.edge.wire.body import with_token_ids
from pointsman.edge.wire.http1_client import UpstreamPool
from pointsman.edge.wire.openai import ChatRequest, CompletionRequest
from pointsman.edge.wire.usage import Usage

OFF = b"off"
"""Value of the header `x-pointsman-migration` that switches it off for one request."""

Reader = Callable[[Callable[[], None]], "TrackedStream | ConvertedStream | ReplayedStream"]
_NO = (b"false", b"null")


@dataclass(frozen=True, slots=True)
class Asked:
    """What an engine is asked for one attempt, and who reads its answer."""

    path: bytes | None
    """None: the client's own."""
    body: bytes
    reader: Reader


class _Detokenized(msgspec.Struct):
    prompt: str


class Migration:
    """Of one streamed request for one answer.

    Args:
        hide_usage: the client did not ask for the usage event.
    """

    __slots__ = (
        "_body",
        "_client_ids",
        "_echoes",
        "_fields",
        "_given_ids",
        "_hide_usage",
        "_kept",
        "_link",
        "_transcript",
        "chat",
        "mechanism",
    )

    def __init__(self, body: bytes, parsed: ChatRequest | CompletionRequest, *, hide_usage: bool) -> None:
        self._body = body
        self._hide_usage = hide_usage
        self.chat = isinstance(parsed, ChatRequest)
        self._echoes = isinstance(parsed.echo, Raw) and bytes(parsed.echo) not in _NO
        self._given_ids = parsed.return_token_ids
        self._client_ids = isinstance(parsed.return_token_ids, Raw) and bytes(parsed.return_token_ids) not in _NO
        self._transcript = Transcript()
        self._link: EngineLink | None = None
        self._fields: dict[str, Any] | None = None
        self._kept: int | None = None
        self.mechanism = Mechanism.NONE
        """By which it goes on, or would."""

    # ---- before anything broke

    def first(self, link: EngineLink) -> Asked:
        """What the engine is asked where the client has nothing yet. A few microseconds."""
        self._link = link
        self._transcript = Transcript()
        return self._first(link)

    def _first(self, link: EngineLink) -> Asked:
        asks = link.migration is Mechanism.TOKEN_IDS and not self._echoes
        body = with_token_ids(self._body, self._given_ids) if asks and not self._client_ids else self._body
        strips = body is not self._body

        def reader(on_fault: Callable[[], None]) -> TrackedStream:
            return TrackedStream(self._transcript, on_fault, hide_usage=self._hide_usage, strips=strips)

        return Asked(None, body, reader)

    # ---- after it broke

    @property
    def begun_at(self) -> EngineLink | None:
        """The engine that it began at."""
        return self._link

    @property
    def anything(self) -> bool:
        """The client has more than the name of the speaker."""
        return self._transcript.said.anything

    def end(self) -> tuple[bytes, Usage | None] | None:
        """What comes after an answer that the client has to its end; None: it has not, or nobody knows."""
        said = self._transcript.said
        if said.finish_reason is None:
            return None
        known = said.prompt_ids is not None and said.ids_known
        usage = Usage(len(said.prompt_ids or ()), len(said.ids), None) if known else None
        if self._hide_usage:
            return DONE, usage
        return None if usage is None else (usage_event(head_of(said, chat=self.chat), usage) + DONE, usage)

    @property
    def tokens(self) -> int:
        """Of the answer, that the next engine gets with the prompt."""
        return self._kept or 0

    @property
    def prompt_tokens(self) -> int | None:
        """Of the client's prompt, where its engine told."""
        ids = self._transcript.said.prompt_ids
        return None if ids is None else len(ids)

    def progress(self) -> int:
        """A number that grows with what the client has got."""
        return self._transcript.said.events

    def refusal(self) -> str | None:
        """Why it can't go on; None: it can."""
        found = self._possible()
        return None if isinstance(found, Mechanism) else found

    def choose(self) -> None:
        """It goes on, by what is possible now."""
        self.mechanism = self.possible
        self._kept = len(self._transcript.said.ids) if self.mechanism is Mechanism.TOKEN_IDS else None

    @property
    def possible(self) -> Mechanism:
        """By which it would go on now; NONE: it can't."""
        found = self._possible()
        return found if isinstance(found, Mechanism) else Mechanism.NONE

    def _possible(self) -> Mechanism | str:
        """By which mechanism, or why by none."""
        if self._transcript.too_long:
            return "more was sent than is kept to go on with it"
        said = self._transcript.said
        if said.unreadable:
            return "an event of it could not be read"
        fields = self._decoded()
        able = abilities(fields)
        if not said.anything:
            return Mechanism.REPLAY
        against_ids = able.token_ids or self._against_token_ids(said, fields)
        if against_ids is None:
            return Mechanism.TOKEN_IDS
        if able.replay is None:
            return Mechanism.REPLAY
        return against_ids if able.replay == against_ids else f"{against_ids}, and {able.replay}"

    async def next(self, link: EngineLink, pool: UpstreamPool) -> Asked:
        """What the next engine is asked. Raises NoSeamError, EngineAskError or UpstreamConnectError."""
        if self.mechanism is Mechanism.TOKEN_IDS:
            try:
                return await self._continued(link, pool)
            except (NoSeamError, EngineAskError) as error:
                at_fault = isinstance(error, EngineAskError) and error.fault is not None
                if at_fault or abilities(self._decoded()).replay is not None:
                    raise
                self.mechanism = Mechanism.REPLAY
        asked = self._first(self._link or link)
        strips = asked.body is not self._body

        def reader(on_fault: Callable[[], None]) -> ReplayedStream:
            return ReplayedStream(self._transcript, on_fault, hide_usage=self._hide_usage, strips=strips)

        return Asked(None, asked.body, reader)

    def _against_token_ids(self, said: Said, fields: dict[str, Any]) -> str | None:
        link = self._link
        if link is None or link.migration is not Mechanism.TOKEN_IDS:
            return "its engine does not tell token ids"
        if not said.prompt_ids or not said.ids or not said.ids_known:
            return "its engine told no token ids of it"
        if said.finish_reason is not None:
            return "only its end is missing"
        unknown = unknown_field(fields)
        if unknown is not None:
            return f"nobody knows what {unknown} says of the rest of an answer"
        if self.chat and (not said.last_plain or {name for name, _ in said.pieces} & {"name", "arguments", "refusal"}):
            return "it is not certain that only text is to come, and no reasoning or tool calls"
        limit = limit_of(fields, len(said.prompt_ids), link.max_context_tokens)
        if limit is None or limit <= len(said.ids):
            return "nobody knows how long its answer may be" if limit is None else "its answer is as long as it may be"
        if said.logprobs and not is_clean(said, stops_of(fields)):
            return "logprobs of tokens were sent whose text was not"
        return None

    async def _continued(self, link: EngineLink, pool: UpstreamPool) -> Asked:
        said, fields = self._transcript.said, self._decoded()
        stops, held = stops_of(fields), ""
        kept = len(said.ids)
        if not is_clean(said, stops):
            kept, held = await find_seam(said, chat=self.chat, decode=self._decoder(link, pool))
            if stops and any(name != "content" and name != "text" for name, _ in said.pieces):
                raise NoSeamError("stop strings count in its reasoning, too")
            if self._client_ids and kept < len(said.ids):
                raise NoSeamError("its client has the ids of tokens whose text it has not")
            del said.ids[kept:]
        prompt = said.prompt_ids or []
        limit = limit_of(fields, len(prompt), link.max_context_tokens)
        self._kept = kept
        body = continued_body(fields, prompt, said.ids, limit or 0)
        seam = Seam(
            chat=self.chat,
            prompt_tokens=len(prompt),
            kept_tokens=kept,
            held=held,
            stops=stops,
            include_stop=bool(fields.get("include_stop_str_in_output")),
            shows_usage=not self._hide_usage,
            strips=not self._client_ids,
        )

        def reader(on_fault: Callable[[], None]) -> ConvertedStream:
            return ConvertedStream(self._transcript, seam, on_fault)

        return Asked(CONTINUE_PATH.encode(), msgspec.json.encode(body), reader)

    def _decoder(self, link: EngineLink, pool: UpstreamPool) -> Decode:
        model = self._decoded().get("model")

        async def decode(ids: Sequence[int]) -> str:
            question = {"model": model, "tokens": list(ids)}
            return (await ask_engine(pool, link, "/detokenize", question, _Detokenized)).prompt

        return decode

    def _decoded(self) -> dict[str, Any]:
        if self._fields is None:
            self._fields = msgspec.json.decode(self._body)
        return self._fields
