"""Streams as engines of several kinds send them, from the pieces of one answer; for tests that cut and merge them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Piece:
    """What one step of the engine adds: token ids, and text of one channel (`content`, `reasoning`, `text`, a call)."""

    ids: tuple[int, ...]
    channel: str | None = "content"
    text: str = ""
    call: int = 0
    name: str | None = None


@dataclass(frozen=True)
class Story:
    """One answer, whoever computes it."""

    pieces: Sequence[Piece]
    chat: bool = True
    prompt_ids: tuple[int, ...] = (7, 8, 9)
    finish: str = "stop"
    logprobs: bool = False
    tells_ids: bool = False
    usage: bool = True
    name: Mapping[str, Any] = field(default_factory=lambda: {"id": "chatcmpl-1", "created": 1, "model": "m"})

    def events(self, merges: Iterable[int] = (), *, call_ids: str = "a") -> list[bytes]:
        """The stream's events; `merges`: how many pieces of one channel share an event, one after the other."""
        events = (
            [self._event({"index": 0, "delta": {"role": "assistant", "content": ""}}, first=True)] if self.chat else []
        )
        groups = self._groups(list(merges))
        for number, group in enumerate(groups):
            last = number == len(groups) - 1
            events.append(self._event(self._choice(group, last, call_ids), first=not self.chat and number == 0))
        if self.usage:
            tokens = sum(len(piece.ids) for piece in self.pieces)
            usage = {
                "prompt_tokens": len(self.prompt_ids),
                "total_tokens": len(self.prompt_ids) + tokens,
                "completion_tokens": tokens,
            }
            events.append(_event(self._head() | {"choices": [], "usage": usage}))
        return [*events, DONE]

    def _groups(self, merges: list[int]) -> list[list[Piece]]:
        groups: list[list[Piece]] = []
        left = 0
        for piece in self.pieces:
            same = bool(groups) and groups[-1][-1].channel == piece.channel and groups[-1][-1].call == piece.call
            if left > 0 and same and piece.name is None:
                groups[-1].append(piece)
                left -= 1
            else:
                groups.append([piece])
                left = merges.pop(0) - 1 if merges else 0
        return groups

    def _choice(self, group: list[Piece], last: bool, call_ids: str) -> dict[str, Any]:
        text = "".join(piece.text for piece in group)
        ids = [token for piece in group for token in piece.ids]
        choice: dict[str, Any] = {"index": 0}
        if self.chat:
            choice["delta"] = self._delta(group[0], text, call_ids)
        else:
            choice["text"] = text
        choice["logprobs"] = self._logprobs(group) if self.logprobs else None
        choice["finish_reason"] = self.finish if last else None
        if last or not self.chat:
            choice["stop_reason"] = None
        choice["token_ids"] = ids if self.tells_ids else None
        return choice

    def _delta(self, piece: Piece, text: str, call_ids: str) -> dict[str, Any]:
        if piece.channel is None:
            return {}
        if piece.channel != "call":
            return {piece.channel: text}
        function: dict[str, Any] = {"arguments": text}
        call: dict[str, Any] = {"index": piece.call, "function": function}
        if piece.name is not None:
            function["name"] = piece.name
            call |= {"id": f"call-{call_ids}-{piece.call}", "type": "function"}
        return {"tool_calls": [call]}

    def _logprobs(self, group: list[Piece]) -> dict[str, Any]:
        told = [{"token": str(token), "logprob": -token / 7} for piece in group for token in piece.ids]
        if self.chat:
            return {"content": told}
        tokens = [one["token"] for one in told]
        return {"tokens": tokens, "token_logprobs": [one["logprob"] for one in told], "text_offset": [0] * len(told)}

    def _head(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {"id": self.name["id"], "object": kind, "created": self.name["created"], "model": self.name["model"]}

    def _event(self, choice: dict[str, Any], *, first: bool) -> bytes:
        event = self._head() | {"choices": [choice]}
        if first and self.tells_ids:
            (event if self.chat else choice)["prompt_token_ids"] = list(self.prompt_ids)
        return _event(event)


def _event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


@dataclass
class Heard:
    """What a client makes of a stream."""

    names: set[tuple[Any, ...]] = field(default_factory=set)
    roles: int = 0
    texts: dict[tuple[str, int], str] = field(default_factory=dict)
    calls: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Index → (name, how often an id was told)."""
    logprobs: list[tuple[str, float]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    finishes: list[str] = field(default_factory=list)
    usages: list[tuple[int, int, int]] = field(default_factory=list)
    dones: int = 0
    errors: list[str] = field(default_factory=list)


def hear(body: bytes) -> Heard:
    """Read a client's stream; every event has to be whole."""
    heard = Heard()
    assert body.endswith(b"\n\n") or not body, body[-80:]
    for event in body.split(b"\n\n")[:-1]:
        data = event.removeprefix(b"data: ")
        assert data != event, event
        if data == b"[DONE]":
            heard.dones += 1
            continue
        value = json.loads(data)
        if "error" in value:
            heard.errors.append(value["error"]["message"])
            continue
        heard.names.add((value["id"], value["created"], value["model"], value.get("object")))
        if value.get("usage"):
            usage = value["usage"]
            heard.usages.append((usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]))
        for choice in value["choices"]:
            _hear_choice(heard, choice)
    return heard


def _hear_choice(heard: Heard, choice: dict[str, Any]) -> None:
    delta = choice.get("delta", {})
    heard.roles += "role" in delta
    for channel in ("content", "reasoning", "reasoning_content"):
        if delta.get(channel):
            heard.texts[channel, 0] = heard.texts.get((channel, 0), "") + delta[channel]
    if choice.get("text"):
        heard.texts["text", 0] = heard.texts.get(("text", 0), "") + choice["text"]
    for call in delta.get("tool_calls") or ():
        index, function = call["index"], call.get("function", {})
        name, told = heard.calls.get(index, ("", 0))
        heard.calls[index] = (name + function.get("name", ""), told + ("id" in call))
        heard.texts["arguments", index] = heard.texts.get(("arguments", index), "") + function.get("arguments", "")
    logprobs = choice.get("logprobs") or {}
    heard.logprobs += [(one["token"], one["logprob"]) for one in logprobs.get("content") or ()]
    heard.logprobs += list(zip(logprobs.get("tokens") or (), logprobs.get("token_logprobs") or (), strict=True))
    heard.ids += choice.get("token_ids") or ()
    if choice.get("finish_reason"):
        heard.finishes.append(choice["finish_reason"])
