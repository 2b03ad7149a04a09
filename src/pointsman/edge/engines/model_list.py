"""What nearly every engine tells in the same way: its models, and its routes."""

from __future__ import annotations

import msgspec

from pointsman.edge.engines.http import EngineHttp, if_there


class ModelCard(msgspec.Struct):
    """One entry of `/v1/models`; what other engines add is ignored."""

    id: str
    owned_by: str | None = None
    parent: str | None = None
    root: str | None = None
    """What the engine loaded it from."""
    max_model_len: int | None = None
    aliases: list[str] | None = None


class _ModelCards(msgspec.Struct):
    data: list[ModelCard]


class ModelList:
    """The models that an engine offers."""

    def __init__(self, cards: list[ModelCard]) -> None:
        self._cards = [card for card in cards if card.id]

    @property
    def names(self) -> tuple[str, ...]:
        """All names and aliases, each once, in the engine's order."""
        return tuple(dict.fromkeys(name for card in self._cards for name in (card.id, *(card.aliases or ()))))

    @property
    def lora(self) -> tuple[str, ...]:
        """Names with a base model."""
        return tuple(dict.fromkeys(card.id for card in self._cards if card.parent))

    def with_base_names(self) -> ModelList:
        """Adapters called `base:adapter`: for engines that take a bare adapter's name for the base model's."""
        cards = [
            msgspec.structs.replace(card, id=f"{card.parent}:{card.id}") if card.parent else card
            for card in self._cards
        ]
        return ModelList(cards)

    @property
    def root(self) -> str | None:
        """What the first model that is no adapter was loaded from, where told."""
        return next((card.root for card in self._cards if not card.parent and card.root), None)

    @property
    def owner(self) -> str | None:
        """Who says to own the first one: engines write their own name here."""
        return self._cards[0].owned_by if self._cards else None

    @property
    def max_context_tokens(self) -> int | None:
        """The longest context that all of them can do, where told."""
        told = [card.max_model_len for card in self._cards if card.max_model_len]
        return min(told) if told else None


async def read_models(http: EngineHttp) -> ModelList:
    """`GET /v1/models`. Raises EngineCallError."""
    return ModelList((await http.get_json("/v1/models", _ModelCards)).data)


class _OpenApi(msgspec.Struct):
    paths: dict[str, msgspec.Raw]


async def read_routes(http: EngineHttp) -> frozenset[str] | None:
    """Paths of the engine's own description of its routes, None where it gives none."""
    openapi = await if_there(http.get_json("/openapi.json", _OpenApi))
    return None if openapi is None else frozenset(openapi.paths)


def offers(routes: frozenset[str] | None, *paths: str) -> bool | None:
    """Whether one of these paths is among the routes; None where routes are unknown."""
    return None if routes is None else any(path in routes for path in paths)
