"""Logprobs as the two APIs show them."""

from __future__ import annotations

from pointsman.edge.engines.openai_server.sampling import Chosen
from pointsman.edge.engines.openai_server.text import ServedText

_LOWEST = -9999.0
"""JSON has no infinity."""


def chat_logprobs(text: ServedText, tokens: list[Chosen]) -> dict[str, object]:
    """`logprobs` of a chat's choice, or of an event of it."""
    content = []
    for chosen in tokens:
        top = [_entry(text, token, logprob) for token, logprob in chosen.likeliest]
        content.append({**_entry(text, chosen.token, chosen.logprob), "top_logprobs": top})
    return {"content": content}


class TextLogprobs:
    """`logprobs` of completions count characters from the beginning of one choice's text."""

    __slots__ = ("_offset", "_text")

    def __init__(self, text: ServedText, offset: int = 0) -> None:
        self._text = text
        self._offset = offset

    def of(self, tokens: list[Chosen]) -> dict[str, object]:
        """Of the next tokens."""
        names, offsets = [], []
        tops: list[dict[str, float]] = []
        for chosen in tokens:
            name = self._text.token_text(chosen.token)
            names.append(name)
            offsets.append(self._offset)
            self._offset += len(name)
            # As vLLM does: the token itself is among them, though it may not be one of the likeliest.
            top = {name: _finite(chosen.logprob)}
            for token, logprob in chosen.likeliest:
                top.setdefault(self._text.token_text(token), _finite(logprob))
            tops.append(top)
        return {
            "text_offset": offsets,
            "token_logprobs": [_finite(chosen.logprob) for chosen in tokens],
            "tokens": names,
            "top_logprobs": tops,
        }


def _entry(text: ServedText, token: int, logprob: float | None) -> dict[str, object]:
    name = text.token_text(token)
    return {"token": name, "logprob": _finite(logprob), "bytes": list(name.encode("utf-8", "replace"))}


def _finite(logprob: float | None) -> float:
    return _LOWEST if logprob is None else max(logprob, _LOWEST)
