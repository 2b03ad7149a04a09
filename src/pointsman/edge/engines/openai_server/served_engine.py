"""What a server needs of the engine that it serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from prometheus_client.metrics_core import Metric

from pointsman.core.engine_model.engine import EngineModel
from pointsman.core.engine_model.sequence import Sequence
from pointsman.edge.engines.openai_server.event_publisher import EventPublisher
from pointsman.edge.engines.openai_server.json_texts import JsonTexts
from pointsman.edge.engines.openai_server.metrics import ServerMetrics
from pointsman.edge.engines.openai_server.names import ServedNames
from pointsman.edge.engines.openai_server.prompt_work import PromptWork
from pointsman.edge.engines.openai_server.sampling import Chosen, SampledRequest
from pointsman.edge.engines.openai_server.spec import SpecMaker
from pointsman.edge.engines.openai_server.text import ServedText


class TokenSink(Protocol):
    """Takes the tokens of one sequence."""

    def on_token(self, token: int, last: bool, chosen: Chosen | None = None) -> None:
        """One more token; `last` when the engine generates no further one. `chosen`: what else is known of it."""

    def on_error(self, error: Exception) -> None:
        """The sequence can't go on, or `on_token` raised: it has been taken out."""


class Runner(Protocol):
    """Computes what it is handed."""

    @property
    def model(self) -> EngineModel:
        """Counters, queue, KV cache."""
        ...

    def submit(self, request: SampledRequest, sinks: list[TokenSink]) -> tuple[Sequence, ...]:
        """Queue a request with a sink for each of its sequences; raises RequestRefusedError."""
        ...

    def abort(self, sequence: Sequence) -> None:
        """Take a sequence out, if it has not ended; its sink hears nothing more."""
        ...

    def reset_prefix_cache(self) -> bool:
        """Forget cached blocks, unless sequences hold some."""
        ...

    def transfer_answer(self, sequences: list[Sequence]) -> Mapping[str, object] | None:
        """`kv_transfer_params` of the answer to a request whose sequences have ended; None: there are none."""
        ...


class ServedEngine(Protocol):
    """One engine. What changes with a restart is asked for each time."""

    version: str
    """Of vLLM, whose contract it is, with what it really is behind it."""
    names: ServedNames
    text: ServedText
    specs: SpecMaker
    json_texts: JsonTexts
    prompt_work: PromptWork
    refusing: bool
    """Requests for tokens get 503: the engine is about to stop."""

    @property
    def ready(self) -> bool:
        """`/health` is 200."""
        ...

    @property
    def runner(self) -> Runner:
        """What computes."""
        ...

    @property
    def metrics(self) -> ServerMetrics:
        """What the engine model does not count itself."""
        ...

    @property
    def publisher(self) -> EventPublisher:
        """Of KV events."""
        ...

    def more_metrics(self) -> Iterable[Metric]:
        """Of this kind of engine only."""
        ...
