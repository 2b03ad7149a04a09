"""Mechanism: how a stream that its engine broke off can go on at another one."""

from __future__ import annotations

import enum


class Mechanism(enum.StrEnum):
    """By what an engine gives away of its streams."""

    TOKEN_IDS = "token_ids"
    """It tells the ids of prompt and answer, and takes them as a prompt: the answer goes on at any token."""
    REPLAY = "replay"
    """The same request is sent again, and what the client has already is compared and left out."""
    NONE = "none"
    """Nothing of it can go on elsewhere."""
