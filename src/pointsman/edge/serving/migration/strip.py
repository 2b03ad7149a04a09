"""Token ids that were asked for to go on with a stream, taken out again before the client gets it. No JSON is read."""

from __future__ import annotations

_IDS = b'"token_ids":['
_PROMPT_IDS = b'"prompt_token_ids":['
_EMPTY_DELTA = b'"delta":{},'
_NO_LOGPROBS = b'"logprobs":null,"finish_reason":null'
# Inside a JSON string the quotes are escaped, so none of these can be text of an answer.


def without_token_ids(block: bytes) -> bytes:
    """Whole events as the engine would have sent them without being asked for token ids."""
    at = block.find(_IDS)
    if at < 0:
        return without_prompt_ids(block) if _PROMPT_IDS in block else block
    end = block.find(b"]", at)
    if block.find(_IDS, end) < 0 and _EMPTY_DELTA not in block:  # a token's way
        block = b"%bnull%b" % (block[: at + 12], block[end + 1 :])
        return without_prompt_ids(block) if _PROMPT_IDS in block else block
    return b"".join(_without(event) for event in block.split(b"\n\n") if event) if block.endswith(b"\n\n") else block


def without_prompt_ids(block: bytes) -> bytes:
    """The same of the prompt's ids, which come once."""
    return _replaced(block, _PROMPT_IDS)


def _without(event: bytes) -> bytes:
    """One of several events; one that holds nothing but ids is left out."""
    if _EMPTY_DELTA in event and _NO_LOGPROBS in event and _IDS in event:
        return b""
    return _replaced(_replaced(event, _IDS), _PROMPT_IDS) + b"\n\n"


def _replaced(block: bytes, name: bytes) -> bytes:
    at = block.find(name)
    while at >= 0:
        end = block.find(b"]", at)
        if end < 0:
            return block
        block = b"%bnull%b" % (block[: at + len(name) - 1], block[end + 1 :])
        at = block.find(name, at)
    return block
