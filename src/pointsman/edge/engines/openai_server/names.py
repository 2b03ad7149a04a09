"""Names under which a model is served."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.edge.engines.openai_server.errors import ApiError


@dataclass(frozen=True, slots=True)
class ServedNames:
    """One model and its adapters."""

    model: str
    adapters: tuple[str, ...] = ()
    root: str | None = None
    """Where the model's files are, as `/v1/models` tells it; None: its name."""

    @property
    def all(self) -> tuple[str, ...]:
        """Names that requests may use."""
        return (self.model, *self.adapters)

    def check(self, name: str | None) -> str:
        """The name that is meant; an unknown one is a 404."""
        if name is None or name == "":
            return self.model
        if name not in self.all:
            raise ApiError(404, f"The model `{name}` does not exist.", "model")
        return name
