"""Any server with OpenAI's API: nothing but its models is known of it."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.edge.engines.adapter import Message
from pointsman.edge.engines.facts import Capabilities, EngineFacts
from pointsman.edge.engines.http import EngineHttp
from pointsman.edge.engines.load import LoadReading
from pointsman.edge.engines.model_list import offers, read_models, read_routes


class OpenAiAdapter:
    """Falls back on what every such server has. It is never asked to compute anything: that may cost money."""

    kind = "openai"
    health_paths = ("/v1/models",)
    """The only route that they all have."""

    async def identify(self, http: EngineHttp) -> EngineFacts | None:
        """Its models. Raises EngineCallError where it has no `/v1/models`."""
        models = await read_models(http)
        routes = await read_routes(http)
        return EngineFacts(
            kind=self.kind,
            version=None,
            models=models.names,
            lora=models.lora,
            max_context_tokens=models.max_context_tokens,
            capabilities=Capabilities(
                chat=offers(routes, "/v1/chat/completions"),
                completions=offers(routes, "/v1/completions"),
                embeddings=offers(routes, "/v1/embeddings"),
                responses=offers(routes, "/v1/responses"),
                tokenize=False,
            ),
            hints=("its load is unknown",),
        )

    async def probe(self, http: EngineHttp, facts: EngineFacts) -> EngineFacts:
        """Nothing is asked."""
        return facts

    async def read_load(self, http: EngineHttp) -> tuple[LoadReading, ...]:
        """Empty: it does not tell."""
        return ()

    async def tokenize(self, http: EngineHttp, model: str, prompt: str | Sequence[Message]) -> list[int] | None:
        """It cannot."""
        return None
