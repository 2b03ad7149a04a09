"""A request whose tokens are computed by a model, and the sequences that its answers are."""

from __future__ import annotations

from collections.abc import Sequence as TokenIds
from dataclasses import dataclass

from pointsman.core.engine_model.request import EngineRequest
from pointsman.core.engine_model.token_sequence import TokenSequence
from pointsman.edge.engines.embedded.sampling import Chosen, Sampling

GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class SampledRequest(EngineRequest):
    """One request, and how its tokens are chosen. Of several answers each draws by itself."""

    sampling: Sampling = GREEDY


class ComputedSequence(TokenSequence):
    """Its next token is put into `chosen` before the step that brings it is finished."""

    __slots__ = ("chosen",)

    chosen: Chosen

    @property
    def answer(self) -> TokenIds[int]:
        """Tokens generated so far."""
        return self.tokens[self.prompt_length :]

    def write(self, output_ids: TokenIds[int]) -> int:
        """The token that was chosen."""
        token = self.chosen.token
        self.tokens.append(token)
        return token
