"""The Hugging Face hub: the layout of its caches, and one file over https."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import aiohttp

from pointsman.core.model.errors import PointsmanError

CONNECT_LIMIT_S = 3.0
_READ_LIMIT_S = 30.0
_CHUNK_BYTES = 1 << 18


class HubError(PointsmanError):
    """The hub can't be reached, or what it sent can't be used."""


class HubFileMissing(HubError):  # noqa: N818
    """The hub has no such file, or tells nobody without a token that it has one."""


def snapshots(repository: str, caches: Sequence[Path]) -> Iterator[Path]:
    """Folders of a repository `owner/name` in caches of the hub's layout, of each cache the one of `main` first.

    The layout is `models--OWNER--NAME/snapshots/REVISION/FILE`, and `refs/main` holds a revision.
    """
    for cache in caches:
        folder = cache / ("models--" + repository.replace("/", "--"))
        main = _read_line(folder / "refs" / "main")
        yield from sorted((folder / "snapshots").glob("*/"), key=lambda path: (path.name != main, path.name))


def _read_line(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


async def fetch_into(
    file: IO[bytes],
    url: str,
    *,
    max_bytes: int,
    token: str | None = None,
    on_bytes: Callable[[int], None] = lambda done_bytes: None,
) -> None:
    """Append what `url` has to `file`, from where it ends; from the start where the server can't resume.

    `on_bytes` hears how many bytes the file has. Raises HubError; the file keeps what came, except when the server
    sends more than `max_bytes`: then it is emptied.
    """
    done_bytes = file.seek(0, 2)
    headers = {"Range": f"bytes={done_bytes}-"} if done_bytes else {}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    timeout = aiohttp.ClientTimeout(connect=CONNECT_LIMIT_S, sock_connect=CONNECT_LIMIT_S, sock_read=_READ_LIMIT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True, auto_decompress=False) as session,
            session.get(url, headers=headers) as answer,
        ):
            _check_status(answer, url)
            if answer.status == 200 and done_bytes:
                done_bytes = 0
                file.truncate(0)
            async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
                done_bytes += file.write(chunk)
                if done_bytes > max_bytes:
                    file.truncate(0)
                    raise HubError(f"{shown_url(url)} sends more than {max_bytes:,} bytes")
                on_bytes(done_bytes)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        said = str(error).replace(url, shown_url(url)) or type(error).__name__
        raise HubError(f"{shown_url(url)}: {said}") from error
    file.flush()


def _check_status(answer: aiohttp.ClientResponse, url: str) -> None:
    if answer.status in (200, 206):
        return
    kind = HubFileMissing if answer.status == 404 else HubError
    raise kind(f"{shown_url(url)} answered {answer.status} {answer.reason}")


def shown_url(url: str) -> str:
    """For messages and logs: without the user and password that a mirror may want, and without a query."""
    scheme, separator, rest = url.partition("?")[0].partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{separator}{place.rpartition('@')[2]}{slash}{path}"
