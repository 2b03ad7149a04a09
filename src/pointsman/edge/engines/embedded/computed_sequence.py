"""Sequences whose tokens are computed by a model."""

from __future__ import annotations

from collections.abc import Sequence as TokenIds

from pointsman.core.engine_model.token_sequence import TokenSequence
from pointsman.edge.engines.openai_server.sampling import GREEDY, Chosen, SampledRequest

__all__ = ["GREEDY", "ComputedSequence", "SampledRequest"]


class ComputedSequence(TokenSequence):
    """Its next token is put into `chosen` before the step that brings it is finished."""

    __slots__ = ("chosen", "prompt_told")

    chosen: Chosen
    prompt_told: list[Chosen]
    """What is told of the prompt's tokens, as far as they are computed; only where that is asked for."""

    @property
    def tells_prompt(self) -> bool:
        """Logprobs of its prompt are asked for, and were not told yet."""
        request = self.request
        return isinstance(request, SampledRequest) and request.sampling.tells_prompt and not self.answer

    @property
    def answer(self) -> TokenIds[int]:
        """Tokens generated so far."""
        return self.tokens[self.prompt_length :]

    def write(self, output_ids: TokenIds[int]) -> int:
        """The token that was chosen."""
        token = self.chosen.token
        self.tokens.append(token)
        return token
