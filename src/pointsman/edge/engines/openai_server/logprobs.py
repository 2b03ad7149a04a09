"""Logprobs as the two APIs show them."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.edge.engines.openai_server.sampling import Chosen
from pointsman.edge.engines.openai_server.text import ServedText

_LOWEST = -9999.0
"""JSON has no infinity."""
_UNFINISHED = "\ufffd"


def shown_logprobs(text: ServedText, *, chat: bool) -> ChatLogprobs | TextLogprobs:
    """For one choice; its tokens come in order."""
    return ChatLogprobs(text) if chat else TextLogprobs(text)


def told_of_prompt(prompt: Sequence[int], first: Chosen) -> list[Chosen]:
    """The tokens of an echoed prompt, as the first token of its answer tells of them."""
    return [Chosen(prompt[0]), *first.prompt]


class _Names:
    """Texts of tokens. A part of a character has none, the token that completes it has all of it, as with vLLM."""

    __slots__ = ("_stream", "_text")

    def __init__(self, text: ServedText) -> None:
        self._text = text
        self._stream = text.stream(skip_special_tokens=False)

    def next(self, token: int) -> str:
        """Of the answer's next token."""
        piece = self._stream.feed(token)
        alone = self._text.token_text(token)
        return alone if _UNFINISHED not in alone else piece

    def other(self, token: int) -> str:
        """Of one that might have come."""
        alone = self._text.token_text(token)
        return "" if alone.endswith(_UNFINISHED) else alone


class ChatLogprobs:
    """`logprobs` of a chat's choice."""

    def __init__(self, text: ServedText) -> None:
        self._names = _Names(text)

    def of(self, tokens: list[Chosen]) -> dict[str, object]:
        """Of the next tokens."""
        content = []
        for chosen in tokens:
            name = self._names.next(chosen.token)
            top = [
                _entry(name if token == chosen.token else self._names.other(token), logprob)
                for token, logprob in chosen.likeliest
            ]
            content.append({**_entry(name, chosen.logprob), "top_logprobs": top})
        return {"content": content}


class TextLogprobs:
    """`logprobs` of a completion's choice: it counts characters from the beginning of the choice's text."""

    def __init__(self, text: ServedText) -> None:
        self._names = _Names(text)
        self._offset = 0

    def of(self, tokens: list[Chosen]) -> dict[str, object]:
        """Of the next tokens."""
        names, offsets = [], []
        logprobs: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        for chosen in tokens:
            name = self._names.next(chosen.token)
            names.append(name)
            offsets.append(self._offset)
            self._offset += len(name)
            if chosen.logprob is None:  # nothing comes before the first token of a prompt
                logprobs.append(None)
                tops.append(None)
                continue
            # As vLLM does: the token itself is among them, though it may not be one of the likeliest.
            logprobs.append(_finite(chosen.logprob))
            top = {name: _finite(chosen.logprob)}
            for token, logprob in chosen.likeliest:
                top.setdefault(self._names.other(token), _finite(logprob))
            tops.append(top)
        return {
            "text_offset": offsets,
            "token_logprobs": logprobs,
            "tokens": names,
            "top_logprobs": tops,
        }


def _entry(name: str, logprob: float | None) -> dict[str, object]:
    return {"token": name, "logprob": _finite(logprob), "bytes": list(name.encode("utf-8", "replace"))}


def _finite(logprob: float | None) -> float:
    return _LOWEST if logprob is None else max(logprob, _LOWEST)
