"""Why a prompt can't be turned into token ids. None of these is an error of the request: text blocks are used then."""

from __future__ import annotations

import enum

from pointsman.core.model.errors import PointsmanError


class Reason(enum.StrEnum):
    """Label of a metric; the message says more."""

    NO_TOKENIZER = "no_tokenizer"
    """The model has neither tokenizer files here nor an engine that tokenizes."""
    NO_TEMPLATE = "no_template"
    OWN_TEMPLATE = "own_template"
    """The request brings its own chat template."""
    UNUSUAL_FIELD = "unusual_field"
    """A field has a value, or a combination of values, that engines refuse or treat differently from each other."""
    SEVERAL_PROMPTS = "several_prompts"
    MULTIMODAL = "multimodal"
    TEMPLATE_FAILED = "template_failed"
    """The template raised, as it then does in the engine."""
    TOO_LARGE = "too_large"
    OVERLOADED = "overloaded"
    """More prompts wait for the tokenizer than are allowed to."""
    TIMED_OUT = "timed_out"
    ENGINE_FAILED = "engine_failed"
    """The engine's own tokenizer route gave nothing."""
    FAULT = "fault"
    """An error in this room; the log has its traceback."""


QUOTES_THE_REQUEST = frozenset({Reason.UNUSUAL_FIELD, Reason.MULTIMODAL, Reason.TEMPLATE_FAILED})
"""Reasons whose messages may hold what a client wrote."""


class NotTokenizable(PointsmanError):  # noqa: N818
    """A prompt whose token ids can't be known; `reason` labels a metric."""

    def __init__(self, reason: Reason, message: str):
        super().__init__(message)
        self.reason = reason


class TokenizerFilesError(PointsmanError):
    """Files of a tokenizer are missing or unusable; the message names them and says what to do."""
