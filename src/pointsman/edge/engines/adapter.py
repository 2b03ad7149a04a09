"""EngineAdapter: how to ask one kind of engine what it is, how loaded it is, and for token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pointsman.edge.engines.facts import EngineFacts
from pointsman.edge.engines.http import EngineHttp
from pointsman.edge.engines.load import LoadReading

Message = Mapping[str, object]
"""A chat message as in the body of a request."""


class EngineAdapter(Protocol):
    """Knows one kind of engine. Holds no state: everything is asked anew. All calls raise EngineCallError."""

    @property
    def kind(self) -> str:
        """Its name in configuration and metrics."""
        ...

    @property
    def health_paths(self) -> tuple[str, ...]:
        """Where 200 says that the engine takes requests, and quickly; the first one that the engine has counts."""
        ...

    async def identify(self, http: EngineHttp) -> EngineFacts | None:
        """What the engine is; None if it is of another kind."""
        ...

    async def probe(self, http: EngineHttp, facts: EngineFacts) -> EngineFacts:
        """Completes facts with what only a request can tell; at most two requests for one token. Ask it once."""
        ...

    async def read_load(self, http: EngineHttp) -> tuple[LoadReading, ...]:
        """One reading a rank. Empty: this engine does not tell, which is not the same as idle."""
        ...

    async def tokenize(self, http: EngineHttp, model: str, prompt: str | Sequence[Message]) -> list[int] | None:
        """Token ids as the engine itself makes them of a completion's prompt, or of a chat's messages.

        Messages get the chat template and the opening of the answer. None if the engine cannot.
        """
        ...
