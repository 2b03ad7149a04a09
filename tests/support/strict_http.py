"""A second reader of HTTP/1.1 messages, by the letter of RFC 9112: whatever it can't take in one way only, it refuses.

It shares nothing with the readers under test. What those accept has to be what this one reads; it is slow and takes
whole texts only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(rb"[\x21-\x7e\x80-\xff]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-9][0-9][0-9])(?: [^\r\n]*)?")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})((?:;[\t\x20-\x7e\x80-\xff]*)?)")
_DIGITS = re.compile(rb"[0-9]{1,18}")


class NotStrictError(Exception):
    """The text can be read in more than one way, or in none."""


@dataclass(frozen=True)
class StrictRequest:
    method: bytes
    target: bytes
    version: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes


@dataclass(frozen=True)
class StrictAnswer:
    status: int
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes
    end: int
    """Where in the text it ends."""
    by_close: bool
    """Only the end of the connection ends it."""


def read_requests(text: bytes) -> tuple[list[StrictRequest], bool]:
    """All whole requests of a text, and whether what follows them is wrong (False: it is nothing, or incomplete)."""
    requests: list[StrictRequest] = []
    at = 0
    try:
        while True:
            while text[at : at + 1] in (b"\r", b"\n"):  # empty lines before a request are nobody's (RFC 9112, 2.2)
                at += 1
            read = _request(text, at)
            if read is None:
                return requests, False
            request, at = read
            requests.append(request)
    except NotStrictError:
        return requests, True


def read_answer(text: bytes, *, to_head: bool = False) -> StrictAnswer | None:
    """The first final answer of a text, None while it is incomplete. Raises NotStrictError."""
    at = 0
    while True:
        while text[at : at + 1] in (b"\r", b"\n"):  # known of old servers behind a body; they change no meaning
            at += 1
        read = _lines(text, at)
        if read is None:
            return None
        (first, *rest), at = read
        match = _STATUS.fullmatch(first)
        if match is None:
            raise NotStrictError(first)
        status = int(match[1])
        fields = _fields(rest)
        if status < 200:
            if status == 101:
                raise NotStrictError(first)
            continue
        chunked, length = _framing(fields)
        if to_head or status in (204, 304):
            return StrictAnswer(status, fields, b"", at, False)
        if not chunked and length is None:
            return StrictAnswer(status, fields, text[at:], len(text), True)
        body = _body(text, at, chunked, length or 0)
        return None if body is None else StrictAnswer(status, fields, body[0], body[1], False)


def _request(text: bytes, at: int) -> tuple[StrictRequest, int] | None:
    read = _lines(text, at)
    if read is None:
        return None
    (first, *rest), at = read
    parts = [part for part in first.split(b" ") if part]  # more spaces are one (RFC 9112, 3)
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
        raise NotStrictError(first)
    if parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise NotStrictError(first)
    fields = _fields(rest)
    chunked, length = _framing(fields)
    hosts = sum(name == b"host" for name, _ in fields)
    if hosts > 1 or (parts[2] == b"HTTP/1.1" and hosts != 1) or (parts[2] == b"HTTP/1.0" and chunked):
        raise NotStrictError(b"host, or chunked in 1.0")
    body = _body(text, at, chunked, length or 0)
    if body is None:
        return None
    return StrictRequest(parts[0], parts[1], parts[2], fields, body[0]), body[1]


def _lines(text: bytes, at: int) -> tuple[list[bytes], int] | None:
    """The lines of a head, each ended by CRLF and by nothing else."""
    end = text.find(b"\r\n\r\n", at)
    if end < 0:
        if b"\n\n" in text[at:] or b"\n\r\n" in text[at:].replace(b"\r\n\r\n", b""):
            raise NotStrictError(b"a head that ends by bare line feeds")
        return None
    lines = text[at:end].split(b"\r\n")
    if any(b"\r" in line or b"\n" in line for line in lines):
        raise NotStrictError(b"bare CR or LF")
    return lines, end + 4


def _fields(lines: list[bytes]) -> tuple[tuple[bytes, bytes], ...]:
    fields = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise NotStrictError(line)
        fields.append((name.lower(), value.strip(b" \t")))
    return tuple(fields)


def _framing(fields: tuple[tuple[bytes, bytes], ...]) -> tuple[bool, int | None]:
    lengths = [value for name, value in fields if name == b"content-length"]
    codings = [value.lower() for name, value in fields if name == b"transfer-encoding"]
    if len(lengths) + len(codings) > 1:
        raise NotStrictError(b"framing given more than once")
    if codings and codings != [b"chunked"]:
        raise NotStrictError(codings[0])
    if lengths and not _DIGITS.fullmatch(lengths[0]):
        raise NotStrictError(lengths[0])
    return bool(codings), int(lengths[0]) if lengths else None


def _body(text: bytes, at: int, chunked: bool, length: int) -> tuple[bytes, int] | None:
    if not chunked:
        return (text[at : at + length], at + length) if len(text) >= at + length else None
    body = b""
    while True:
        end = text.find(b"\r\n", at)
        if end < 0:
            if b"\n" in text[at:] or (text[at:] and not _CHUNK.match(text[at:])):
                raise NotStrictError(text[at : at + 20])
            return None
        match = _CHUNK.fullmatch(text[at:end])
        if match is None:
            raise NotStrictError(text[at:end])
        size, at = int(match[1], 16), end + 2
        if size == 0:
            return _trailer(text, at, body)
        if len(text) < at + size + 2:
            return None
        if text[at + size : at + size + 2] != b"\r\n":
            raise NotStrictError(b"the end of a chunk")
        body += text[at : at + size]
        at += size + 2


def _trailer(text: bytes, at: int, body: bytes) -> tuple[bytes, int] | None:
    if text.startswith(b"\r\n", at):
        return body, at + 2
    read = _lines(text, at)
    if read is None:
        return None
    _fields(read[0])
    return body, read[1]
