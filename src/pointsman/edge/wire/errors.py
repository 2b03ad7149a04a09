"""Errors on the wire: OpenAI's JSON shape, and what is raised for a bad request or a failing upstream."""

from __future__ import annotations

import msgspec

from pointsman.core.model.errors import PointsmanError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
    505: "invalid_request_error",
}


class _Error(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class _Envelope(msgspec.Struct):
    error: _Error


def error_type(status: int) -> str:
    """The `type` that OpenAI's clients expect for an HTTP status."""
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def error_body(
    status: int, message: str, *, type: str | None = None, param: str | None = None, code: str | None = None
) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}` as JSON bytes."""
    return msgspec.json.encode(_Envelope(_Error(message, type or error_type(status), param, code)))


class _Said(msgspec.Struct):
    message: str = ""


class _SaidEnvelope(msgspec.Struct):
    error: _Said


def error_message(body: bytes) -> str:
    """The message of an error's body; empty where it is none."""
    try:
        return msgspec.json.decode(body, type=_SaidEnvelope).error.message
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


class BadRequest(PointsmanError):  # noqa: N818
    """A request that is answered with an error of our own; names the field and what was expected."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> bytes:
        """The answer's JSON body."""
        return error_body(self.status, self.message, param=self.param, code=self.code)


class UpstreamError(PointsmanError):
    """An exchange with an upstream failed."""


class UpstreamConnectError(UpstreamError):
    """No connection could be made: nothing of the request was sent."""


class OwnShortageError(UpstreamConnectError):
    """No connection could be made for want of descriptors, memory or local ports here: nothing against the upstream."""


class UpstreamClosed(UpstreamError):  # noqa: N818
    """The connection ended before the answer did."""

    def __init__(self, message: str, *, reused: bool, received: bool):
        super().__init__(message)
        self.reused = reused
        """The connection had served another request before, so it may just have been stale."""
        self.received = received
        """At least one byte of an answer had come."""


class UpstreamProtocolError(UpstreamError):
    """What came is not a usable HTTP/1.1 answer."""
