"""Parts of a message's content: which are texts, and which are media."""

from __future__ import annotations

from pointsman.edge.prompts.errors import NotTokenizable, Reason

Message = dict[str, object]

_TEXT_TYPES = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Part type → member that holds its text."""
MEDIA_TYPES = {
    "image_url": "image",
    "input_image": "image",
    "image_embeds": "image",
    "image_pil": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "audio_embeds": "audio",
    "video_url": "video",
    "video_embeds": "video",
}
"""Part type → type under which the template sees it."""


def read_part(part: object) -> tuple[str | None, str]:
    """(None, text) of a text, otherwise (the type that a template sees, "")."""
    if isinstance(part, str):
        return None, part
    if not isinstance(part, dict) or "uuid" in part:
        raise NotTokenizable(Reason.MULTIMODAL, "a content part with a uuid, or none that is an object")
    kind = part.get("type")
    if isinstance(kind, str) and kind in _TEXT_TYPES:
        text = part.get(_TEXT_TYPES[kind])
        if not isinstance(text, str):
            raise unusual(f"a content part of type {kind!r} without a text")
        return None, text
    if isinstance(kind, str) and kind in MEDIA_TYPES:
        return MEDIA_TYPES[kind], ""
    raise NotTokenizable(Reason.MULTIMODAL, f"a content part of type {kind!r}")


def unusual(message: str) -> NotTokenizable:
    """For a message that engines refuse, or read in a way that is not known."""
    return NotTokenizable(Reason.UNUSUAL_FIELD, message)
