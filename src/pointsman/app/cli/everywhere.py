"""Telling all front ends of one `serve --processes` the same, and saying which did not hear it."""

from __future__ import annotations

from typing import TypeVar

from pointsman.app.cli.admin_client import NoFrontEndError, RefusedError, call, front_ends
from pointsman.core.model.errors import EngineError

T = TypeVar("T")


def tell_all(method: str, admin_url: str, path: str, answer: type[T], body: object, change: str) -> tuple[T, str]:
    """Call the front end at `admin_url`, then those that belong to it; the first one's answer, and ` at N front ends`.

    Raises EngineError: the first one's own, before any other is told, or one that names those that did not take it;
    `change` says for it what was to be changed, for example `policy: kv → prefix`.
    """
    first, *others = front_ends(admin_url)
    said = call(method, first, path, answer, body)
    failed = [f"{url} ({why})" for url in others if (why := _trouble(method, url, path, answer, body)) is not None]
    count = len(others) + 1
    if failed:
        raise EngineError(
            f"{change} at {count - len(failed)} of {count} front ends, not at {'; '.join(failed)}. "
            "One that is being started again comes back with it; ask with --admin-url URL"
        )
    return said, f" at {count} front ends" if others else ""


def _trouble(method: str, url: str, path: str, answer: type[T], body: object) -> str | None:
    try:
        call(method, url, path, answer, body)
    except NoFrontEndError as error:
        return error.reason
    except RefusedError as error:
        return error.message
    except EngineError as error:
        return str(error)
    return None
