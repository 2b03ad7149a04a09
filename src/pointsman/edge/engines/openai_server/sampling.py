"""How a request wants its tokens chosen, and what is told of one that was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pointsman.core.engine_model.request import EngineRequest


@dataclass(frozen=True, slots=True)
class Sampling:
    """As requests ask for it. Temperature 0 takes the likeliest token."""

    temperature: float = 1.0
    top_k: int = 0
    """0: all."""
    top_p: float = 1.0
    min_p: float = 0.0
    """Tokens less likely than that share of the likeliest one are left out."""
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    """Above 1: tokens of the prompt and the answer are less likely."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    """How many of the likeliest tokens are told with each token; None: nothing is."""
    tells_prompt: bool = False
    """The same is told of the prompt's tokens, so none of it may be taken from a cache."""
    min_tokens: int = 0
    """Before so many tokens none of `end_ids` may come."""
    end_ids: tuple[int, ...] = ()

    @property
    def plain(self) -> bool:
        """Logits are taken as they are."""
        return not (
            self.presence_penalty
            or self.frequency_penalty
            or self.logit_bias
            or self.repetition_penalty != 1.0
            or (self.min_tokens and self.end_ids)
        )


@dataclass(frozen=True, slots=True)
class Chosen:
    """One token."""

    token: int
    logprob: float | None = None
    """Of the model itself, before temperature and filters; None where it was not asked for."""
    likeliest: tuple[tuple[int, float], ...] = ()
    """Tokens with their logprobs, likeliest first."""
    prompt: tuple[Chosen, ...] = ()
    """With the first token of an answer, where it is asked for: the same of the prompt's tokens from the second on."""


GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class SampledRequest(EngineRequest):
    """One request, and how its tokens are chosen. Of several answers each draws by itself."""

    sampling: Sampling = GREEDY
    kv_transfer_params: Mapping[str, object] | None = None
    """What the client says of KV that is to come from another engine, or to be kept for one."""
