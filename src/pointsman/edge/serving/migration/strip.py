"""Token ids that were asked for to go on with a stream, taken out again before the client gets it. No JSON is read."""

from __future__ import annotations

from pointsman.edge.serving.migration.sse_events import split_events

_IDS = b'"token_ids":['
_PROMPT_IDS = b'"prompt_token_ids":['
_NOTHING_ELSE = b'"delta":{},"logprobs":null,"finish_reason":null,'
"""Before the ids: the event was only sent because ids were asked for."""
# Inside a JSON string the quotes are escaped, so none of these can be text of an answer.


def without_ids(block: bytes) -> bytes:
    """Whole events as the engine would have sent them without being asked for token ids."""
    if _IDS not in block:
        return without_prompt_ids(block)
    return b"".join(_without(event) for event in split_events(block))


def without_answer_ids(block: bytes) -> bytes:
    """The same for a stream whose prompt's ids have come, which come once."""
    at = block.rfind(_IDS)  # from the end, which is near
    if at < 0:
        return block
    if block.rfind(_IDS, 0, at) >= 0:
        return without_ids(block)
    if block.startswith(_NOTHING_ELSE, at - len(_NOTHING_ELSE)):
        return without_ids(block)
    return b"null".join((block[: at + 12], block[block.find(b"]", at) + 1 :]))


def without_its_prompt(block: bytes) -> tuple[bytes, bytes | None]:
    """Without the prompt's ids; and these, as a JSON array. None: they are not in it."""
    at = block.find(_PROMPT_IDS)
    if at < 0:
        return block, None
    start, end = at + len(_PROMPT_IDS) - 1, block.find(b"]", at) + 1
    return b"null".join((block[:start], block[end:])), block[start:end]


def without_prompt_ids(block: bytes) -> bytes:
    """Without the prompt's ids only."""
    return _replaced(block, _PROMPT_IDS)


def _without(event: bytes) -> bytes:
    """One of several events; one that holds nothing but ids is left out."""
    if _NOTHING_ELSE + _IDS in event:
        return b""
    return _replaced(_replaced(event, _IDS), _PROMPT_IDS)


def _replaced(block: bytes, name: bytes) -> bytes:
    at = block.find(name)
    while at >= 0:
        end = block.find(b"]", at)
        if end < 0:
            return block
        block = b"%bnull%b" % (block[: at + len(name) - 1], block[end + 1 :])
        at = block.find(name, at)
    return block
