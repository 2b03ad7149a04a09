"""Lines of a file, plain or gzipped, one after the other, so a file need not fit into memory."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from pointsman.core.model.errors import TraceError
from pointsman.edge.traces.problems import RowError

T = TypeVar("T")

OnBytes = Callable[[int, int], None]
"""Called now and then with the bytes of the file that are read, and all."""
_GZIP_MAGIC = b"\x1f\x8b"
_LINES_A_CALL = 512
_MOST_LINE_BYTES = 256 * 2**20


def read_lines(
    path: Path, on_bytes: OnBytes | None = None, opened: BinaryIO | None = None
) -> Iterator[tuple[int, bytes]]:
    """Pairs of line number, from 1, and line without its end; blank lines are skipped. Raises TraceError.

    `opened`: the file, which may have another name by now; it is read from its beginning and left open.
    """
    with open_file(path, opened) as (stream, raw):
        total = os.fstat(raw.fileno()).st_size
        number = 0
        while line := stream.readline(_MOST_LINE_BYTES):
            number += 1
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if on_bytes is not None and number % _LINES_A_CALL == 0:
                on_bytes(raw.tell(), total)
            if line := line.strip():
                yield number, line
        if on_bytes is not None:
            on_bytes(total, total)


def read_head(path: Path, most_bytes: int = 65_536) -> bytes:
    """The first bytes, unpacked. Raises TraceError."""
    with open_file(path) as (stream, _):
        return stream.read(most_bytes)


def read_all(path: Path, on_bytes: OnBytes | None = None) -> bytes:
    """The whole file, unpacked: for documents that can't be read line by line. Raises TraceError."""
    with open_file(path) as (stream, raw):
        content = stream.read()
        if on_bytes is not None:
            on_bytes(raw.tell(), raw.tell())
        return content


@contextmanager
def open_file(path: Path, opened: BinaryIO | None = None) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The unpacked stream, and the file below it. Whatever goes wrong with the file becomes a TraceError."""
    try:
        with path.open("rb") if opened is None else nullcontext(opened) as raw:
            raw.seek(0)
            packed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            if not packed:
                yield raw, raw
                return
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield unpacked, raw  # type: ignore[misc]  # GzipFile is a binary stream in all but its declared type
    except OSError as error:  # gzip.BadGzipFile is one
        raise TraceError(f"{path}: can't be read: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise TraceError(f"{path}: its gzip data are damaged or cut off: {error}") from error


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Write a file, gzipped when its name ends in `.gz`. An old file is replaced only by a whole new one.

    Raises TraceError when it can't be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as raw:
            if path.suffix == ".gz":
                # No name and no time inside, so that the same lines give the same bytes.
                with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed:
                    packed.writelines(line + b"\n" for line in lines)
            else:
                raw.writelines(line + b"\n" for line in lines)
        part.replace(path)
    except OSError as error:
        raise TraceError(f"{path}: can't be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def decode(line: bytes, kind: msgspec.json.Decoder[T]) -> T:
    """One JSON row. Raises RowError that names the field."""
    try:
        return kind.decode(line)
    except msgspec.ValidationError as error:
        raise RowError(_readable(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RowError(f"is no JSON: {error}") from None


def _readable(message: str) -> str:
    """`Expected `int`, got `str` - at `$.a.b`` as `a.b: expected `int`, got `str``."""
    what, _, where = message.partition(" - at `$")
    field = where.rstrip("`").lstrip(".")
    what = what[:1].lower() + what[1:]
    return f"{field}: {what}" if field else what
