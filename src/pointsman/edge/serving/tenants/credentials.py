"""The key that a request shows."""

from __future__ import annotations

from pointsman.edge.wire.headers import Headers

KEY_HEADERS = frozenset((b"authorization", b"x-api-key", b"api-key"))
_BEARER = b"bearer "


class UnusableCredentialsError(ValueError):
    """There is something in the place of a key, and it is none. The message never repeats it."""


def presented_key(headers: Headers) -> bytes | None:
    """The key of `Authorization: Bearer KEY`, `x-api-key` or `api-key`; None: there is none.

    Raises UnusableCredentialsError for another scheme, and for two keys that differ: who reads which would be a guess.
    """
    found: bytes | None = None
    for name, value in headers:
        if name in KEY_HEADERS:
            key = value
            if name == b"authorization":
                if value[:7].lower() != _BEARER:
                    raise UnusableCredentialsError("the header authorization is not `Bearer KEY`")
                key = value[7:]
            key = key.strip()
            if found is not None and key != found:
                raise UnusableCredentialsError("two different keys are given")
            found = key
    return found or None
