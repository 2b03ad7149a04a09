"""Errors that an engine of ours answers with, in vLLM's shape."""

from __future__ import annotations

import msgspec

from pointsman.core.model.errors import EngineError

_TYPES = {400: "BadRequestError", 404: "NotFoundError", 405: "MethodNotAllowedError", 503: "ServiceUnavailableError"}


class ApiError(EngineError):
    """A request is answered with an error status."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param

    def body(self) -> bytes:
        """The answer's JSON body."""
        return error_body(self.status, self.message, self.param)


def bad_request(message: str, param: str | None = None) -> ApiError:
    """A 400 that says what is wrong with a field."""
    return ApiError(400, message, param)


def error_body(status: int, message: str, param: str | None = None) -> bytes:
    """`{"error": {message, type, param, code}}`, where code is the HTTP status as a number."""
    kind = _TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})
