"""Stage: which part of a request one worker computes."""

from __future__ import annotations

import enum


class Stage(enum.Enum):
    """Which part of a request one engine computes."""

    WHOLE = "whole"
    PREFILL = "prefill"
    """The prompt and the first token; the KV blocks stay until somebody has fetched them."""
    DECODE = "decode"
    """All tokens after the first; the KV of the prompt comes from the engine that computed it."""
